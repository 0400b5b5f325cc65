"""The mixer's step on an NVIDIA GPU in three launches, each the programmatic dependent of the one before.

Append, output and norm; at small batches and for the plain step convolution, step and norm. Without a norm, two.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from statewise.ops import tuning
from statewise.ops.causal_conv.triton import causal_conv_step
from statewise.ops.checkpointed_step import triton as step
from statewise.ops.checkpointed_step.scratch import block_n
from statewise.ops.checkpointed_step.triton import Pages, checkpointed_step, coefficient_buffers, launch_output
from statewise.ops.common import NO_LIMIT, expect
from statewise.ops.gated_rms_norm.triton import gated_rms_norm
from statewise.ops.mixer_step.scratch import Scratch
from statewise.ops.mixer_step.triton_append import append_kernel
from statewise.ops.state_step.triton import state_step
from statewise.ops.triton_common import cdiv, expect_last_contiguous, expect_no_double, next_power_of_2, pdl_options
from statewise.ops.tuning import StepShape

OP = "mixer_step"


@dataclass(frozen=True)
class Launch(step.Launch):
    """How a step with a ring is launched. fused: convolution and one kernel, else append and output kernel."""

    block_x: int = 512  # channels of x of a program of the append kernel
    append_warps: int = 2


def launch_parameters(rows: int, shape: StepShape, device: torch.device | None) -> Launch:
    """For so many (row, head) pairs: as measured on this GPU, or else by `rule`."""
    return tuning.lookup(OP, Launch, rows, shape, device) or rule(rows, shape)


def rule(rows: int, shape: StepShape) -> Launch:
    """Those of the checkpointed step, but one kernel for fewer rows: here the other form costs no launch more."""
    chosen = step.rule(rows, shape) if rows <= 256 else step.split_rule(rows, shape)
    # A program holds the coefficients of all heads of a group: 32 a thread.
    warps = max(2, min(8, shape.heads_per_group * shape.block_w // 1024))
    return Launch(**vars(chosen), append_warps=next_power_of_2(warps))


def mixer_step(
    xBC: Tensor,
    dt: Tensor,
    z: Tensor | None,
    *,
    conv_weight: Tensor,
    conv_window: Tensor,
    A: Tensor,
    state: Tensor,
    x_ring: Tensor,
    B_ring: Tensor,
    dt_ring: Tensor,
    ring_start: Tensor,
    pending: Tensor,
    window: int,
    read_slots: Tensor,
    write_slots: Tensor,
    conv_bias: Tensor | None,
    D: Tensor | None,
    dt_bias: Tensor | None,
    dt_limit: tuple[float, float],
    norm_weight: Tensor | None,
    eps: float,
    group_size: int,
    norm_before_gate: bool,
    rand_seed: Tensor | None,
    rand_layer: int,
    out: Tensor | None,
    scratch: Scratch | None,
    prefetch: bool,
) -> Tensor:
    batch, (heads, head_dim, state_size) = xBC.shape[0], state.shape[1:]
    groups = (xBC.shape[1] - heads * head_dim) // (2 * state_size)
    if scratch is None:
        shape = (batch, heads, head_dim, groups, state_size, window)
        scratch = Scratch.allocate(*shape, xBC.dtype, xBC.device)
    enough = scratch.y.shape[0] >= batch
    expect(enough, "mixer_step", f"scratch is of {scratch.y.shape[0]} rows, expected at least {batch}")
    y, convolved = scratch.y[:batch], scratch.convolved[:batch]
    gate = None if z is None or norm_weight is not None else z.unflatten(1, (heads, head_dim))
    if norm_weight is None:  # the step's own output is the result
        expect_last_contiguous(OP, z=z, out=out)
        out = torch.empty(y.flatten(1).shape, dtype=xBC.dtype, device=xBC.device) if out is None else out
        y = out.unflatten(1, (heads, head_dim))
    x, B, C = convolved.split([heads * head_dim, groups * state_size, groups * state_size], 1)
    x, (B, C) = x.unflatten(1, (heads, head_dim)), (t.unflatten(1, (groups, state_size)) for t in (B, C))
    options: tuple[Any, ...] = (read_slots, write_slots, D, gate, dt_bias, dt_limit, rand_seed, rand_layer)
    ring: tuple[Any, ...] = (x_ring, B_ring, dt_ring, ring_start, pending, window)
    pages = Pages._make((state, *ring, read_slots, write_slots, rand_seed, rand_layer))
    run = launch_parameters(batch * heads, pages.shape(xBC, groups, prefetch), xBC.device)
    if window == 1 or run.fused:
        own = write_slots if read_slots is write_slots else torch.where(read_slots < 0, -1, write_slots)
        causal_conv_step(xBC, conv_weight, conv_window, own, conv_bias, "silu", convolved, prefetch)
        if window == 1:
            plain: tuple[Any, ...] = (x, dt, A, B, C, state, *options, y, prefetch)
            state_step(*plain)
        else:
            inputs = (x[:, None], dt[:, None], A, B[:, None], C[:, None], state)
            arguments: tuple[Any, ...] = (*inputs, *ring, *options, y[:, None], None, prefetch, run)
            checkpointed_step(*arguments)
    else:
        mix, fold = coefficient_buffers(scratch.coefficients, batch, heads, window, xBC.device)
        weights = (conv_weight, conv_bias, A, D, dt_bias, dt_limit)
        _launch_append(run, pages, xBC, dt, conv_window, *weights, C, mix, fold, prefetch)
        launch_output(run, pages, None, C, gate, y, mix, fold)
    if norm_weight is None:
        assert out is not None
        return out
    return gated_rms_norm(y.flatten(1), z, norm_weight, eps, group_size, norm_before_gate, out, prefetch)


def _launch_append(
    run: Launch,
    pages: Pages,
    xBC: Tensor,
    dt: Tensor,
    conv_window: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    A: Tensor,
    D: Tensor | None,
    dt_bias: Tensor | None,
    dt_limit: tuple[float, float],
    C: Tensor,
    mix: Tensor,
    fold: Tensor,
    prefetch: bool,
) -> None:
    op, (heads, head_dim), (groups, state_size) = "mixer_step", pages.state.shape[1:3], C.shape[1:]
    pages.check(op, xBC.dtype)
    expect_no_double(op, xBC, conv_window)
    expect_last_contiguous(op, xBC=xBC, conv_bias=bias, A=A, D=D, dt_bias=dt_bias)
    if xBC.numel() == 0:
        return
    pdl = pdl_options(xBC.device)
    append_kernel[groups + cdiv(heads * head_dim, run.block_x), xBC.shape[0]](
        p_xBC=xBC, p_dt=dt, p_weight=weight, p_bias=bias, p_window=conv_window, p_A=A, p_D=D, p_dt_bias=dt_bias,
        p_C=C, p_mix=mix, p_fold=fold, dt_low=dt_limit[0], dt_high=dt_limit[1],
        stride_xBC=xBC.stride(0), stride_C_b=C.stride(0), stride_dt_b=dt.stride(0), stride_dt_h=dt.stride(1),
        stride_w_c=weight.stride(0), stride_w_k=weight.stride(1),
        stride_cw_slot=conv_window.stride(0), stride_cw_c=conv_window.stride(1), stride_cw_k=conv_window.stride(2),
        **pages.places(), **pages.rings(), **pages.x_rings(),
        H=heads, P=head_dim, N=state_size, G=groups, K=weight.shape[1], CONV_BIAS=bias is not None,
        HAS_D=D is not None, HAS_BIAS=dt_bias is not None, HAS_LIMIT=dt_limit != NO_LIMIT, PREFETCH=prefetch,
        BLOCK_X=run.block_x, BLOCK_H=next_power_of_2(heads // groups),
        BLOCK_N=block_n(state_size), num_warps=run.append_warps, USE_PDL=bool(pdl), **pdl,
    )  # fmt: skip
