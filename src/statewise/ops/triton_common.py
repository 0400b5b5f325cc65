"""What the Triton kernels share: device functions, and the checks of what a launch may assume."""

import functools
import os

import torch
import triton
import triton.language as tl
from torch import Tensor

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


def expect_last_contiguous(op: str, **tensors: Tensor | None) -> None:
    """Raise ArgumentError unless the last dimension of every tensor that is there has stride 1."""
    for name, tensor in tensors.items():
        if tensor is not None and tensor.shape[-1] > 1:
            message = f"{name} has strides {tensor.stride()}, the triton backend expects 1 in the last dimension"
            expect(tensor.stride(-1) == 1, op, message)


def expect_no_double(op: str, *tensors: Tensor) -> None:
    """Raise ArgumentError for float64: the kernels sum in float32, the torch backend does better."""
    message = "float64 runs on the torch and reference backends, the triton backend sums in float32"
    expect(all(tensor.dtype != torch.float64 for tensor in tensors), op, message)


@triton.jit
def add_products(b_weighted, b_Bs, b_state, BF16_PARTS: tl.constexpr):
    """state + weighted @ Bs, to the precision of float32 or of BF16_PARTS bfloat16 numbers.

    b_weighted: (BLOCK_P, BLOCK_W), x times its weight. b_Bs: (BLOCK_W, columns), exact in bfloat16 if BF16_PARTS > 0:
    x times its weight is then a sum of that many bfloat16 parts, 8 bits each. Otherwise three TF32 products.
    """
    if BF16_PARTS > 0:
        b_part = b_weighted.to(tl.bfloat16)
        b_state = tl.dot(b_part, b_Bs, b_state)
        b_rest = b_weighted - b_part.to(tl.float32)
        for _ in tl.static_range(BF16_PARTS - 1):
            b_part = b_rest.to(tl.bfloat16)
            b_state = tl.dot(b_part, b_Bs, b_state)
            b_rest -= b_part.to(tl.float32)
    else:
        b_state = tl.dot(b_weighted, b_Bs.to(tl.float32), b_state, input_precision="tf32x3")
    return b_state


@triton.jit
def fold_rows(
    p_from, p_to, p_Bs, b_weighted, b_decay, m_w, m_p,
    N: tl.constexpr, BF16_PARTS: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """to = decay * from + weighted @ Bs, BLOCK_C state channels at a time.

    p_from, p_to: (BLOCK_P, 1), the first channel of each row of the tile; they may be the same. p_Bs: (BLOCK_W, 1),
    likewise of each ring row. b_weighted: (BLOCK_P, BLOCK_W), x times its weight. The tile is read again, from the L2
    cache where it has just been: kept in registers it would cost every program of the kernel what one in W uses.
    """
    for i_c in range(0, N, BLOCK_C):
        o_c = i_c + tl.arange(0, BLOCK_C)
        m_c = (o_c < N)[None, :]
        b_Bs = tl.load(p_Bs + o_c[None, :], mask=m_w[:, None] & m_c, other=0.0)
        b_state = tl.load(p_from + o_c[None, :], mask=m_p[:, None] & m_c, other=0.0).to(tl.float32) * b_decay
        b_state = add_products(b_weighted, b_Bs, b_state, BF16_PARTS)
        tl.store(p_to + o_c[None, :], b_state.to(p_to.dtype.element_ty), mask=m_p[:, None] & m_c)


@functools.cache
def pdl_options(device: torch.device) -> dict[str, bool]:
    """Launch options for programmatic dependent launch, where the GPU has it (compute capability 9.0 and later).

    A kernel of ours so launched may be resident before the one in front of it has ended. It waits for that one
    before it reads anything that any earlier kernel may have written; so it gains the launch, and nothing is read
    too early.
    """
    can = not INTERPRETED and device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)
    return {"launch_pdl": True} if can else {}


@triton.jit
def wait_for_earlier_kernels(USE_PDL: tl.constexpr):
    """Nothing before this line may touch memory that another kernel writes. After it the next may launch.

    In this order: a dependent that starts after the trigger, such as `output_kernel`, then knows that all kernels in
    front of this one have ended.
    """
    if USE_PDL:
        gdc_wait()
        gdc_launch_dependents()
