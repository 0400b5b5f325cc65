"""The choice on an NVIDIA GPU: one launch, a program a token, the best expert by the best."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from statewise.ops.triton_common import expect_last_contiguous, expect_no_double, next_power_of_2, pdl_options, start

OP = "choose_experts"


@triton.jit
def choose_experts_kernel(
    p_scores, p_bias, p_allowed, p_weights, p_experts, stride_scores, stride_allowed, scale,
    EXPERTS: tl.constexpr, CHOSEN: tl.constexpr, NORMALISED: tl.constexpr,
    BLOCK_E: tl.constexpr, BLOCK_K: tl.constexpr, USE_PDL: tl.constexpr,
):  # fmt: skip
    start(USE_PDL, False)
    row = tl.program_id(0).to(tl.int64)
    o_e, o_k = tl.arange(0, BLOCK_E), tl.arange(0, BLOCK_K)
    m_e = o_e < EXPERTS
    b_own = tl.load(p_scores + row * stride_scores + o_e, mask=m_e, other=0.0).to(tl.float32)
    b_key = b_own
    if p_bias is not None:
        b_own = 1.0 / (1.0 + tl.exp(-b_own))
        b_key = b_own + tl.load(p_bias + o_e, mask=m_e, other=0.0).to(tl.float32)
    m_open = m_e
    if p_allowed is not None:
        m_open &= tl.load(p_allowed + row * stride_allowed + o_e, mask=m_e, other=0).to(tl.int1)
    b_key = tl.where(m_open, b_key, float("-inf"))
    is_broken = tl.max((b_key != b_key).to(tl.int32), 0) > 0  # a GPU's maximum is the number where one is NaN

    b_weight, b_expert = tl.zeros([BLOCK_K], tl.float32), tl.zeros([BLOCK_K], tl.int32)
    for k in tl.static_range(CHOSEN):
        i_best = tl.minimum(tl.argmax(b_key, 0), EXPERTS - 1)  # NaN compares as nothing does: a number all the same
        value = tl.sum(tl.where(o_e == i_best, b_own, 0.0), 0)
        b_weight = tl.where(o_k == k, value, b_weight)
        b_expert = tl.where(o_k == k, i_best, b_expert)
        b_key = tl.where(o_e == i_best, float("-inf"), b_key)

    m_k = o_k < CHOSEN
    if p_bias is None:
        b_weight = tl.where(m_k, tl.exp(b_weight - tl.max(tl.where(m_k, b_weight, float("-inf")), 0)), 0.0)
        b_weight /= tl.sum(b_weight, 0)
    else:
        if NORMALISED:
            b_weight /= tl.sum(b_weight, 0) + 1e-20
        b_weight *= scale
    b_weight = tl.where(is_broken, float("nan"), b_weight)
    o_out = row * CHOSEN + o_k
    tl.store(p_weights + o_out, b_weight.to(p_weights.dtype.element_ty), mask=m_k)
    tl.store(p_experts + o_out, b_expert, mask=m_k)


def choose_experts(
    scores: Tensor,
    chosen: int,
    bias: Tensor | None,
    allowed: Tensor | None,
    normalised: bool,
    scale: float,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    expect_no_double(OP, scores)
    expect_last_contiguous(OP, scores=scores, bias=bias, allowed=allowed)
    rows, experts = scores.shape
    weights = torch.empty(rows, chosen, dtype=dtype, device=scores.device)
    found = torch.empty(rows, chosen, dtype=torch.int64, device=scores.device)
    if rows == 0:
        return weights, found
    pdl = pdl_options(scores.device)
    choose_experts_kernel[(rows,)](
        p_scores=scores, p_bias=bias, p_allowed=allowed, p_weights=weights, p_experts=found,
        stride_scores=scores.stride(0), stride_allowed=0 if allowed is None else allowed.stride(0), scale=scale,
        EXPERTS=experts, CHOSEN=chosen, NORMALISED=normalised, BLOCK_E=next_power_of_2(experts),
        BLOCK_K=next_power_of_2(chosen), num_warps=1, USE_PDL=bool(pdl), **pdl,
    )  # fmt: skip
    return weights, found
