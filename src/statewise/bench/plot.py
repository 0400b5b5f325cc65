"""A picture of a benchmark: time over batch, both logarithmic, with the byte floor below everything."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from statewise.bench.op import Row
from statewise.errors import ConfigError

OURS = {"statewise": "tab:red", "statewise plain": "tab:orange"}


def plot(rows: Sequence[Row], path: Path, title: str) -> None:
    """Write a PNG, a panel a state dtype. Raises ConfigError without matplotlib or if the file cannot be written."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError("plot needs matplotlib: pip install 'statewise[bench]'") from error
    dtypes = list(dict.fromkeys(row.state_dtype for row in rows))
    figure = Figure(figsize=(6.5 * len(dtypes), 5.2), layout="constrained")
    for axes, dtype in zip(figure.subplots(1, len(dtypes), squeeze=False)[0], dtypes, strict=True):
        _panel(axes, [row for row in rows if row.state_dtype == dtype])
        axes.set_title(f"{dtype} state")
    figure.suptitle(title)
    try:
        figure.savefig(path, dpi=110)
    except OSError as error:
        raise ConfigError(f"plot is {path}, which cannot be written: {error.strerror}") from error


def _panel(axes: Any, rows: Sequence[Row]) -> None:
    batches = [row.batch for row in rows]
    axes.fill_between(batches, [row.floor for row in rows], color="0.85", label="below the byte floor")
    for name in rows[0].times:
        ours = name in OURS
        style = {"color": OURS[name], "linewidth": 2.4, "zorder": 3} if ours else {"linewidth": 1, "alpha": 0.8}
        dash = "--" if "plain" in name else "-"
        axes.plot(batches, [row.times[name] for row in rows], dash, marker="o", markersize=3, label=name, **style)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(batches, [str(batch) for batch in batches])
    axes.set_xlabel("batch")
    axes.set_ylabel("microseconds a layer")
    axes.grid(True, which="major", alpha=0.3)
    axes.legend(fontsize=7)
