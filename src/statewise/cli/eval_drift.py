"""How far 16-bit and float32 states wander from float64 over thousands of tokens, by how often they are written.

`statewise eval drift`. One mixer with random weights and inputs, the same for every way to keep its state; or, with
--model, a whole model on solved word problems, and its logits too.
"""

import argparse
import json
import math
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from statewise import __version__
from statewise.cli.options import add_model, expect_writable
from statewise.config import MAX_CHECKPOINT_INTERVAL, EngineConfig
from statewise.demo.questions import MAX_COUNT, word_problems
from statewise.demo.shipped import FOLDER, NAME
from statewise.engine.plan import make_plan
from statewise.errors import ConfigError
from statewise.eval.drift import measured_at
from statewise.models.families import read_config
from statewise.pictures import expect_matplotlib

if TYPE_CHECKING:
    from statewise.eval.drift import Drift, Way
    from statewise.eval.drift_model import ModelDrift
    from statewise.verify.target import Target

DTYPES = ("float32", "bfloat16", "float16")
INTERVALS = (1, 4, 16, 64)
DT_RANGE = (1e-3, 1e-1)
FEWEST_TOKENS = 50  # of a solved word problem, on average over several, whatever the tokenizer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    what = parser.add_mutually_exclusive_group()
    add_model(what, "--model", "; then its logits are measured as well, in float32 activations")
    what.add_argument(
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
        metavar=("LOW", "HIGH"),
        help="time steps of the heads; the smaller, the longer they remember (default 0.001 0.1, Mamba-2's own)",
    )
    parser.add_argument("--backend", choices=["auto", "triton", "torch"], default="auto", help="default auto")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="default cpu")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results there")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="also draw them there, error over tokens, as a PNG")


def run(arguments: argparse.Namespace) -> int:
    _expect_possible(arguments)
    from statewise.eval.drift import ways

    found = ways([getattr(torch, name) for name in arguments.state_dtype], arguments.checkpoint_interval)
    with Progress(console=Console(stderr=True), disable=not sys.stderr.isatty()) as bar, torch.inference_mode():
        task = bar.add_task("tokens", total=arguments.tokens)
        done: Callable[[int], None] = lambda token: bar.update(task, completed=token)  # noqa: E731
        if arguments.model:
            measured = _measure_model(arguments, found, done)
        else:
            measured = _measure_mixer(arguments, found, done)
    console = Console(width=None if sys.stdout.isatty() else 160)
    for title, cell in measured.columns.items():
        console.print(title, highlight=False, soft_wrap=True)  # a table would wrap it to its own width
        console.print(_table(measured.drifts, cell, arguments.checkpoint_interval))
    if arguments.json:
        report = _report(arguments, measured.backend, measured.drifts)
        arguments.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    if arguments.plot:
        from statewise.eval.drift_plot import plot

        plot(measured.drifts, arguments.plot, measured.title, measured.plotted)
    return 0


@dataclass(frozen=True)
class _Measured:
    """The drifts, by which backend, and how they are shown: tables by title with the text of a cell, a picture."""

    drifts: "Mapping[Way, Sequence[Drift | ModelDrift]]"
    backend: str
    columns: Mapping[str, Callable[[Any], str]]
    title: str
    plotted: tuple[str, ...]


def _measure_mixer(arguments: argparse.Namespace, found: "list[Way]", done: Callable[[int], None]) -> _Measured:
    from statewise.eval.drift import measure

    target = _target(arguments)
    slowest = f"dt {arguments.dt_range[0]:g} to {arguments.dt_range[1]:g}"
    title = f"relative error of the state after {arguments.tokens:,} tokens, over all heads (and of the worst head)"
    return _Measured(
        measure(target, found, arguments.tokens, arguments.rows, tuple(arguments.dt_range), done),
        target.tested.name,
        {title: _state_cell},
        f"state against float64, {target.shape}, {slowest}, {arguments.dtype} activations",
        ("state",),
    )


