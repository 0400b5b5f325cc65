"""What `statewise bench prefill` prints and draws."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from statewise.bench.plot import draw
from statewise.bench.prefill import PrefillRow
from statewise.bench.prefill_contenders import OURS, READY


def best_peer(row: PrefillRow) -> tuple[str, float]:
    """The fastest that is not ours and does all of the work, and its time; ("-", nan) if there is none."""
    peers = {name: time for name, time in row.times.items() if name != OURS and not name.endswith(READY)}
    return min(peers.items(), key=lambda item: item[1]) if peers else ("-", math.nan)


def table(rows: Sequence[PrefillRow]) -> Table:
    """A line a point; below it the geometric mean of the ratios, if there are peers."""
    ratios = [best_peer(row)[1] / row.times[OURS] for row in rows]
    known = [ratio for ratio in ratios if not math.isnan(ratio)]
    caption = "no peer runs here"
    if known:
        mean = math.exp(sum(map(math.log, known)) / len(known))
        caption = f"peer / ours: {mean:.2f} in the geometric mean, {min(known):.2f} at least"
    made = Table(
        title="microseconds a layer, convolution and scan, bfloat16", caption=caption, title_justify="left",
        caption_justify="left", box=SIMPLE_HEAD,
    )  # fmt: skip
    headers = ("tokens", "sequences", "initial", "floor", "ours", "of floor", "ours, conv", "best peer", "its time")
    for header in (*headers, "peer / ours"):
        made.add_column(header, justify="right", no_wrap=True)
    for row, ratio in zip(rows, ratios, strict=True):
        ours, (name, time) = row.times[OURS], best_peer(row)
        made.add_row(
            str(row.tokens), str(row.sequences), "yes" if row.has_initial else "no", f"{row.floor:.1f}", f"{ours:.1f}",
            f"{row.floor / ours:.0%}", f"{row.convolutions[OURS]:.1f}", name, f"{time:.1f}", f"{ratio:.2f}",
        )  # fmt: skip
    return made


def errors_table(errors: dict[str, tuple[float, float]]) -> Table:
    """Relative errors against float64."""
    made = Table(title="relative error against float64", title_justify="left", box=SIMPLE_HEAD)
    for header in ("scan", "outputs", "final states"):
        made.add_column(header, no_wrap=True)
    for name, (outputs, states) in errors.items():
        made.add_row(name, f"{outputs:.1e}", f"{states:.1e}")
    return made


def plot_prefill(rows: Sequence[PrefillRow], path: Path, title: str) -> None:
    """Write a PNG: time over tokens, a column a number of sequences, a row without and one with initial states.

    Raises ConfigError as `statewise.bench.plot.draw` does.
    """
    counts = list(dict.fromkeys(row.sequences for row in rows))
    panels: list[list[tuple[str, Sequence[Any]]]] = []
    for has_initial in dict.fromkeys(row.has_initial for row in rows):
        states = "from initial states" if has_initial else "from zeros"
        line = [(f"{count} sequence{'s' * (count > 1)}, {states}", [
            row for row in rows if row.sequences == count and row.has_initial == has_initial
        ]) for count in counts]  # fmt: skip
        panels.append([*line])
    draw(panels, path, title, x="tokens", dashed="fla")
