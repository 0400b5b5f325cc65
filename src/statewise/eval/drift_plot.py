"""A picture of drift: error over tokens, both logarithmic, a panel a way to keep the state, a line an interval."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from statewise.eval.drift import Drift, Way
from statewise.eval.drift_model import ModelDrift
from statewise.pictures import new_figure, save

COLORS = ("tab:orange", "tab:green", "tab:red", "tab:blue", "tab:purple", "tab:brown")


def plot(
    drifts: Mapping[Way, Sequence[Drift | ModelDrift]], path: Path, title: str, measures: Sequence[str] = ("state",)
) -> None:
    """Write a PNG, a row of panels for each of these fields of the drifts.

    Raises ConfigError without matplotlib or if the file cannot be written.
    """
    names = list(dict.fromkeys(way.name for way in drifts))
    figure = new_figure(3.6 * len(names), 0.6 + 3.6 * len(measures))
    panels = figure.subplots(len(measures), len(names), squeeze=False, sharex=True, sharey="row")
    for measure, row in zip(measures, panels, strict=True):
        for name, axes in zip(names, row, strict=True):
            own = [(way, points) for way, points in drifts.items() if way.name == name]
            for (way, points), color in zip(own, COLORS * len(own), strict=False):
                label = "plain" if way.window == 1 else f"W {way.window}"
                errors = [getattr(point, measure) for point in points]
                axes.plot([point.token for point in points], errors, marker="o", ms=3, color=color, label=label)
            axes.set_title(f"{name} state", fontsize=10)
            axes.set_xscale("log")
            axes.set_yscale("log")
            axes.grid(True, which="major", alpha=0.3)
            axes.legend(fontsize=8)
        row[0].set_ylabel(f"relative error of the {measure}")
    for axes in panels[-1]:
        axes.set_xlabel("tokens")
    figure.suptitle(title, fontsize=11)
    save(figure, path)
