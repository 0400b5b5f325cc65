"""Time the decode step on this GPU: plain and checkpointed, ours and every peer that can be imported."""

import argparse
import json
import platform
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from statewise import __version__
from statewise.errors import ConfigError

if TYPE_CHECKING:
    from statewise.bench.op import Row

SUMMARY = "time the decode step beside its peers (needs a GPU)"
H200_READ_BANDWIDTH = 4.4e12  # bytes a second, measured with a kernel that only reads


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", choices=["op"], help="op: the decode step of one layer")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64, 128, 256], metavar="N")
    parser.add_argument("--state-dtype", nargs="+", default=["float32", "bfloat16"], metavar="DTYPE")
    parser.add_argument("--heads", type=int, default=128, metavar="H", help="heads (default 128)")
    parser.add_argument("--head-dim", type=int, default=64, metavar="P", help="channels a head (default 64)")
    parser.add_argument("--groups", type=int, default=8, metavar="G", help="groups of B and C (default 8)")
    parser.add_argument("--state-size", type=int, default=128, metavar="N", help="states a channel (default 128)")
    parser.add_argument("--checkpoint-interval", type=int, default=16, metavar="W", help="2 to 64 (default 16)")
    parser.add_argument(
        "--bandwidth",
        type=float,
        default=H200_READ_BANDWIDTH,
        metavar="BYTES",
        help="read bandwidth in bytes a second, for the floor (default 4.4e12, an H200)",
    )
    parser.add_argument("--json", metavar="FILE", help="also write the results there")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="also draw them there, time over batch, as a PNG")


def run(arguments: argparse.Namespace) -> int:
    if not torch.cuda.is_available():
        raise ConfigError("bench times kernels on a CUDA GPU, and torch sees none here")
    from statewise.bench.contenders import contenders
    from statewise.bench.op import check, measure
    from statewise.bench.workload import Shape

    shape = Shape(
        arguments.heads, arguments.head_dim, arguments.groups, arguments.state_size, arguments.checkpoint_interval
    )
    rows: list[Row] = []
    console = Console(width=None if sys.stdout.isatty() else 160)
    for name in arguments.state_dtype:
        dtype = getattr(torch, name)
        found = check(contenders(), shape, dtype, say=lambda line: print(line, file=sys.stderr))
        kinds = {contender.name: (contender.kind, contender.ours) for contender in found}
        measured = [measure(found, shape, batch, dtype, arguments.bandwidth) for batch in arguments.batch]
        console.print(_table(name, measured, kinds))
        rows += measured
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(_report(arguments, rows), file, indent=1)
    if arguments.plot:
        from statewise.bench.plot import plot

        plot(rows, arguments.plot, f"decode step of one layer, {torch.cuda.get_device_name()}")
    return 0


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


def _report(arguments: argparse.Namespace, rows: "list[Row]") -> dict[str, object]:
    import triton

    return {
        "statewise": __version__,
        "torch": torch.__version__,
        "triton": triton.__version__,
        "cuda": torch.version.cuda,
        "gpu": torch.cuda.get_device_name(),
        "python": platform.python_version(),
        "options": {key: value for key, value in vars(arguments).items() if key not in ("command", "json", "plot")},
        "rows": [asdict(row) for row in rows],
    }
