"""The checkpointed step on an NVIDIA GPU, T = 1: one kernel at small batches, two at large ones. See the README."""

from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from statewise.ops.checkpointed_step.triton_fused import fused_kernel
from statewise.ops.checkpointed_step.triton_split import coefficients_kernel, output_kernel
from statewise.ops.common import NO_LIMIT, expect
from statewise.ops.triton_common import INTERPRETED, expect_last_contiguous, expect_no_double, pdl_options


@dataclass(frozen=True)
class Launch:
    """How a step is launched: in one kernel or in two, and with which blocks."""

    fused: bool
    block_p: int
    num_warps: int
    block_c: int = 32  # state channels folded at a time
    block_h: int = 16  # of the coefficients kernel
    coefficient_warps: int = 1


def launch_parameters(batch: int, heads: int, head_dim: int, itemsize: int) -> Launch:
    """From measurements on an H200; see docs/log.md. One kernel pays only where launches are all that counts."""
    if batch * heads <= 256 and itemsize == 2:
        return Launch(True, min(64, triton.next_power_of_2(head_dim)), 4)
    return Launch(False, 16, 1)


def _parts(activation: torch.dtype, state: torch.dtype) -> int:
    """Into how many bfloat16 numbers a weighted x is split for the matrix units; 0: three TF32 products instead.

    Two parts hold 16 bits, more than a 16-bit state keeps; a float32 state gets all 24.
    """
    if activation != torch.bfloat16 or INTERPRETED:
        return 0
    return 3 if state == torch.float32 else 2


def checkpointed_step(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    state: Tensor,
    x_ring: Tensor,
    B_ring: Tensor,
    dt_ring: Tensor,
    ring_start: Tensor,
    pending: Tensor,
    window: int,
    read_slots: Tensor,
    write_slots: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    dt_bias: Tensor | None,
    dt_limit: tuple[float, float],
) -> Tensor:
    op = "checkpointed_step"
    (batch, tokens, heads, head_dim), (groups, state_size) = x.shape, B.shape[2:]
    expect(tokens == 1, op, f"T is {tokens}, the triton backend takes T = 1; backends torch and reference take more")
    expect_no_double(op, x, state)
    expect_last_contiguous(op, x=x, B=B, C=C, z=z, state=state, x_ring=x_ring, B_ring=B_ring, dt_ring=dt_ring)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if out.numel() == 0:
        return out
    run = launch_parameters(batch, heads, head_dim, state.element_size())
    block_w = max(16, triton.next_power_of_2(window))
    pdl = pdl_options(x.device)
    decay = {
        "p_dt": dt, "p_A": A, "p_B": B, "p_D": D, "p_dt_bias": dt_bias, "p_dt_ring": dt_ring,
        "dt_low": dt_limit[0], "dt_high": dt_limit[1], "stride_dt_b": dt.stride(0), "stride_dt_h": dt.stride(2),
        "stride_B_b": B.stride(0), "stride_B_g": B.stride(2),
        "stride_dtr_slot": dt_ring.stride(0), "stride_dtr_h": dt_ring.stride(1),
        "HAS_D": D is not None, "HAS_BIAS": dt_bias is not None, "HAS_LIMIT": dt_limit != NO_LIMIT,
    }  # fmt: skip
    both = {
        "p_C": C, "p_B_ring": B_ring, "p_start": ring_start, "p_pending": pending, "p_read": read_slots,
        "p_write": write_slots, "stride_C_b": C.stride(0), "stride_C_g": C.stride(2),
        "stride_Br_slot": B_ring.stride(0), "stride_Br_g": B_ring.stride(1), "stride_Br_r": B_ring.stride(2),
        "N": state_size, "HEADS_PER_GROUP": heads // groups, "W": window, "R": x_ring.shape[2],
        "BLOCK_N": triton.next_power_of_2(state_size), "USE_PDL": bool(pdl), **pdl,
    }  # fmt: skip
    output = {
        "p_x": x, "p_z": z, "p_state": state, "p_x_ring": x_ring, "p_out": out,
        "stride_x_b": x.stride(0), "stride_x_h": x.stride(2),
        "stride_z_b": 0 if z is None else z.stride(0), "stride_z_h": 0 if z is None else z.stride(2),
        "stride_s_slot": state.stride(0), "stride_s_h": state.stride(1), "stride_s_p": state.stride(2),
        "stride_xr_slot": x_ring.stride(0), "stride_xr_h": x_ring.stride(1), "stride_xr_r": x_ring.stride(2),
        "stride_o_b": out.stride(0), "stride_o_h": out.stride(2), "P": head_dim, "HAS_Z": z is not None,
        "BLOCK_P": run.block_p, "num_warps": run.num_warps,
        "BF16_PARTS": _parts(x.dtype, state.dtype),
        "BLOCK_C": min(run.block_c, triton.next_power_of_2(state_size)),
    }  # fmt: skip
    grid = (triton.cdiv(head_dim, run.block_p), heads, batch)
    if run.fused:
        block_r = max(16, triton.next_power_of_2(x_ring.shape[2]))
        fused_kernel[grid](**decay, **both, **output, BLOCK_R=block_r)
        return out
    mix, fold = torch.empty(2, batch, heads, block_w + 2, dtype=torch.float32, device=x.device)
    between = {"p_mix": mix, "p_fold": fold, "H": heads, "BLOCK_W": block_w}
    coefficients_kernel[(triton.cdiv(heads // groups, run.block_h), groups, batch)](
        **decay, **both, **between, BLOCK_H=run.block_h, num_warps=run.coefficient_warps
    )
    output_kernel[grid](**both, **output, **between)
    return out
