"""How far 16-bit and float32 states wander from float64 over thousands of tokens, by how often they are written.

`statewise eval drift`. One mixer with random weights and inputs, the same for every way to keep its state.
"""

import argparse
import json
import platform
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from statewise import __version__
from statewise.cli.options import expect_writable
from statewise.config import MAX_CHECKPOINT_INTERVAL
from statewise.errors import ConfigError

if TYPE_CHECKING:
    from statewise.eval.drift import Drift, Way
    from statewise.verify.target import Target

DTYPES = ("float32", "bfloat16", "float16")
INTERVALS = (1, 4, 16, 64)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--shape",
        default="nemotron-h-8b",
        metavar="NAME",
        help="a released model's mixer (an unknown name lists them), or HEADS,HEAD_DIM,GROUPS,STATE_SIZE "
        "(default nemotron-h-8b)",
    )
    parser.add_argument("--tokens", type=int, default=10_000, metavar="N", help="default 10000")
    parser.add_argument("--rows", type=int, default=1, metavar="N", help="requests (default 1)")
    parser.add_argument("--dtype", choices=DTYPES, default="float32", help="of activations (default float32)")
    parser.add_argument("--state-dtype", nargs="+", choices=DTYPES, default=list(DTYPES), metavar="DTYPE")
    parser.add_argument("--checkpoint-interval", type=int, nargs="+", default=list(INTERVALS), metavar="W")
    parser.add_argument(
        "--dt-range",
        type=float,
        nargs=2,
        default=[1e-3, 1e-1],
        metavar=("LOW", "HIGH"),
        help="time steps of the heads; the smaller, the longer they remember (default 0.001 0.1, Mamba-2's own)",
    )
    parser.add_argument("--backend", choices=["auto", "triton", "torch"], default="auto", help="default auto")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="default cpu")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results there")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="also draw them there, error over tokens, as a PNG")


def run(arguments: argparse.Namespace) -> int:
    _expect_possible(arguments)
    from statewise.eval.drift import measure, ways

    target = _target(arguments)
    found = ways([getattr(torch, name) for name in arguments.state_dtype], arguments.checkpoint_interval)
    console = Console(width=None if sys.stdout.isatty() else 160)
    with Progress(console=Console(stderr=True), disable=not sys.stderr.isatty()) as bar, torch.inference_mode():
        task = bar.add_task("tokens", total=arguments.tokens)
        done: Callable[[int], None] = lambda token: bar.update(task, completed=token)  # noqa: E731
        drifts = measure(target, found, arguments.tokens, arguments.rows, tuple(arguments.dt_range), done)
    console.print(_table(drifts, arguments.checkpoint_interval, arguments.tokens))
    if arguments.json:
        arguments.json.write_text(json.dumps(_report(arguments, target, drifts), indent=1) + "\n", encoding="utf-8")
    if arguments.plot:
        from statewise.eval.drift_plot import plot

        slowest = f"dt {arguments.dt_range[0]:g} to {arguments.dt_range[1]:g}"
        plot(drifts, arguments.plot, f"state against float64, {target.shape}, {slowest}, {arguments.dtype} activations")
    return 0


def _expect_possible(arguments: argparse.Namespace) -> None:
    for name in ("tokens", "rows"):
        if getattr(arguments, name) < 1:
            raise ConfigError(f"{name} is {getattr(arguments, name)}, expected at least 1")
    for interval in arguments.checkpoint_interval:
        if not 1 <= interval <= MAX_CHECKPOINT_INTERVAL:
            raise ConfigError(f"checkpoint_interval is {interval}, expected 1 to {MAX_CHECKPOINT_INTERVAL}")
    low, high = arguments.dt_range
    if not 0 < low <= high:
        raise ConfigError(f"dt_range is {low:g} to {high:g}, expected two positive numbers, the smaller first")
    if arguments.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device is cuda, and torch sees no GPU here")
    for name in ("json", "plot"):
        if getattr(arguments, name):
            expect_writable(name, getattr(arguments, name))


def _target(arguments: argparse.Namespace) -> "Target":
    from statewise.ops.backend import resolve
    from statewise.verify.target import Target, read_shape

    name, mamba = read_shape(arguments.shape)
    target = Target(
        name=name,
        mamba=mamba,
        dtype=getattr(torch, arguments.dtype),
        state_dtype=torch.float32,
        window=max(arguments.checkpoint_interval),
        device=torch.device(arguments.device),
    )
    ops, reason = resolve(arguments.backend, target.device, target.needs(arguments.rows))
    print(f"backend   {reason}", file=sys.stderr)
    return target.with_ops(ops)


def _table(drifts: "dict[Way, list[Drift]]", intervals: list[int], tokens: int) -> Table:
    title = f"relative error of the state after {tokens:,} tokens, over all heads (and of the worst head)"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    table.add_column("state", no_wrap=True)
    for interval in intervals:
        table.add_column("plain" if interval == 1 else f"W {interval}", justify="right", no_wrap=True)
    last = {(way.name, way.window): points[-1] for way, points in drifts.items()}
    for name in dict.fromkeys(way.name for way in drifts):
        points = [last[name, interval] for interval in intervals]
        table.add_row(name, *(f"{point.state:.1e} ({point.worst_head:.1e})" for point in points))
    return table


def _report(arguments: argparse.Namespace, target: "Target", drifts: "dict[Way, list[Drift]]") -> dict[str, Any]:
    options = {
        k: str(v) if isinstance(v, Path) else v for k, v in vars(arguments).items() if k not in ("command", "what")
    }
    return {
        "statewise": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": torch.cuda.get_device_name() if target.device.type == "cuda" else platform.machine(),
        "backend": target.tested.name,
        "options": options,
        "ways": [
            {
                "state_dtype": str(way.state_dtype).removeprefix("torch."),
                "window": way.window,
                "stochastic": way.stochastic,
                "drift": [vars(point) for point in points],
            }
            for way, points in drifts.items()
        ],
    }
