"""A picture of drift: error over tokens, both logarithmic, a panel a way to keep the state, a line an interval."""

from pathlib import Path

from statewise.errors import ConfigError
from statewise.eval.drift import Drift, Way

COLORS = ("tab:orange", "tab:green", "tab:red", "tab:blue", "tab:purple", "tab:brown")


def plot(drifts: dict[Way, list[Drift]], path: Path, title: str) -> None:
    """Write a PNG. Raises ConfigError without matplotlib or if the file cannot be written."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError("plot needs matplotlib: pip install 'statewise[bench]'") from error
    names = list(dict.fromkeys(way.name for way in drifts))
    figure = Figure(figsize=(3.6 * len(names), 4.2), layout="constrained")
    panels = figure.subplots(1, len(names), squeeze=False, sharey=True)[0]
    for name, axes in zip(names, panels, strict=True):
        own = [(way, points) for way, points in drifts.items() if way.name == name]
        for (way, points), color in zip(own, COLORS * len(own), strict=False):
            label = "plain" if way.window == 1 else f"W {way.window}"
            axes.plot([p.token for p in points], [p.state for p in points], marker="o", ms=3, color=color, label=label)
        axes.set_title(f"{name} state", fontsize=10)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("tokens")
        axes.grid(True, which="major", alpha=0.3)
        axes.legend(fontsize=8)
    panels[0].set_ylabel("relative error of the state")
    figure.suptitle(title, fontsize=11)
    try:
        figure.savefig(path, dpi=110)
    except OSError as error:
        raise ConfigError(f"plot is {path}, which cannot be written: {error.strerror}") from error
