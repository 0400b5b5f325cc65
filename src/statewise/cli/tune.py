"""Measure launches of the decode step on this GPU, at the shape of your model, and write the best to a table.

Every later run on this machine reads the table when it starts; nothing is tuned while serving.
"""

import argparse
import os
import sys
from datetime import date
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from statewise import __version__
from statewise.cli.options import KERNEL_STATES, add_model, expect_positive, expect_writable
from statewise.errors import BackendError, ConfigError
from statewise.models.families import read_config
from statewise.ops.backend import gpu_obstacle
from statewise.ops.tuning import user_path
from statewise.ops.tuning.table import PARAMETERS, merged, read_if_there, write

if TYPE_CHECKING:
    from statewise.bench.tune import Curve
    from statewise.bench.workload import Shape

SUMMARY = "measure launch parameters on this GPU and write them to a table"
# Flag -> its default and what it is. None is given to argparse: a model and a shape exclude each other.
DIMENSIONS = {
    "heads": (128, "heads"),
    "head_dim": (64, "channels a head"),
    "groups": (8, "groups of B and C"),
    "state_size": (128, "states"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser, "--model", "; its shape is taken, for which config.json is enough")
    for name, (default, meaning) in DIMENSIONS.items():
        flag = "--" + name.replace("_", "-")
        parser.add_argument(flag, type=int, metavar="N", help=f"{meaning} (default {default})")
    parser.add_argument("--checkpoint-interval", type=int, default=16, metavar="W", help="W (default 16)")
    parser.add_argument(
        "--state-dtype",
        nargs="+",
        default=["float32", "bfloat16"],
        metavar="DTYPE",
        help=f"of {', '.join(KERNEL_STATES)}",
    )
    ops = list(PARAMETERS)
    parser.add_argument("--op", nargs="+", choices=ops, default=ops, metavar="OP", help=f"of {', '.join(ops)}")
    parser.add_argument("--batch", type=int, nargs="+", default=[1 << i for i in range(10)], metavar="N")
    parser.add_argument(
        "--jobs",
        type=int,
        default=min(8, os.cpu_count() or 1),
        metavar="N",
        help="processes that compile (default: 8, or as many as there are CPUs if fewer)",
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="the table; what it holds of other GPUs and shapes stays (default: where every run looks for it)",
    )


def run(arguments: argparse.Namespace) -> int:
    shape = _shape(arguments)
    _expect_possible(arguments)
    output = arguments.output or user_path()
    there = read_if_there(output)
    if arguments.output is not None:
        expect_writable("output", output)
    _expect_gpu()
    if arguments.output is None:
        _make_folder(output.parent)
        expect_writable("output", output)
    from statewise.bench.tune import tune
    from statewise.bench.tune_candidates import named
    from statewise.bench.tune_compile import compile_all

    say = partial(print, file=sys.stderr)
    dtypes = [getattr(torch, name) for name in dict.fromkeys(arguments.state_dtype)]
    if arguments.jobs > 1:
        say(f"compiling in {arguments.jobs} processes")
        compile_all(shape, dtypes, arguments.op, arguments.jobs)
    console = Console(width=None if sys.stdout.isatty() else 160)
    gpu, measured = torch.cuda.get_device_name(), _measured()
    for dtype in dtypes:
        curves = tune(shape, dtype, arguments.batch, say, named(arguments.op))
        for curve in curves:
            console.print(report(curve, str(dtype).removeprefix("torch.")))
        there = merged(there, [curve.table(shape.heads, gpu, measured) for curve in curves])
        write(output, there)
    console.print(f"written to {output}", highlight=False, soft_wrap=True)
    return 0


def report(curve: "Curve", state_dtype: str) -> Table:
    """Each batch: what is chosen and what the rule says, with their times."""
    from statewise.bench.tune_candidates import label

    op = curve.tunable.op
    title = f"{op}, {state_dtype} state: microseconds a layer"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    for header in ("batch", "chosen", "its time", "rule", "its time", "rule / chosen"):
        table.add_column(header, justify="right", no_wrap=True)
    for point, chosen in zip(curve.points, curve.chosen, strict=True):
        time, rule = point.times[chosen], point.times[point.rule]
        table.add_row(
            str(point.batch),
            label(op, chosen),
            f"{time:.2f}",
            label(op, point.rule),
            f"{rule:.2f}",
            f"{rule / time:.3f}",
        )
    return table


def _shape(arguments: argparse.Namespace) -> "Shape":
    """Raises ConfigError for a shape that no mixer has."""
    from statewise.bench.workload import Shape

    given = {name: getattr(arguments, name) for name in DIMENSIONS if getattr(arguments, name) is not None}
    if arguments.model is not None:
        if given:
            flags = ", ".join("--" + name.replace("_", "-") for name in given)
            raise ConfigError(f"--model says the shape, and so do {flags}: give one of them")
        mamba = read_config(arguments.model).mamba
        given = {name: getattr(mamba, name) for name in DIMENSIONS}
    sizes = {name: given.get(name, default) for name, (default, _) in DIMENSIONS.items()}
    return Shape(**sizes, window=arguments.checkpoint_interval)


def _expect_possible(arguments: argparse.Namespace) -> None:
    for name in arguments.state_dtype:
        if name not in KERNEL_STATES:
            raise ConfigError(f"state_dtype is {name!r}, expected one of {', '.join(KERNEL_STATES)}")
    expect_positive("batch", arguments.batch)
    expect_positive("jobs", [arguments.jobs])


def _expect_gpu() -> None:
    if not torch.cuda.is_available():
        raise ConfigError("tune measures kernels on a CUDA GPU, and torch sees none here")
    obstacle = gpu_obstacle(torch.device("cuda"))
    if obstacle:
        raise BackendError(f"tune measures the triton backend's kernels: {obstacle}")


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"output is in {folder}, which cannot be made: {error.strerror}") from error


def _measured() -> str:
    import triton

    return f"{date.today()}, statewise {__version__}, torch {torch.__version__}, Triton {triton.__version__}"
