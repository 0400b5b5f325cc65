"""Tables of measured launch parameters as files: reading, checking, writing, merging. Knows neither GPU nor kernel.

A file is JSON, a step a line: a table is of one GPU, op and shape, and its steps say which parameters hold up to how
many rows, where a row is one head of one request (batch * heads). None in place of parameters stands for the op's rule,
and so does whatever lies above the last step: nothing is read into a table that was not measured.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from statewise.config import is_int
from statewise.errors import ConfigError

VERSION = 1

Parameters = Mapping[str, int | bool]


class StepShape(NamedTuple):
    """What decides about a launch beside the number of rows."""

    head_dim: int
    state_size: int
    state_bytes: int  # of a number of the state
    activation_bytes: int
    heads_per_group: int
    block_w: int  # `statewise.ops.checkpointed_step.scratch.block_w`
    prefetch: bool  # the caller's promise

    def of(self, op: str) -> dict[str, int | bool]:
        """The part that tells the tables of an op apart."""
        return {name: getattr(self, name) for name in SHAPES[op]}


_POWERS = tuple(1 << i for i in range(13))
_SWITCH, _WARPS = (False, True), _POWERS[:5]
_TILES = (16, 32, 64, 128)  # the matrix units take no fewer than 16 rows
_OUTPUT = {"fused": _SWITCH, "block_p": _TILES, "num_warps": _WARPS}

# op -> its parameters, and what a kernel can take.
PARAMETERS: dict[str, dict[str, tuple[int | bool, ...]]] = {
    "state_step": {"block_p": _POWERS[:8], "num_warps": _WARPS, "prefetch": _SWITCH},
    "checkpointed_step": _OUTPUT | {"block_h": _POWERS[:7], "coefficient_warps": _WARPS},
    "mixer_step": _OUTPUT | {"block_x": _POWERS[5:], "append_warps": _WARPS},
}
# op -> the fields of StepShape that tell its tables apart. Heads share work in the append kernel alone.
SHAPES: dict[str, tuple[str, ...]] = {
    "state_step": ("head_dim", "state_size", "state_bytes", "prefetch"),
    "checkpointed_step": ("head_dim", "state_size", "state_bytes", "activation_bytes", "block_w", "prefetch"),
    "mixer_step": StepShape._fields,
}


@dataclass(frozen=True)
class Table:
    """One GPU's parameters of one op at one shape. Raises ConfigError for what no kernel can take."""

    gpu: str  # as torch.cuda.get_device_name says it
    op: str
    shape: Mapping[str, int | bool]  # the fields that SHAPES names
    steps: tuple[tuple[int, Parameters | None], ...]  # (rows up to which they hold, parameters), ascending
    measured: str = ""  # when and with what

    def __post_init__(self) -> None:
        _expect(self.op in PARAMETERS, f"op is {self.op!r}, expected one of {', '.join(PARAMETERS)}")
        _expect_names(f"shape of {self.op}", self.shape, SHAPES[self.op])
        for name, value in self.shape.items():
            good = value in _SWITCH if name == "prefetch" else is_int(value) and value > 0
            _expect(good, f"{self.op}: {name} is {value!r}")
        rows = [row for row, _ in self.steps]
        ascending = all(map(is_int, rows)) and all(a < b for a, b in zip([0, *rows], rows, strict=False))
        _expect(bool(rows) and ascending, f"{self.op}: rows are {rows}, expected whole numbers that ascend")
        for _, parameters in self.steps:
            if parameters is not None:
                _expect_parameters(self.op, parameters)

    @property
    def key(self) -> tuple[object, ...]:
        """What a table replaces another by."""
        return self.gpu, self.op, *(self.shape[name] for name in SHAPES[self.op])

    def fits(self, gpu: str, op: str, shape: StepShape) -> bool:
        """Whether it was measured for this."""
        return self.gpu == gpu and self.op == op and self.shape == shape.of(op)


def read(path: Path) -> tuple[Table, ...]:
    """The tables of a file. Raises ConfigError where it cannot be read or holds what no kernel can take."""
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"tuning table {path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"tuning table {path} cannot be read as JSON: {error}") from error
    try:
        _expect_names("the file", held, ("version", "tables"))
        _expect(held["version"] == VERSION, f"its version is {held['version']!r}, expected {VERSION}: tune again")
        _expect(isinstance(held["tables"], list), f"tables is {held['tables']!r:.40}, expected a list")
        tables = tuple(map(_table, held["tables"]))
        _expect(len({table.key for table in tables}) == len(tables), "it holds two tables of one GPU, op and shape")
    except ConfigError as error:
        raise ConfigError(f"tuning table {path} cannot be used: {error}") from error
    return tables


def read_if_there(path: Path) -> tuple[Table, ...]:
    """As `read`; nothing where there is no such file."""
    try:
        there = path.exists()
    except OSError as error:  # a folder on the way that may not be searched, a name that is too long
        raise ConfigError(f"tuning table {path} cannot be read: {error.strerror}") from error
    return read(path) if there else ()


def write(path: Path, tables: Sequence[Table]) -> None:
    """Put the tables there, whole or not at all. Raises ConfigError if that cannot be done."""
    text = ",\n".join(_text(table) for table in tables)
    part = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        part.write_text(f'{{"version": {VERSION}, "tables": [\n{text}\n]}}\n', encoding="utf-8")
        part.replace(path)
    except OSError as error:
        raise ConfigError(f"output is {path}, which cannot be written: {error.strerror}") from error


def merged(old: Sequence[Table], new: Sequence[Table]) -> tuple[Table, ...]:
    """``old`` with each table of ``new`` added or in the place of one of the same GPU, op and shape."""
    by_key = {table.key: table for table in old} | {table.key: table for table in new}
    return tuple(by_key.values())


def _text(table: Table) -> str:
    head = {"gpu": table.gpu, "op": table.op, "shape": dict(table.shape), "measured": table.measured}
    steps = ",\n  ".join(json.dumps([rows, None if held is None else dict(held)]) for rows, held in table.steps)
    return f' {json.dumps(head)[:-1]}, "steps": [\n  {steps}]}}'


def _table(held: Any) -> Table:
    _expect_names("a table", held, ("gpu", "op", "shape", "measured", "steps"))
    for name in ("gpu", "op", "measured"):
        _expect(isinstance(held[name], str), f"{name} is {held[name]!r:.40}, expected a name")
    steps = held["steps"]
    pairs = isinstance(steps, list) and all(isinstance(step, list) and len(step) == 2 for step in steps)
    _expect(pairs, f"steps is {steps!r:.40}, expected a list of [rows, parameters]")
    return Table(held["gpu"], held["op"], held["shape"], tuple((rows, held) for rows, held in steps), held["measured"])


def _expect_parameters(op: str, parameters: Parameters) -> None:
    _expect_names(f"parameters of {op}", parameters, tuple(PARAMETERS[op]))
    for name, possible in PARAMETERS[op].items():
        value = parameters[name]
        good = any(value == other and type(value) is type(other) for other in possible)
        _expect(good, f"{op}: {name} is {value!r}, expected one of {', '.join(map(str, possible))}")


def _expect_names(what: str, held: Any, names: Sequence[str]) -> None:
    good = isinstance(held, dict) and sorted(held) == sorted(names)
    given = ", ".join(held) if isinstance(held, dict) else repr(held)[:40]
    _expect(good, f"{what} has {given or 'nothing'}, expected {', '.join(names)}")


def _expect(condition: bool, message: str) -> None:
    if not condition:
        raise ConfigError(message)
