"""A picture of a benchmark: time over batch, both logarithmic, with the byte floor below everything."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from statewise.bench.op import Row
from statewise.pictures import new_figure, save

PEERS = [f"tab:{color}" for color in ("blue", "green", "purple", "brown", "olive", "cyan", "pink", "gray")]
OURS = {"statewise": "tab:red", "statewise plain": "tab:orange"}


def plot(rows: Sequence[Row], path: Path, title: str) -> None:
    """Write a PNG of decode steps, a panel a state dtype. Raises ConfigError as `draw` does."""
    dtypes = dict.fromkeys(row.state_dtype for row in rows)
    panels = [(f"{dtype} state", [row for row in rows if row.state_dtype == dtype]) for dtype in dtypes]
    draw([panels], path, title, x="batch", dashed="plain")


def draw(
    panels: Sequence[Sequence[tuple[str, Sequence[Any]]]],
    path: Path,
    title: str,
    x: str,
    dashed: str,
    y: str = "microseconds a layer",
) -> None:
    """Write a PNG of rows and columns of panels, each of (its title, its results).

    x: the field of a result that is drawn along the axis. dashed: contenders with this word in their names are.
    y: what the times are.
    Raises ConfigError without matplotlib or if the file cannot be written.
    """
    columns = len(panels[0])
    figure = new_figure(6.5 * min(columns, 3), 5.2 * len(panels))
    for line, axes_line in zip(panels, figure.subplots(len(panels), columns, squeeze=False), strict=True):
        for (name, rows), axes in zip(line, axes_line, strict=True):
            _panel(axes, rows, x, dashed, y)
            axes.set_title(name)
    figure.suptitle(title)
    save(figure, path)


def _panel(axes: Any, rows: Sequence[Any], x: str, dashed: str, y: str) -> None:
    from matplotlib.ticker import LogFormatter

    places = [getattr(row, x) for row in rows]
    axes.set_prop_cycle(color=PEERS)
    axes.fill_between(places, [row.floor for row in rows], color="0.85", label="below the floor")
    for name in rows[0].times:
        ours = name in OURS
        style = {"color": OURS[name], "linewidth": 2.4, "zorder": 3} if ours else {"linewidth": 1, "alpha": 0.8}
        dash = "--" if dashed in name else "-"
        axes.plot(places, [row.times[name] for row in rows], dash, marker="o", markersize=3, label=name, **style)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(places, [str(place) for place in places])
    axes.yaxis.set_major_formatter(LogFormatter())
    axes.yaxis.set_minor_formatter(LogFormatter(labelOnlyBase=False))
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(True, which="major", alpha=0.3)
    axes.legend(fontsize=7)
