"""What the ops share: argument checks, the accumulation dtype and the time step. No op calls another through here."""

import importlib
import math
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from statewise.errors import ArgumentError, BackendError

NO_LIMIT = (0.0, math.inf)

# name -> what it is. An op has a module of that name in its folder for each backend that implements it.
BACKENDS = {
    "torch": "vectorised PyTorch, any device",
    "triton": "Triton kernels, NVIDIA GPUs",
    "reference": "loops over time, for checking; very slow",
}


@cache
def implementation(op: str, backend: str, function: str | None = None) -> Callable[..., Any]:
    """``function`` (default: ``op`` itself) of folder ``op`` as ``backend`` has it; imported when first asked for.

    Raises BackendError with the names that exist.
    """
    if backend not in BACKENDS:
        raise BackendError(f"{op} has no backend {backend!r}; there are {', '.join(BACKENDS)}")
    module = importlib.import_module(f"statewise.ops.{op}.{backend}")
    return getattr(module, function or op)


def expect_shape(op: str, **tensors: tuple[Tensor | None, tuple[int, ...]]) -> None:
    """Raise ArgumentError unless every tensor that is there has its expected shape."""
    for name, (tensor, shape) in tensors.items():
        if tensor is not None and tuple(tensor.shape) != shape:
            raise ArgumentError(f"{op}: {name} has shape {tuple(tensor.shape)}, expected {shape}")


def expect(condition: bool, op: str, message: str) -> None:
    """Raise ArgumentError with ``message`` unless ``condition``."""
    if not condition:
        raise ArgumentError(f"{op}: {message}")


def expect_groups(op: str, heads: int, groups: int) -> None:
    """Raise ArgumentError unless the heads divide evenly into groups."""
    expect(groups > 0 and heads % groups == 0, op, f"{heads} heads do not divide into {groups} groups")


def expect_slots(op: str, **slots: Tensor | None) -> None:
    """Raise ArgumentError unless every slot index tensor is int32 or int64."""
    for name, tensor in slots.items():
        if tensor is not None:
            expect(
                tensor.dtype in (torch.int32, torch.int64),
                op,
                f"{name} is {tensor.dtype}, expected int32 or int64",
            )


def accumulation_dtype(*tensors: Tensor | None) -> torch.dtype:
    """float64 if any of the tensors is, else float32: sums are never kept in 16 bits."""
    is_double = any(t is not None and t.dtype == torch.float64 for t in tensors)
    return torch.float64 if is_double else torch.float32


def time_step(dt: Tensor, dt_bias: Tensor | None, dt_limit: tuple[float, float], dtype: torch.dtype) -> Tensor:
    """``clamp(softplus(dt + dt_bias), *dt_limit)`` in ``dtype``; the same in prefill and in decode.

    dt: (..., H) raw, in any dtype. dt_bias: (H,) or None.
    softplus is written as log(exp(x) + exp(0)), which has no threshold beyond which it is only nearly right.
    """
    raw = dt.to(dtype)
    if dt_bias is not None:
        raw = raw + dt_bias.to(dtype)
    positive = torch.logaddexp(raw, raw.new_zeros(()))
    return positive if dt_limit == NO_LIMIT else positive.clamp(*dt_limit)


def finish(y: Tensor, x: Tensor, D: Tensor | None, z: Tensor | None) -> Tensor:
    """Add the skip ``D * x`` and apply the gate ``silu(z)``. y, x, z: (..., H, P); D: (H,). In y's dtype."""
    if D is not None:
        y = y + D.to(y.dtype)[:, None] * x.to(y.dtype)
    if z is not None:
        y = y * torch.nn.functional.silu(z.to(y.dtype))
    return y
