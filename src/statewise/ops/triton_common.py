"""What the Triton kernels share: device functions, and the checks of what a launch may assume."""

import os

import torch
import triton
import triton.language as tl
from torch import Tensor

from statewise.ops.common import expect

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


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


def expect_last_contiguous(op: str, **tensors: Tensor | None) -> None:
    """Raise ArgumentError unless the last dimension of every tensor that is there has stride 1. Outer strides are free."""
    for name, tensor in tensors.items():
        if tensor is not None and tensor.shape[-1] > 1:
            message = f"{name} has strides {tensor.stride()}, the triton backend expects 1 in the last dimension"
            expect(tensor.stride(-1) == 1, op, message)


def expect_no_double(op: str, *tensors: Tensor) -> None:
    """Raise ArgumentError for float64: the kernels sum in float32, the torch backend does better."""
    message = "float64 runs on the torch and reference backends, the triton backend sums in float32"
    expect(all(tensor.dtype != torch.float64 for tensor in tensors), op, message)