def _measure_model(arguments: argparse.Namespace, found: "list[Way]", done: Callable[[int], None]) -> _Measured:
    from statewise.eval.drift_model import measure_model, texts_of

    folder, tokens = arguments.model, arguments.tokens
    config = EngineConfig(backend=arguments.backend, device=arguments.device, max_batch=arguments.rows)
    plan = make_plan(read_config(folder), config)
    print(f"backend   {plan.backend_reason}", file=sys.stderr)
    texts = texts_of(folder, _documents(arguments.rows, tokens), tokens)
    drifts = measure_model(folder, found, texts, config, done)
    points = measured_at(tokens)
    since = f"tokens {[0, *points][-2]:,} to {tokens:,}"
    return _Measured(
        drifts,
        plan.backend,
        {
            f"relative error of the states after {tokens:,} tokens, over all layers and heads (and of the worst)": (
                _state_cell
            ),
            f"relative error of the logits, {since}": lambda point: f"{point.logits:.1e}",
            f"divergence from the exact next token in nats (likeliest token is another), {since}": (
                lambda point: f"{point.kl:.1e} ({point.flips:.2%})"
            ),
        },
        f"{'one text' if arguments.rows == 1 else f'{arguments.rows} texts'} against float64, "
        f"{folder.name if folder != FOLDER else NAME}, float32 activations",
        ("state", "logits"),
    )


def _documents(rows: int, tokens: int) -> list[list[str]]:
    """Solved problems that were never trained on, different ones for every row, certainly enough of them."""
    each = tokens // FEWEST_TOKENS + 1
    if rows * each > MAX_COUNT:
        raise ConfigError(f"{rows} rows of {tokens} tokens need {rows * each} problems; there are {MAX_COUNT}")
    solved = [f"{problem.prompt} {problem.answer}" for problem in word_problems(rows * each)]
    return [solved[row * each : (row + 1) * each] for row in range(rows)]


def _state_cell(point: Any) -> str:
    return f"{point.state:.1e} ({point.worst_head:.1e})"


def _expect_possible(arguments: argparse.Namespace) -> None:
    for name in ("tokens", "rows"):
        if getattr(arguments, name) < 1:
            raise ConfigError(f"{name} is {getattr(arguments, name)}, expected at least 1")
    for interval in arguments.checkpoint_interval:
        if not 1 <= interval <= MAX_CHECKPOINT_INTERVAL:
            raise ConfigError(f"checkpoint_interval is {interval}, expected 1 to {MAX_CHECKPOINT_INTERVAL}")
    if arguments.model and (arguments.dt_range or arguments.dtype != "float32"):
        raise ConfigError("dt_range and dtype are for a mixer with random weights; a model has its own and float32")
    arguments.dt_range = arguments.dt_range or list(DT_RANGE)
    low, high = arguments.dt_range
    if not 0 < low <= high < math.inf:
        raise ConfigError(f"dt_range is {low:g} to {high:g}, expected two positive numbers, the smaller first")
    if arguments.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device is cuda, and torch sees no GPU here")
    for name in ("json", "plot"):
        if getattr(arguments, name):
            expect_writable(name, getattr(arguments, name))
    if arguments.plot:
        expect_matplotlib()


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


def _table(
    drifts: "Mapping[Way, Sequence[Drift | ModelDrift]]", cell: Callable[[Any], str], intervals: list[int]
) -> Table:
    table = Table(box=SIMPLE_HEAD)
    table.add_column("state", no_wrap=True)
    for interval in intervals:
        table.add_column("plain" if interval == 1 else f"W {interval}", justify="right", no_wrap=True)
    last = {(way.name, way.window): points[-1] for way, points in drifts.items()}
    for name in dict.fromkeys(way.name for way in drifts):
        table.add_row(name, *(cell(last[name, interval]) for interval in intervals))
    return table


def _report(
    arguments: argparse.Namespace, backend: str, drifts: "Mapping[Way, Sequence[Drift | ModelDrift]]"
) -> dict[str, Any]:
    left_out = ("command", "what", *(("shape", "dt_range") if arguments.model else ("model",)))
    options = {k: str(v) if isinstance(v, Path) else v for k, v in vars(arguments).items() if k not in left_out}
    return {
        "statewise": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": torch.cuda.get_device_name() if arguments.device == "cuda" else platform.machine(),
        "backend": backend,
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
