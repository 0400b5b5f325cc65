"""What the Triton kernels share: device functions, and the checks of what a launch may assume."""

import functools
import os

import torch
import triton
import triton.language as tl
from torch import Tensor

from statewise.errors import ArgumentError, BackendError
from statewise.ops.common import expect

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
if not INTERPRETED:
    from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def softplus(b_x):
    """log(1 + exp(x)) in float32 without a threshold: log1p by Kahan's correction, since 1 + e rounds e away."""
    b_e = tl.exp(-tl.abs(b_x))
    b_u = 1.0 + b_e
    b_ratio = tl.where(b_u == 1.0, 1.0, tl.log(b_u) / tl.where(b_u == 1.0, 1.0, b_u - 1.0))
    return tl.maximum(b_x, 0.0) + b_e * b_ratio


@triton.jit
def silu(b_x):
    """x * sigmoid(x) in float32."""
    return b_x / (1.0 + tl.exp(-b_x))


def cdiv(count: int, size: int) -> int:
    """How many pieces of ``size`` hold ``count``. Triton's own takes 6 us on the host; a step has hundreds."""
    return -(-count // size)


def next_power_of_2(count: int) -> int:
    """The least power of two that is not below ``count``, at least 1. Triton's own is as slow."""
    return 1 << max(0, count - 1).bit_length()


def expect_last_contiguous(op: str, **tensors: Tensor | None) -> None:
    """Raise ArgumentError unless the last dimension of every tensor that is there has stride 1."""
    for name, tensor in tensors.items():
        if tensor is not None and tensor.stride(-1) != 1 and tensor.shape[-1] > 1:
            expect(
                False, op, f"{name} has strides {tensor.stride()}, the triton backend expects 1 in the last dimension"
            )


def expect_no_double(op: str, *tensors: Tensor) -> None:
    """Raise ArgumentError for float64: the kernels sum in float32, the torch backend does better."""
    message = "float64 runs on the torch and reference backends, the triton backend sums in float32"
    expect(all(tensor.dtype != torch.float64 for tensor in tensors), op, message)


def as_rows(op: str, name: str, tensor: Tensor) -> Tensor:
    """(..., D) as (rows, D), never a copy. Raises ArgumentError where the rows have no common stride."""
    try:
        return tensor.view(-1, tensor.shape[-1])
    except RuntimeError:
        message = f"{name} has strides {tensor.stride()}, the triton backend expects one stride from row to row"
        raise ArgumentError(f"{op}: {message}") from None


@functools.cache
def multiprocessors(device: torch.device) -> int:
    """Of a GPU; 1 for the interpreter."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def dot_precision(tensor: Tensor) -> str:
    """Of products of float32. The others have one only."""
    return "tf32x3" if tensor.dtype == torch.float32 else "tf32"


@functools.cache
def pdl_options(device: torch.device) -> dict[str, bool]:
    """Launch options for programmatic dependent launch, where the GPU has it (compute capability 9.0 and later).

    A kernel of ours so launched may be resident before the one in front of it has ended. It waits for that one
    before it reads anything that any earlier kernel may have written; so it gains the launch, and nothing is read
    too early. An op asks before it launches.
    Raises BackendError for a device that Triton has no kernels for.
    """
    if device.type != "cuda" and not INTERPRETED:
        how = "other backends run there, as does Triton's interpreter, with TRITON_INTERPRET=1"
        raise BackendError(f"the triton backend needs an NVIDIA GPU, and the tensors are on {device}; {how}")
    can = not INTERPRETED and torch.cuda.get_device_capability(device) >= (9, 0)
    return {"launch_pdl": True} if can else {}


@triton.jit
def start(USE_PDL: tl.constexpr, PREFETCH: tl.constexpr):
    """The first line of a kernel. With PREFETCH, what no recent kernel writes may be read from here on; `wait` follows.

    Without it the wait comes first, and then the trigger: a dependent that starts after the trigger knows that all
    kernels in front of this one have ended. See docs/decisions.md.
    """
    if USE_PDL:
        if not PREFETCH:
            gdc_wait()
        gdc_launch_dependents()


@triton.jit
def wait(USE_PDL: tl.constexpr):
    """From here on everything that earlier kernels wrote may be read, and anything may be written.

    Every kernel waits before it ends, pads too: one that ended before those in front of it would let the next one
    start too early.
    """
    if USE_PDL:
        gdc_wait()
