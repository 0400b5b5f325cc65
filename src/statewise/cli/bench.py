"""Time the decode step or a prefill on this GPU: ours and every peer that can be imported."""

import argparse
import json
import platform
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from statewise import __version__
from statewise.errors import ConfigError

if TYPE_CHECKING:
    from statewise.bench.contenders import Contender
    from statewise.bench.op import Row
    from statewise.bench.workload import Shape

SUMMARY = "time the decode step or a prefill beside their peers (needs a GPU)"
H200_READ_BANDWIDTH = 4.4e12  # bytes a second, measured with a kernel that only reads
H200_MATRIX_RATE = 7.9e14  # operations a second of bfloat16 products, measured on random data


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what",
        choices=["op", "mixer", "prefill"],
        help="of one layer. op: the decode step; mixer: with its convolution and norm; prefill: convolution and scan",
    )
    parser.add_argument(
        "--batch", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024], metavar="N"
    )
    parser.add_argument("--tokens", type=int, nargs="+", default=[512, 2048, 8192, 32768], metavar="L", help="prefill")
    parser.add_argument("--sequences", type=int, nargs="+", default=[1, 4, 16, 64], metavar="Q", help="prefill")
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
    parser.add_argument(
        "--matrix-rate",
        type=float,
        default=H200_MATRIX_RATE,
        metavar="OPS",
        help="bfloat16 operations a second, for the floor of prefill (default 7.9e14, an H200)",
    )
    parser.add_argument("--json", metavar="FILE", help="also write the results there")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="also draw them there, time over batch, as a PNG")


def run(arguments: argparse.Namespace) -> int:
    if not torch.cuda.is_available():
        raise ConfigError("bench times kernels on a CUDA GPU, and torch sees none here")
    console = Console(width=None if sys.stdout.isatty() else 160)
    rows, errors = (_prefill if arguments.what == "prefill" else _decode)(arguments, console)
    if arguments.json:
        report = _report(arguments, rows) | ({"errors": errors} if errors else {})
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(report, file, indent=1)
    if arguments.plot:
        if arguments.what == "prefill":
            from statewise.bench.prefill_report import plot_prefill

            plot_prefill(rows, arguments.plot, f"convolution and scan of one layer, {torch.cuda.get_device_name()}")
        else:
            from statewise.bench.plot import plot

            what = "mixer" if arguments.what == "mixer" else "layer"
            plot(
                rows,
                arguments.plot,
                f"decode step of one {what}, {torch.cuda.get_device_name()}",
            )
    return 0


def _shape(arguments: argparse.Namespace) -> "Shape":
    from statewise.bench.workload import Shape

    return Shape(
        arguments.heads, arguments.head_dim, arguments.groups, arguments.state_size, arguments.checkpoint_interval
    )


def _decode(arguments: argparse.Namespace, console: Console) -> tuple["list[Any]", dict[str, Any]]:
    from statewise.bench import mixer, op, workload
    from statewise.bench.contenders import contenders

    is_mixer = arguments.what == "mixer"
    make = mixer.MixerWorkload if is_mixer else workload.Workload
    count = mixer.mixer_floor_bytes if is_mixer else workload.floor_bytes
    error = mixer.mixer_error if is_mixer else op.error
    shape, rows = _shape(arguments), []
    for name in arguments.state_dtype:
        dtype = getattr(torch, name)
        candidates = mixer.mixer_contenders() if is_mixer else contenders()
        say = partial(print, file=sys.stderr)

        def wrong_by(contender: "Contender", batch: int, dtype: torch.dtype = dtype) -> float:
            return error(contender, shape, dtype, batch)

        found = op.check(candidates, wrong_by, (1, shape.window), say)  # one kernel at batch 1, two at W
        kinds = {contender.name: (contender.kind, contender.ours) for contender in found}
        measured = []
        for batch in arguments.batch:
            w = make(shape, batch, dtype, workload.layers_for(shape, batch, dtype))
            measured.append(op.measure(found, w, count(shape, batch, dtype) / arguments.bandwidth * 1e6))
        console.print(_table(name, measured, kinds))
        rows += measured
    return rows, {}


def _prefill(arguments: argparse.Namespace, console: Console) -> tuple["list[Any]", dict[str, Any]]:
    from statewise.bench.prefill import check, measure
    from statewise.bench.prefill_report import errors_table, table

    shape = _shape(arguments)
    checked = check(shape, say=lambda line: print(line, file=sys.stderr))
    console.print(errors_table(checked.errors))
    rows = [
        measure(checked, shape, tokens, sequences, has_initial, arguments.bandwidth, arguments.matrix_rate)
        for has_initial in (False, True)
        for sequences in arguments.sequences
        for tokens in arguments.tokens
        if tokens % sequences == 0
    ]
    console.print(table(rows))
    return rows, checked.errors


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


def _report(arguments: argparse.Namespace, rows: list[Any]) -> dict[str, object]:
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
