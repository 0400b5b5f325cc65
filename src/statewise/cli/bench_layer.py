"""What the benchmarks of one layer have in common: the layer's shape, the GPU that they need, the report."""

import argparse
import json
import math
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console

from statewise import __version__
from statewise.bench.rates import READ_BANDWIDTH
from statewise.cli.options import expect_writable
from statewise.errors import ConfigError
from statewise.pictures import expect_matplotlib

if TYPE_CHECKING:
    from statewise.bench.workload import Shape


def add_layer_options(parser: argparse.ArgumentParser) -> None:
    """The shape of a layer, the bandwidth that bounds it, and where results go."""
    parser.add_argument("--heads", type=int, default=128, metavar="H", help="heads (default 128)")
    parser.add_argument("--head-dim", type=int, default=64, metavar="P", help="channels a head (default 64)")
    parser.add_argument("--groups", type=int, default=8, metavar="G", help="groups of B and C (default 8)")
    parser.add_argument("--state-size", type=int, default=128, metavar="N", help="states a channel (default 128)")
    parser.add_argument("--checkpoint-interval", type=int, default=16, metavar="W", help="2 to 64 (default 16)")
    parser.add_argument(
        "--bandwidth",
        type=float,
        default=READ_BANDWIDTH["H200"],
        metavar="BYTES",
        help="read bandwidth in bytes a second, for the floor (default 4.4e12, an H200)",
    )
    add_output_options(parser)


def add_output_options(parser: argparse.ArgumentParser) -> None:
    """Where results go besides the screen."""
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results there")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="also draw them there, time over batch, as a PNG")


def shape_of(arguments: argparse.Namespace) -> "Shape":
    """The layer that the options describe."""
    from statewise.bench.workload import Shape

    return Shape(
        arguments.heads, arguments.head_dim, arguments.groups, arguments.state_size, arguments.checkpoint_interval
    )


def expect_rates(arguments: argparse.Namespace) -> None:
    """Raise ConfigError for ``--bandwidth`` or ``--matrix-rate`` of nothing. None leaves it to be measured."""
    for name, unit in {"bandwidth": "bytes", "matrix_rate": "operations"}.items():
        rate = getattr(arguments, name, None)
        if rate is not None and not 0 < rate < math.inf:
            raise ConfigError(f"{name} is {rate}, expected {unit} a second")


def expect_outputs(arguments: argparse.Namespace) -> None:
    """Raise ConfigError where ``--json`` or ``--plot`` could not be written after the work."""
    for option in ("json", "plot"):
        if getattr(arguments, option):
            expect_writable(option, getattr(arguments, option))
    if arguments.plot:
        expect_matplotlib()


def expect_gpu() -> None:
    """Raise ConfigError without a CUDA GPU."""
    if not torch.cuda.is_available():
        raise ConfigError("bench times kernels on a CUDA GPU, and torch sees none here")


def console() -> Console:
    """Standard output, wide where it is no terminal."""
    return Console(width=None if sys.stdout.isatty() else 160)


def write_report(arguments: argparse.Namespace, rows: Sequence[Any], more: dict[str, Any] | None = None) -> None:
    """Write ``--json``, if it is asked for: versions, options, rows (dataclasses or dicts) and ``more``."""
    if not arguments.json:
        return
    import triton

    options = {key: value for key, value in vars(arguments).items() if key not in ("command", "json", "plot")}
    report = {
        "statewise": __version__,
        "torch": torch.__version__,
        "triton": triton.__version__,
        "cuda": torch.version.cuda,
        "gpu": torch.cuda.get_device_name(),
        "python": platform.python_version(),
        "options": options,
        "rows": [asdict(row) for row in rows],
    }
    with open(arguments.json, "w", encoding="utf-8") as file:
        json.dump(report | (more or {}), file, indent=1)
