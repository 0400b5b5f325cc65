"""Flags from dataclass fields: every option of the engine and of sampling is a flag with the same name and default."""

import argparse
from collections.abc import Sequence
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any

from statewise.config import EngineConfig
from statewise.demo.shipped import NAME, model_folder
from statewise.engine.request import SamplingParams
from statewise.errors import ConfigError

KERNEL_STATES = ("float32", "float16", "bfloat16")  # dtypes of states that kernels take

_TYPES = {"int": int, "float": float, "str": str, "int | float | str": str, "int | None": int}


def add_model(parser: Any, flag: str = "model", more: str = "") -> None:
    """The argument that says which model; ``arguments.model`` is its folder.

    flag: `--model` where it may be left out.
    """
    metavar = "MODEL" if flag == "model" else "FOLDER"
    meaning = f"a Hugging Face checkpoint folder, or {NAME} for the model that this package carries{more}"
    parser.add_argument(flag, type=model_folder, metavar=metavar, help=meaning)


def add_engine_options(parser: argparse.ArgumentParser, leave_out: tuple[str, ...] = ()) -> None:
    """One flag a field of EngineConfig."""
    _add(parser.add_argument_group("engine options"), EngineConfig, leave_out)


def engine_config(arguments: argparse.Namespace, **fixed: Any) -> EngineConfig:
    """The EngineConfig that the flags ask for; ``fixed`` wins."""
    return EngineConfig(**(_given(arguments, EngineConfig) | fixed))


def add_sampling_options(parser: argparse.ArgumentParser, leave_out: tuple[str, ...] = ()) -> None:
    """One flag a field of SamplingParams."""
    _add(parser.add_argument_group("sampling options"), SamplingParams, leave_out)


def sampling_params(arguments: argparse.Namespace) -> SamplingParams:
    """The SamplingParams that the flags ask for."""
    return SamplingParams(**_given(arguments, SamplingParams))


def expect_writable(option: str, path: Path) -> None:
    """A report that cannot be written is told before the work, not after it. Raises ConfigError."""
    try:
        there = path.exists()
        path.open("a").close()
        if not there:
            path.unlink()
    except OSError as error:
        raise ConfigError(f"{option} is {path}, which cannot be written: {error.strerror}") from error


def expect_positive(name: str, values: Sequence[int]) -> None:
    """Raise ConfigError unless all are at least 1."""
    for value in values:
        if value < 1:
            raise ConfigError(f"{name} is {value}, expected a whole number, at least 1")


def _add(group: Any, owner: type, leave_out: tuple[str, ...]) -> None:
    for item in fields(owner):
        if item.name not in leave_out:
            group.add_argument("--" + item.name.replace("_", "-"), **_flag(item))


def _flag(item: "Field[Any]") -> dict[str, Any]:
    meaning, name = item.metadata["help"].replace("%", "%%"), str(getattr(item.type, "__name__", item.type))
    if str(item.type) == "bool | None":
        return {"action": argparse.BooleanOptionalAction, "help": meaning}
    if name == "bool":
        return {"action": "store_true", "help": meaning}
    if "Mapping" in str(item.type):
        return {"action": "append", "type": _token_and_bias, "metavar": "TOKEN=BIAS", "help": f"{meaning} (repeatable)"}
    if str(item.type).startswith("tuple"):
        kind: Any = int if "int" in str(item.type) else str
        return {"action": "append", "type": kind, "metavar": kind.__name__.upper(), "help": f"{meaning} (repeatable)"}
    default = "" if item.default in (None, MISSING) else f" (default {item.default})"
    kind = _TYPES[str(item.type) if name not in _TYPES else name]
    return {"type": kind, "default": item.default, "metavar": kind.__name__.upper(), "help": meaning + default}


def _token_and_bias(text: str) -> tuple[int, float]:
    token, _, bias = text.partition("=")
    try:
        return int(token), float(bias)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not TOKEN=BIAS, like 42=-100") from None


def _given(arguments: argparse.Namespace, owner: type) -> dict[str, Any]:
    """What the flags of ``owner`` say. A repeatable flag that was not given is left to its default."""
    values = {item.name: getattr(arguments, item.name) for item in fields(owner) if hasattr(arguments, item.name)}
    return {name: tuple(v) if isinstance(v, list) else v for name, v in values.items() if v is not None}
