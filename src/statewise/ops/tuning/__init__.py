"""Which launch parameters a step takes: those measured on this GPU, those shipped for it, or the op's rule.

In this order, for each op and shape by itself: the user's table (the file that STATEWISE_TUNING names, or else the one
that ``statewise tune`` writes), the table in this folder, None, which leaves it to the rule. Files are read once, and a
step asks a dictionary. A table for another GPU is not used; where the device is a CPU (Triton's interpreter), none is.
"""

import functools
import os
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch

from statewise.errors import ConfigError
from statewise.ops.tuning.table import SHAPES, StepShape, Table, read, read_if_there

__all__ = ["SHAPES", "StepShape", "check", "lookup", "origin", "use", "user_path"]

VARIABLE = "STATEWISE_TUNING"
SHIPPED = Path(__file__).parent

Launch = TypeVar("Launch")

_instead: Sequence[Table] | None = None  # of all tables, within `use`


def lookup(
    op: str, make: Callable[..., Launch], rows: int, shape: StepShape, device: torch.device | None
) -> Launch | None:
    """``make(**parameters)`` for so many (row, head) pairs on ``device``, or None: the op's rule holds.

    The first call for an op, shape and device reads the tables, and raises ConfigError if the user's cannot be used;
    `check` does so at start.
    """
    if device is None or device.type != "cuda":
        return None
    bounds, launches = _steps(op, make, shape, device)
    place = bisect_left(bounds, rows)
    return launches[place] if place < len(launches) else None


def check(device: torch.device) -> None:
    """Read the user's table, for a GPU that is here. Raises ConfigError if there is one and it cannot be used."""
    if device.type == "cuda" and torch.cuda.is_available():
        _user()


def origin(op: str, shape: StepShape, device: torch.device) -> str:
    """Where the parameters of an op and shape come from, for people."""
    found = _find(op, shape, device)
    if found is None:
        return "rule"
    table, path = found
    when = f" ({table.measured})" if table.measured else ""
    return f"shipped table for {table.gpu}{when}" if path is None else f"measured on this GPU{when}, {path}"


@contextmanager
def use(tables: Sequence[Table]) -> Iterator[None]:
    """Within it, these are all the tables that there are. For measuring and for tests; not for use in a step."""
    global _instead
    before, _instead = _instead, tables
    _steps.cache_clear()
    try:
        yield
    finally:
        _instead = before
        _steps.cache_clear()


def user_path() -> Path:
    """Where the user's table is, or would be."""
    named = os.environ.get(VARIABLE)
    if named:
        return Path(named).expanduser()
    config = os.environ.get("XDG_CONFIG_HOME")
    return (Path(config) if config else Path.home() / ".config") / "statewise" / "tuning.json"


@functools.cache
def _steps(
    op: str, make: Callable[..., Any], shape: StepShape, device: torch.device
) -> tuple[tuple[int, ...], tuple[Any, ...]]:
    """Up to how many rows each step of the table holds, and its launch."""
    found = _find(op, shape, device)
    if found is None:
        return (), ()
    steps = found[0].steps
    return tuple(rows for rows, _ in steps), tuple(None if held is None else make(**held) for _, held in steps)


def _find(op: str, shape: StepShape, device: torch.device) -> tuple[Table, Path | None] | None:
    """The table in use, and its file if it is the user's."""
    gpu = torch.cuda.get_device_name(device)
    sources = [(_user(), user_path()), (_shipped(), None)] if _instead is None else [(_instead, None)]
    for tables, path in sources:
        for table in tables:
            if table.fits(gpu, op, shape):
                return table, path
    return None


@functools.cache
def _user() -> tuple[Table, ...]:
    path, is_named = user_path(), bool(os.environ.get(VARIABLE))
    try:
        return read(path) if is_named else read_if_there(path)
    except ConfigError as error:
        remedy = f"{VARIABLE} names it" if is_named else f"remove it or run `statewise tune`; {VARIABLE} names another"
        raise ConfigError(f"{error} ({remedy})") from error


@functools.cache
def _shipped() -> tuple[Table, ...]:
    return tuple(table for path in sorted(SHIPPED.glob("*.json")) for table in read(path))
