"""Time whole-model decode: the plain step and checkpointed decoding through the engine, beside other engines.

A preset has the shape of a released model and random weights, so nothing is downloaded. The ceiling is printed first.
"""

import argparse
import json
import os
import platform
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from statewise.bench.presets import PRESETS, preset_folder, read_preset
from statewise.cli.bench_layer import add_output_options, console, expect_outputs, expect_rates
from statewise.cli.options import add_engine_options, add_model, engine_config
from statewise.config import EngineConfig, ModelConfig, format_bytes
from statewise.engine.budget import free_memory
from statewise.engine.plan import Plan, device_of
from statewise.errors import ConfigError, MemoryBudgetError
from statewise.eval.provenance import machine, versions
from statewise.models.families import read_config
from statewise.models.weights import load_model

if TYPE_CHECKING:
    from statewise.bench.decode_report import DecodeRow

# Fields of EngineConfig that the benchmark sets itself. All others are flags here, and go to both modes.
OWN = (
    "max_batch", "state_dtype", "memory", "typical_length", "state_slots", "kv_blocks", "max_context", "device",
    "poison",
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    model = parser.add_mutually_exclusive_group(required=True)
    listed = "; ".join(f"{name} ({meaning})" for name, meaning in PRESETS.items())
    model.add_argument("--preset", metavar="NAME", help=f"random weights in the shape of: {listed}")
    add_model(model, "--model")
    parser.add_argument(
        "--batch", type=int, nargs="+", default=[1, 8, 32, 128, 256, 512], metavar="N", help="(default 1 to 512)"
    )
    parser.add_argument("--context", type=int, default=512, metavar="L", help="tokens of a prompt (default 512)")
    parser.add_argument("--tokens", type=int, default=128, metavar="T", help="steps that are timed (default 128)")
    parser.add_argument("--state-dtype", nargs="+", default=["float32"], metavar="DTYPE", help="(default float32)")
    parser.add_argument("--device", default=None, help="cpu or cuda (default: cuda where torch sees a GPU)")
    parser.add_argument(
        "--bandwidth",
        type=float,
        metavar="BYTES",
        help="read bandwidth in bytes a second, for the ceiling (default: 4.4e12 on an H200, else a copy is timed)",
    )
    parser.add_argument(
        "--matrix-rate",
        type=float,
        metavar="OPS",
        help="operations a second of products in the weights' dtype, for the bound "
        "(default: 7.9e14 in 16 bits on an H200, else a product is timed)",
    )
    parser.add_argument(
        "--shares", action="store_true", help="also report what part of a step each kind of layer takes, and the host"
    )
    parser.add_argument(
        "--peer",
        nargs="+",
        choices=["transformers", "vllm"],
        default=[],
        metavar="PEER",
        help="also time transformers (generate, over the same weights) or vllm (random weights of its own)",
    )
    parser.add_argument(
        "--vllm",
        action="append",
        type=_name_and_value,
        default=[],
        metavar="NAME=VALUE",
        help="an option of vllm.LLM, its value in JSON or a word (repeatable)",
    )
    add_output_options(parser)
    add_engine_options(parser, leave_out=OWN)


def _name_and_value(text: str) -> tuple[str, Any]:
    name, found, value = text.partition("=")
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE, like max_num_batched_tokens=8192")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def run(arguments: argparse.Namespace) -> int:
    from statewise.bench.decode import Load, fitted
    from statewise.bench.decode_report import ceiling_table, left_out_lines, shares_table, table
    from statewise.bench.decode_session import Session, make_cases
    from statewise.bench.decode_shares import EXTRA_TOKENS
    from statewise.bench.rates import rates_of

    bases = _bases(arguments)
    device = device_of(bases[0])
    folder = arguments.model or preset_folder(arguments.preset)
    model = read_preset(arguments.preset) if arguments.preset else read_config(folder)
    loads = [Load(batch, arguments.context, arguments.tokens) for batch in dict.fromkeys(arguments.batch)]
    cases = make_cases(model, bases, loads, extra=EXTRA_TOKENS if arguments.shares else 0)
    _, plan = fitted(model, cases[0].configs["statewise"])
    weights = _weights(arguments, model, plan, device)
    rates = rates_of(device, plan.dtype, arguments.bandwidth, arguments.matrix_rate)
    session, screen = Session(model, weights, cases, rates), console()
    screen.print(_title(arguments, plan, device), markup=False, highlight=False)
    screen.print(ceiling_table(session.rows))

    for row in session.measure_modes(_memory(device, plan.weight_bytes), arguments.shares):
        print(f"{row.state_dtype}, batch {row.batch}: {_said(row)}", file=sys.stderr)
    if "transformers" in arguments.peer:
        session.measure_transformers(folder)
    if "vllm" in arguments.peer:
        weights.clear()
        session.measure_vllm(folder, dict(arguments.vllm))

    for base in bases:
        measured = [row for row in session.rows if row.state_dtype == base.state_dtype]
        screen.print(table(measured), *left_out_lines(measured), sep="\n", markup=False, highlight=False)
    if arguments.shares:
        screen.print(shares_table([row for row in session.rows if row.shares]))
    about = {"device": _name(device), "first_plan": dict(plan.rows())}
    _write(arguments, session.rows, about | asdict(rates))
    return 0


def _said(row: "DecodeRow") -> str:
    """A row's result while the others still run."""
    if not row.timings:
        return "; ".join(row.left_out.values())
    return ", ".join(f"{name} {time:.2f} ms" for name, time in row.times.items())


def _title(arguments: argparse.Namespace, plan: Plan, device: torch.device) -> str:
    name = arguments.preset or arguments.model
    dtype = str(plan.dtype).removeprefix("torch.")
    return (
        f"{name}, {format_bytes(plan.weight_bytes)} of weights in {dtype}, prompts of {arguments.context} tokens, "
        f"{_name(device)}, backend {plan.backend}"
    )


def _name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"{platform.machine()} CPU"


def _bases(arguments: argparse.Namespace) -> list[EngineConfig]:
    """The engine options of each state dtype, and everything that can be told to be wrong before any work."""
    from statewise.bench.decode_peers import expect_importable

    for name in ("context", "tokens"):
        if getattr(arguments, name) < 1:
            raise ConfigError(f"{name} is {getattr(arguments, name)}, expected at least 1")
    if min(arguments.batch) < 1:
        raise ConfigError(f"batch is {min(arguments.batch)}, expected at least 1")
    expect_rates(arguments)
    if arguments.checkpoint_interval == 1:
        raise ConfigError("checkpoint_interval is 1, the plain step itself; expected 2 to 64")
    if arguments.vllm and "vllm" not in arguments.peer:
        raise ConfigError("vllm options are given, but vllm is no --peer")
    expect_importable(arguments.peer)
    expect_outputs(arguments)
    device = arguments.device or ("cuda" if torch.cuda.is_available() else "cpu")
    dtypes = dict.fromkeys(arguments.state_dtype)
    bases = [engine_config(arguments, max_batch=1, state_dtype=dtype, device=device) for dtype in dtypes]
    if device_of(bases[0]).type == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device is cuda, but torch sees no GPU here; possible: cpu")
    return bases


def _weights(arguments: argparse.Namespace, model: ModelConfig, plan: Plan, device: torch.device) -> dict[str, Tensor]:
    """Random ones, or a checkpoint's. Raises MemoryBudgetError where they do not fit."""
    from statewise.bench.decode_weights import random_weights

    there = _memory(device)
    if plan.weight_bytes > there:
        raise MemoryBudgetError(
            f"the weights take {format_bytes(plan.weight_bytes)}, but {device.type} has {format_bytes(there)}"
        )
    if arguments.model:
        return dict(load_model(arguments.model, model, plan.ops, plan.dtype, device).state_dict())
    return random_weights(model, plan.dtype, device)


def _memory(device: torch.device, weight_bytes: int = 0) -> int:
    """Bytes that are free on a GPU, weights loaded or not; all that a CPU has, less the weights."""
    if device.type == "cuda":
        return free_memory(device)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") - weight_bytes


def _write(arguments: argparse.Namespace, rows: "list[DecodeRow]", more: dict[str, Any]) -> None:
    """The files that are asked for."""
    from statewise.bench.decode_report import plot_decode

    if arguments.json:
        options = {key: str(value) if isinstance(value, Path) else value for key, value in vars(arguments).items()}
        report = versions() | machine() | more | {"options": options, "rows": [row.report() for row in rows]}
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(report, file, indent=1)
    if arguments.plot:
        plot_decode(rows, arguments.plot, f"decode of {arguments.preset or arguments.model}, {more['device']}")
