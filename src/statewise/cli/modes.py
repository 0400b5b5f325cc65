"""The plain step and checkpointed decoding side by side: options that are fair to both, names, a progress bar."""

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from statewise.cli.options import engine_config
from statewise.config import EngineConfig
from statewise.engine.plan import make_plan
from statewise.errors import ConfigError
from statewise.models.families import read_config


def one_mode(arguments: argparse.Namespace, model: Path) -> EngineConfig:
    """The options of a run in one mode. Prints its plan."""
    _check(arguments)
    config = engine_config(arguments, max_batch=arguments.concurrency)
    print_plan(model, config)
    return config


def both_modes(arguments: argparse.Namespace, model: Path) -> list[EngineConfig]:
    """Both modes' options, checked before either runs, with slots and context that both can have. Prints both plans."""
    _check(arguments)
    if arguments.checkpoint_interval == 1:
        raise ConfigError("checkpoint_interval is 1, the plain step itself; expected 2 to 64")
    shape = read_config(model)
    configs = [
        engine_config(arguments, checkpoint_interval=interval, max_batch=arguments.concurrency)
        for interval in (1, arguments.checkpoint_interval)
    ]
    plans = [make_plan(shape, config) for config in configs]
    contexts = [plan.max_context for plan in plans if plan.max_context is not None]
    slots, context = min(plan.slots for plan in plans), min(contexts, default=None)
    configs = [replace(config, max_batch=slots, max_context=context) for config in configs]
    for config in configs:
        print_plan(model, config)
    return configs


def _check(arguments: argparse.Namespace) -> None:
    for name in ("concurrency", "max_tokens"):
        if getattr(arguments, name) < 1:
            raise ConfigError(f"{name} is {getattr(arguments, name)}, expected at least 1")
    if arguments.concurrency > arguments.max_batched_tokens:
        raise ConfigError(
            f"concurrency is {arguments.concurrency}, "
            f"expected at most max_batched_tokens = {arguments.max_batched_tokens}"
        )


def print_plan(model: Path, config: EngineConfig) -> None:
    """A mode's name and its memory plan, on standard error."""
    lines = [f"  {line}" for line in make_plan(read_config(model), config).lines()]
    print("\n".join([label(config.checkpoint_interval), *lines]), file=sys.stderr)


def label(interval: int) -> str:
    """What a mode is called in tables."""
    return "plain" if interval == 1 else f"checkpointed {interval}"


def progress(console: Console) -> Progress:
    """A bar with a count and the time, gone when it is done."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, transient=True)
