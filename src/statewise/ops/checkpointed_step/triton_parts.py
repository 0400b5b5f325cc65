"""What the kernels of the checkpointed step share: the order of ring rows, their weights, programmatic launch.

p_ is a pointer, b_ a block in registers, o_ offsets, m_ a mask, i_ an index.
"""

import triton
import triton.language as tl

from statewise.ops.triton_common import INTERPRETED, softplus

if not INTERPRETED:
    from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


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
    """From here on everything that earlier kernels wrote may be read, and anything may be written."""
    if USE_PDL:
        gdc_wait()


@triton.jit
def ring_places(b_start, b_live, BLOCK_W: tl.constexpr, R: tl.constexpr):
    """Places of the pending rows, youngest first (no place: anything, below R), and which of them there are."""
    o_w = tl.arange(0, BLOCK_W)
    o_place = b_start + b_live - 1 - o_w
    return tl.where(o_place >= R, o_place - R, o_place), o_w < b_live


@triton.jit
def new_place(b_start, b_live, R: tl.constexpr):
    """Where the new row goes."""
    return tl.where(b_start + b_live >= R, b_start + b_live - R, b_start + b_live)


@triton.jit
def time_step(p_dt, p_dt_bias, o_h, stride_dt_h, dt_low, dt_high, HAS_BIAS: tl.constexpr, HAS_LIMIT: tl.constexpr):
    """clamp(softplus(dt + bias)) of a head or of some heads, float32."""
    b_dt = tl.load(p_dt + o_h * stride_dt_h).to(tl.float32)
    if HAS_BIAS:
        b_dt += tl.load(p_dt_bias + o_h).to(tl.float32)
    b_dt = softplus(b_dt)
    if HAS_LIMIT:
        b_dt = tl.minimum(tl.maximum(b_dt, dt_low), dt_high)
    return b_dt


@triton.jit
def ring_weights(p_dt_ring, b_A, b_start, b_live, BLOCK_W: tl.constexpr, R: tl.constexpr):
    """(..., W): each pending row's weight in the state before the new token, youngest first; (...): the log of the
    checkpoint's. p_dt_ring, b_A: of a head or of some heads.

    A row decays by the steps of the rows younger than it. Those are summed on their own: the difference of two running
    sums would lose the digits that matter when both are large.
    """
    o_place, m_w = ring_places(b_start, b_live, BLOCK_W, R)
    o_younger = tl.where(o_place + 1 >= R, o_place + 1 - R, o_place + 1)
    m_not_first = m_w & (tl.arange(0, BLOCK_W) > 0)
    if p_dt_ring.type.is_block():
        p_dt_ring, o_place, o_younger = p_dt_ring[:, None], o_place[None, :], o_younger[None, :]
        b_A, m_w, m_not_first = b_A[:, None], m_w[None, :], m_not_first[None, :]
    b_dts = tl.load(p_dt_ring + o_place, mask=m_w, other=0.0)
    b_younger = tl.load(p_dt_ring + o_younger, mask=m_not_first, other=0.0)
    axis: tl.constexpr = len(b_dts.shape) - 1
    b_fold = tl.exp(b_A * tl.cumsum(b_younger, axis=axis)) * b_dts
    return b_fold, tl.sum(b_A * b_dts, axis=axis)


@triton.jit
def store_coefficients(p_mix, p_fold, o_out, b_fold, b_past, b_now, b_CB, b_new, is_full, BLOCK_W: tl.constexpr):
    """Write what `output_kernel` reads, of one row and some heads, each (heads, BLOCK_W + 2).

    mix: a weight for each pending row's x, then the new row's, then the checkpoint's. fold, of rows that flush: the
    same for the state that is written; the second to last is unused.
    b_now: the log of the new token's decay. b_CB: C . B of the pending rows. b_new: the weight of the new x.
    """
    o_hw = o_out[:, None] + tl.arange(0, BLOCK_W)[None, :]
    b_decay = tl.exp(b_now)
    tl.store(p_mix + o_hw, b_decay[:, None] * b_fold * b_CB[None, :])
    tl.store(p_mix + o_out + BLOCK_W, b_new)
    tl.store(p_mix + o_out + BLOCK_W + 1, tl.exp(b_past + b_now))
    if is_full:
        tl.store(p_fold + o_hw, b_fold)
        tl.store(p_fold + o_out + BLOCK_W + 1, tl.exp(b_past))
