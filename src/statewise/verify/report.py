"""What a case found, as a line and as JSON."""

import importlib.util
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import torch
from rich.markup import escape

from statewise import __version__
from statewise.verify.target import Target

_COLUMNS = (("shape", 15), ("state", 9), ("check", 13), ("batch", 5))
_FIGURES = ("outputs", "bound", "state", "bound")
_STYLES = {"ok": "green", "FAILED": "bold red", "skipped": "yellow"}


@dataclass(frozen=True, kw_only=True)
class Result:
    """Worst relative errors of any row, in the 2-norm, and their bounds; None where bits are compared instead."""

    check: str
    batch: int
    verdict: Literal["ok", "FAILED", "skipped"]
    output_error: float | None = None
    output_bound: float | None = None
    state_error: float | None = None
    state_bound: float | None = None
    note: str = ""
    points: Sequence[Sequence[float]] = field(default=())  # drift: token, both errors, both of the plain step


def passed(check: str, batch: int, problems: Sequence[str], note: str = "", **figures: Any) -> Result:
    """A Result that is ok if there are no problems."""
    verdict: Literal["ok", "FAILED"] = "FAILED" if problems else "ok"
    return Result(
        check=check, batch=batch, verdict=verdict, note="; ".join([*problems, note] if note else problems), **figures
    )


def skipped(check: str, batch: int, reason: str) -> Result:
    """A check that cannot run here."""
    return Result(check=check, batch=batch, verdict="skipped", note=reason)


def header() -> str:
    """The first line."""
    names = [f"{name:{width}}" for name, width in _COLUMNS]
    return " ".join([*names, *(f"{name:>8}" for name in _FIGURES), "", "verdict"])


def line(target: Target, result: Result) -> str:
    """One case, with rich's markup."""
    state = str(target.state_dtype).removeprefix("torch.")
    values = (target.shape, state, result.check, str(result.batch))
    cells = [f"{value:{width}}" for value, (_, width) in zip(values, _COLUMNS, strict=True)]
    figures = (result.output_error, result.output_bound, result.state_error, result.state_bound)
    cells += [f"{'-' if figure is None else f'{figure:.1e}':>8}" for figure in figures]
    verdict = f"[{_STYLES[result.verdict]}]{result.verdict}[/]"
    return " ".join([*cells, "", verdict, escape(result.note)]).rstrip()


def name(target: Target, result: Result) -> str:
    """What a failure is called in the last line."""
    state = str(target.state_dtype).removeprefix("torch.")
    return f"{result.check} at batch {result.batch} of {target.shape} with {state} states"


def platform_line(device: torch.device) -> str:
    """The machine and the versions that were verified."""
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else "the CPU"
    versions = ", ".join(f"{key} {value}" for key, value in _versions().items() if value)
    return f"{gpu}, {versions}"


def summary(results: Sequence[tuple[Target, Result]], device: torch.device) -> str:
    """The last line: the counts, or the failures by name."""
    failed = [name(target, result) for target, result in results if result.verdict == "FAILED"]
    left_out = sum(result.verdict == "skipped" for _, result in results)
    rest = f", {left_out} skipped" if left_out else ""
    where = platform_line(device)
    if failed:
        return f"{len(failed)} of {len(results)} cases FAILED{rest} on {where}: {'; '.join(failed)}"
    if left_out == len(results):
        return f"nothing was verified{rest}, on {where}"
    return f"{len(results) - left_out} cases, all good{rest}, on {where}"


def as_json(
    results: Sequence[tuple[Target, Result, float]], device: torch.device, options: dict[str, Any]
) -> dict[str, Any]:
    """Everything, for ``--json``; the third of each is its seconds. An error that is no number is written as null."""
    cases = [
        {"models": target.name, "shape": target.shape, "state_dtype": str(target.state_dtype)}
        | {"dtype": str(target.dtype), "backend": target.ops.name if target.ops else None, "seconds": round(seconds, 2)}
        | {key: _finite(value) for key, value in asdict(result).items()}
        for target, result, seconds in results
    ]
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else None
    return {"statewise": __version__, "gpu": gpu, **_versions(), "options": options, "cases": cases}


def _finite(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not abs(value) < float("inf") else value


def _versions() -> dict[str, str | None]:
    triton = None
    if importlib.util.find_spec("triton"):
        import triton as package

        triton = package.__version__
    python = platform.python_version()
    return {"torch": torch.__version__, "triton": triton, "cuda": torch.version.cuda, "python": python}
