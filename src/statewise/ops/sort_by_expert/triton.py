"""The sort on an NVIDIA GPU: one launch, a program an expert, each of which reads all choices."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from statewise.ops.triton_common import pdl_options, start

BLOCK = 1024


@triton.jit(do_not_specialize=["choices"])  # else it compiles anew where a prompt first has another divisor
def sort_by_expert_kernel(
    p_chosen, p_tokens, p_places, p_ends, choices, CHOSEN: tl.constexpr, USE_PDL: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    start(USE_PDL, False)
    expert = tl.program_id(0)
    o_b = tl.arange(0, BLOCK)
    b_before = tl.zeros([BLOCK], tl.int32)  # choices of the experts in front of this one
    for i_first in range(0, choices, BLOCK):
        m_b = i_first + o_b < choices
        b_before += (m_b & (tl.load(p_chosen + i_first + o_b, mask=m_b, other=0) < expert)).to(tl.int32)

    first = tl.sum(b_before, 0)
    for i_first in range(0, choices, BLOCK):
        m_b = i_first + o_b < choices
        m_own = m_b & (tl.load(p_chosen + i_first + o_b, mask=m_b, other=0) == expert)
        b_own = m_own.to(tl.int32)
        b_place = first + tl.cumsum(b_own, 0) - b_own
        tl.store(p_tokens + b_place, (i_first + o_b) // CHOSEN, mask=m_own)
        tl.store(p_places + i_first + o_b, b_place, mask=m_own)
        first += tl.sum(b_own, 0)
    tl.store(p_ends + expert, first)


def sort_by_expert(chosen: Tensor, experts: int) -> tuple[Tensor, Tensor, Tensor]:
    chosen = chosen.contiguous()
    tokens, places = torch.empty_like(chosen).flatten(), torch.empty_like(chosen)
    ends = torch.empty(experts, dtype=torch.int32, device=chosen.device)
    pdl = pdl_options(chosen.device)
    sort_by_expert_kernel[(experts,)](
        p_chosen=chosen, p_tokens=tokens, p_places=places, p_ends=ends,
        choices=chosen.numel(), CHOSEN=chosen.shape[1], BLOCK=BLOCK, num_warps=4, USE_PDL=bool(pdl), **pdl,
    )  # fmt: skip
    return tokens, places, ends
