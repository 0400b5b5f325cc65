"""Show what a model is, what its caches cost, how many requests fit, and every choice made. Needs no weights."""

import argparse
from itertools import groupby

import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from statewise.cache.window import predicted_replays
from statewise.cli.options import add_engine_options, add_model, engine_config
from statewise.config import EngineConfig, ModelConfig, format_bytes
from statewise.engine.plan import Plan, device_of, make_plan, needs_of
from statewise.models.families import read_config
from statewise.ops.backend import listing, obstacles
from statewise.ops.checkpointed_step.scratch import block_w
from statewise.ops.tuning import StepShape, origin

SUMMARY = "the memory plan of a model, how many requests fit, and each resolved choice"
LENGTHS = (512, 2048, 8192, 32768, 131072)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser, more="; config.json is enough")
    add_engine_options(parser)


def run(arguments: argparse.Namespace) -> int:
    model = read_config(arguments.model)
    config = engine_config(arguments)
    plan = make_plan(model, config)
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    rows = [*_model_rows(model), *plan.rows(), *_launch_rows(model, config, plan)]
    for name, value in [*rows, *_other_backends(model, config, plan), *_traffic_rows(plan)]:
        table.add_row(name, escape(value))
    console = Console(highlight=False)
    console.print(table)
    console.print()
    console.print(_requests_table(plan, config))
    console.print("at most: with --typical-length set to the tokens, and any --max-batch", style="dim")
    return 0


def _requests_table(plan: Plan, config: EngineConfig) -> Table:
    """How many requests run at once, by their length."""
    table = Table("tokens a request", "at once", "limited by", "at most", box=None, padding=(0, 2, 0, 0))
    for tokens in _lengths(plan, config):
        count, limit = plan.at_once(tokens)
        table.add_row(f"{tokens}" if plan.kv.layers else "any", f"{count}", limit, f"{plan.most_at_once(tokens)}")
    return table


def _lengths(plan: Plan, config: EngineConfig) -> list[int]:
    """Those of the table. Without attention layers the length does not matter."""
    if not plan.kv.layers:
        return [1]
    limit = plan.wanted_context or plan.max_context or LENGTHS[-1]
    return sorted({length for length in (*LENGTHS, config.typical_length) if length < limit} | {limit})


def _model_rows(model: ModelConfig) -> list[tuple[str, str]]:
    mamba, attention = model.mamba, model.attention
    letters = {"mamba": "M", "attention": "*", "mlp": "-", "moe": "E", "mamba+attention": "H"}
    runs = [(letters[kind], len(list(same))) for kind, same in groupby(model.pattern)]
    pattern = "".join(letter if count == 1 else f"{letter}{count}" for letter, count in runs)
    rows = [
        ("architecture", model.architecture),
        (
            "layers",
            f"{len(model.pattern)}: {pattern}   (M Mamba-2, * attention, H both, - MLP, E experts)",
        ),
        (
            "Mamba-2",
            f"{mamba.heads} heads x {mamba.head_dim}, state {mamba.state_size}, {mamba.groups} groups, "
            f"convolution {mamba.conv_width}",
        ),
    ]
    if attention:
        heads, rope = f"{attention.heads} heads x {attention.head_dim}, {attention.kv_heads} KV heads", attention.rope
        encoding = f"RoPE of {rope.rotary_dim} channels, theta {rope.theta:g}" if rope else "no position encoding"
        rows.append(("attention", f"{heads}, {encoding}"))
    if model.moe:
        beside = f", one of {model.moe.shared.inner_size} for all" if model.moe.shared else ""
        rows.append(
            ("experts", f"{model.moe.chosen} of {model.moe.experts} a token, inner size {model.moe.inner_size}{beside}")
        )
    return rows


def _other_backends(model: ModelConfig, config: EngineConfig, plan: Plan) -> list[tuple[str, str]]:
    """Those that were not chosen: whether each could be asked for here, and why not."""
    others = obstacles(device_of(config), needs_of(model, config))
    can, cannot = listing({name: obstacle for name, obstacle in others.items() if name != plan.backend})
    rows = [("by name", "\n".join(can)), ("not possible", "\n".join(cannot))]
    return [(name, value) for name, value in rows if value]


def _launch_rows(model: ModelConfig, config: EngineConfig, plan: Plan) -> list[tuple[str, str]]:
    """Where the launch parameters of the decode step come from, if it is the triton backend's on a GPU."""
    device, mamba = device_of(config), model.mamba
    if plan.backend != "triton" or device.type != "cuda":
        return []
    op = "state_step" if config.checkpoint_interval == 1 else "mixer_step"
    if not torch.cuda.is_available():
        return [("launch parameters", "as the GPU has it: none is here")]
    shape = StepShape(
        mamba.head_dim,
        mamba.state_size,
        plan.mamba.state_dtype.itemsize,
        plan.dtype.itemsize,
        mamba.heads // mamba.groups,
        block_w(config.checkpoint_interval),
        prefetch=True,
    )
    return [("launch parameters", origin(op, shape, device))]


def _traffic_rows(plan: Plan) -> list[tuple[str, str]]:
    """State bytes a token in the steady state: over one interval, after the first."""
    mamba, interval = plan.mamba, plan.mamba.checkpoint_interval
    replayed = predicted_replays(2 * interval, interval) - predicted_replays(interval, interval)
    writes = interval if interval == 1 else 1
    moved = mamba.bytes_moved(steps=interval, state_writes=writes, replayed=replayed) / interval
    plain = 2 * mamba.state_bytes + 2 * mamba.conv_window_bytes
    return [("state traffic", f"{format_bytes(moved)} a token and request; the plain step moves {format_bytes(plain)}")]
