"""A kernel that does nothing but round a page, so that any float32 reaches the device function."""

import torch
import triton
import triton.language as tl

from statewise.ops.triton_rounding import round_tile


@triton.jit(do_not_specialize=["layer"])
def round_page_kernel(
    p_values, p_out, p_seed, p_slot, layer, ROWS: tl.constexpr, N: tl.constexpr, BLOCK_P: tl.constexpr,
    BLOCK_C: tl.constexpr,
):  # fmt: skip
    o_row = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
    for i_c in range(0, N, BLOCK_C):
        o_c = i_c + tl.arange(0, BLOCK_C)
        o_tile = o_row[:, None] * N + o_c[None, :]
        m_tile = (o_row < ROWS)[:, None] & (o_c < N)[None, :]
        b_values = tl.load(p_values + o_tile, mask=m_tile, other=0.0)
        b_out = round_tile(
            b_values, o_row, i_c, tl.load(p_slot), tl.load(p_seed), layer, N, p_out.dtype.element_ty
        )  # fmt: skip
        tl.store(p_out + o_tile, b_out, mask=m_tile)


def round_page(page: torch.Tensor, dtype: torch.dtype, seed: torch.Tensor, slot: int, layer: int) -> torch.Tensor:
    """A slot's page (H, P, N), float32, in ``dtype``; 16 channels at a time."""
    out = torch.empty(page.shape, dtype=dtype, device=page.device)
    rows = page.shape[0] * page.shape[1]
    slots = torch.tensor([slot], device=page.device)
    round_page_kernel[(triton.cdiv(rows, 32),)](page, out, seed, slots, layer, rows, page.shape[2], 32, 16)
    return out
