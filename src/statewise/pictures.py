"""Pictures by matplotlib, which is not installed with the package."""

import importlib.util
from pathlib import Path
from typing import Any

from statewise.errors import ConfigError


def expect_matplotlib() -> None:
    """Raise ConfigError that says how to install it, unless it is there."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError("plot needs matplotlib: pip install 'statewise[bench]'")


def new_figure(width: float, height: float) -> Any:
    """An empty figure of so many inches. Raises ConfigError without matplotlib."""
    expect_matplotlib()
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def save(figure: Any, path: Path) -> None:
    """As a PNG, whatever its name. Raises ConfigError if the file cannot be written."""
    try:
        figure.savefig(path, dpi=110, format="png")
    except OSError as error:
        raise ConfigError(f"plot is {path}, which cannot be written: {error.strerror}") from error
