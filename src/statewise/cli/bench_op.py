"""Time the decode step of one layer on this GPU, or its whole mixer: ours and every peer that can be imported."""

import argparse
import sys
from functools import partial
from typing import TYPE_CHECKING

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from statewise.cli.bench_layer import (
    add_layer_options,
    console,
    expect_gpu,
    expect_outputs,
    expect_rates,
    shape_of,
    write_report,
)
from statewise.cli.options import KERNEL_STATES, expect_positive
from statewise.errors import BackendError

if TYPE_CHECKING:
    from statewise.bench.contenders import Contender
    from statewise.bench.op import Row
    from statewise.bench.workload import Shape


def add_arguments(parser: argparse.ArgumentParser) -> None:
    batches = [1 << i for i in range(11)]
    parser.add_argument("--batch", type=int, nargs="+", default=batches, metavar="N", help="(default 1 to 1024)")
    parser.add_argument(
        "--state-dtype",
        nargs="+",
        choices=KERNEL_STATES,
        default=["float32", "bfloat16"],
        metavar="DTYPE",
        help=f"of {', '.join(KERNEL_STATES)} (default float32 bfloat16)",
    )
    add_layer_options(parser)


def run(arguments: argparse.Namespace) -> int:
    shape = shape_of(arguments)
    expect_positive("batch", arguments.batch)
    expect_rates(arguments)
    expect_outputs(arguments)
    expect_gpu()
    rows = _measure(arguments, shape, console())
    write_report(arguments, rows)
    if arguments.plot:
        from statewise.bench.plot import plot

        what = "mixer" if arguments.what == "mixer" else "layer"
        plot(rows, arguments.plot, f"decode step of one {what}, {torch.cuda.get_device_name()}")
    return 0


def _measure(arguments: argparse.Namespace, shape: "Shape", screen: Console) -> "list[Row]":
    """Raises BackendError if one of ours is wrong here, or if no batch fits in memory."""
    from statewise.bench import mixer, op, workload
    from statewise.bench.contenders import contenders

    is_mixer = arguments.what == "mixer"
    make = mixer.MixerWorkload if is_mixer else workload.Workload
    count = mixer.mixer_floor_bytes if is_mixer else workload.floor_bytes
    error = mixer.mixer_error if is_mixer else op.error
    say, rows = partial(print, file=sys.stderr), []
    replays = op.REPLAYS + -op.REPLAYS % shape.window  # whole windows: each has one flush a slot
    for name in arguments.state_dtype:
        dtype = getattr(torch, name)
        candidates = mixer.mixer_contenders() if is_mixer else contenders()

        def wrong_by(contender: "Contender", batch: int, dtype: torch.dtype = dtype) -> float:
            return error(contender, shape, dtype, batch)

        found = op.check(candidates, wrong_by, (1, shape.window), say)  # one kernel at batch 1, two at W

        def row_of(batch: int, dtype: torch.dtype = dtype, found: "list[Contender]" = found) -> "Row":
            w = make(shape, batch, dtype, workload.layers_for(shape, batch, dtype))
            return op.measure(found, w, count(shape, batch, dtype) / arguments.bandwidth * 1e6, replays)

        kinds = {contender.name: (contender.kind, contender.ours) for contender in found}
        measured = []
        for batch in arguments.batch:
            try:
                measured.append(row_of(batch))
            except torch.OutOfMemoryError:
                say(f"batch {batch} is left out: it does not fit in the GPU's memory")
                torch.cuda.empty_cache()
        screen.print(_table(name, measured, kinds))
        rows += measured
    if not rows:
        raise BackendError("no batch fits in the GPU's memory, so nothing was measured")
    return rows


def _table(name: str, rows: "list[Row]", kinds: dict[str, tuple[str, bool]]) -> Table:
    table = Table(title=f"microseconds a layer, {name} state", title_justify="left", box=SIMPLE_HEAD)
    headers = [
        "batch",
        "floor",
        "ours",
        "of floor",
        "ours plain",
        "best peer",
        "its time",
        "peer / ours",
        "plain / ours",
    ]
    for header in headers:
        table.add_column(header, justify="right", no_wrap=True)
    for row in rows:
        peers = {peer: time for peer, time in row.times.items() if not kinds[peer][1]}
        best = min(peers, key=lambda peer: peers[peer]) if peers else "-"
        ours, plain = row.times["statewise"], row.times["statewise plain"]
        table.add_row(
            str(row.batch),
            f"{row.floor:.1f}",
            f"{ours:.2f}",
            f"{row.floor / ours:.0%}",
            f"{plain:.2f}",
            best,
            f"{peers[best]:.2f}" if peers else "-",
            f"{peers[best] / ours:.2f}" if peers else "-",
            f"{plain / ours:.2f}",
        )
    return table
