"""The checkpointed step on an NVIDIA GPU, T = 1: one kernel at small batches, two at large ones. See the README."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from statewise.errors import ArgumentError
from statewise.ops import tuning
from statewise.ops.checkpointed_step.scratch import block_n, block_w, scratch_size
from statewise.ops.checkpointed_step.triton_fused import fused_kernel
from statewise.ops.checkpointed_step.triton_split import coefficients_kernel, output_kernel
from statewise.ops.common import NO_LIMIT, expect
from statewise.ops.triton_common import (
    INTERPRETED,
    cdiv,
    expect_last_contiguous,
    expect_no_double,
    next_power_of_2,
    pdl_options,
)
from statewise.ops.tuning import StepShape

OP = "checkpointed_step"


@dataclass(frozen=True)
class Launch:
    """How a step is launched: in one kernel or in two, and with which blocks."""

    fused: bool
    block_p: int
    block_h: int = 16  # of the coefficients kernel
    num_warps: int = 1
    coefficient_warps: int = 1

    def grid(self, out: Tensor) -> tuple[int, int, int]:
        """Of the kernel that reads the states. out: (B, ..., H, P)."""
        return cdiv(out.shape[-1], self.block_p), out.shape[-2], out.shape[0]


def launch_parameters(rows: int, shape: StepShape, device: torch.device | None) -> Launch:
    """For so many (row, head) pairs: as measured on this GPU, or else by `rule`."""
    return tuning.lookup(OP, Launch, rows, shape, device) or rule(rows, shape)


def rule(rows: int, shape: StepShape) -> Launch:
    """From measurements on an H200 with 128 states; see docs/log.md.

    One kernel pays while restoring states is hidden behind the kernel in front (prefetch), or where launches are all
    that counts. Rings longer than 32 rows of 128 states do not fit its registers.
    """
    fits = shape.block_w * block_n(shape.state_size) <= 4096
    if fits and rows <= (1024 if shape.prefetch else 256):
        return Launch(True, _block_p(2048 if rows <= 128 else 4096, shape))
    return split_rule(rows, shape)


def split_rule(rows: int, shape: StepShape) -> Launch:
    """As `rule`, of two kernels. 16-bit states want larger tiles once the batch fills the device."""
    return Launch(False, _block_p(4096 if rows >= 8192 and shape.state_bytes == 2 else 2048, shape))


def _block_p(size: int, shape: StepShape) -> int:
    """Channels of a tile of so many numbers, enough for the matrix units."""
    return max(16, min(64, size // block_n(shape.state_size), next_power_of_2(shape.head_dim)))


class Pages(NamedTuple):
    """A layer's caches and trackers, the rows' places in them, and how a checkpoint is rounded.

    Shapes: `statewise.ops.checkpointed_step`.
    """

    state: Tensor
    x_ring: Tensor
    B_ring: Tensor
    dt_ring: Tensor
    ring_start: Tensor
    pending: Tensor
    window: int
    read_slots: Tensor
    write_slots: Tensor
    rand_seed: Tensor | None
    rand_layer: int

    def check(self, op: str, activation: torch.dtype) -> None:
        """Raise ArgumentError for dtypes or strides that the kernels do not take. activation: x's dtype."""
        expect_no_double(op, self.state, self.x_ring)
        dtypes = (self.x_ring.dtype, self.B_ring.dtype, self.dt_ring.dtype)
        if dtypes != (activation, activation, torch.float32):
            given = ", ".join(map(str, dtypes))
            wanted = f"{activation}, {activation}, {torch.float32}"
            raise ArgumentError(f"{op}: x_ring, B_ring and dt_ring are {given}, the triton backend expects {wanted}")
        expect_last_contiguous(
            op,
            state=self.state,
            x_ring=self.x_ring,
            B_ring=self.B_ring,
            dt_ring=self.dt_ring,
            ring_start=self.ring_start,
            pending=self.pending,
        )

    def shape(self, x: Tensor, groups: int, prefetch: bool) -> StepShape:
        """What decides about the launch. x: anything of the activation dtype."""
        heads, head_dim, state_size = self.state.shape[1:]
        itemsizes = self.state.element_size(), x.element_size()
        return StepShape(head_dim, state_size, *itemsizes, heads // groups, block_w(self.window), prefetch)

    def places(self) -> dict[str, Any]:
        """Kernel arguments: who is where."""
        return {
            "p_start": self.ring_start, "p_pending": self.pending, "p_read": self.read_slots,
            "p_write": self.write_slots, "stride_read": self.read_slots.stride(0),
            "stride_write": self.write_slots.stride(0),
            "W": self.window, "R": self.x_ring.shape[2], "BLOCK_W": block_w(self.window),
        }  # fmt: skip

    def rings(self) -> dict[str, Any]:
        """Kernel arguments: the rings of B and dt."""
        slot, head, _ = self.dt_ring.stride()
        return {"p_dt_ring": self.dt_ring, "stride_dtr_slot": slot, "stride_dtr_h": head, **self.B_rings()}

    def B_rings(self) -> dict[str, Any]:
        """Kernel arguments: the rings of B."""
        slot, group, place, _ = self.B_ring.stride()
        return {"p_B_ring": self.B_ring, "stride_Br_slot": slot, "stride_Br_g": group, "stride_Br_r": place}

    def x_rings(self) -> dict[str, Any]:
        """Kernel arguments: the rings of x."""
        slot, head, place, _ = self.x_ring.stride()
        return {"p_x_ring": self.x_ring, "stride_xr_slot": slot, "stride_xr_h": head, "stride_xr_r": place}

    def states(self) -> dict[str, Any]:
        """Kernel arguments: the checkpoints, and how they are rounded."""
        slot, head, channel, _ = self.state.stride()
        return {
            "p_state": self.state, "stride_s_slot": slot, "stride_s_h": head, "stride_s_p": channel,
            "p_rand_seed": self.rand_seed, "rand_layer": self.rand_layer, "HAS_SEED": self.rand_seed is not None,
        }  # fmt: skip


def coefficient_buffers(scratch: Tensor | None, batch: int, heads: int, window: int, device: torch.device) -> Any:
    """mix and fold, (batch, heads, BLOCK_W + 2) each, cut from ``scratch`` or new."""
    size = scratch_size(batch, heads, window)
    if scratch is None:
        scratch = torch.empty(size, dtype=torch.float32, device=device)
    return scratch[:size].view(2, batch, heads, -1)


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
    rand_seed: Tensor | None,
    rand_layer: int,
    out: Tensor | None = None,
    scratch: Tensor | None = None,
    prefetch: bool = False,
    run: Launch | None = None,
) -> Tensor:
    """run: how it is launched; None: as `launch_parameters` says."""
    (batch, tokens, heads, _), (groups, state_size) = x.shape, B.shape[2:]
    expect(tokens == 1, OP, f"T is {tokens}, the triton backend takes T = 1; backends torch and reference take more")
    pages = Pages(
        state, x_ring, B_ring, dt_ring, ring_start, pending, window, read_slots, write_slots, rand_seed, rand_layer
    )
    pages.check(OP, x.dtype)
    expect_last_contiguous(OP, x=x, B=B, C=C, z=z, A=A, D=D, dt_bias=dt_bias, out=out)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device) if out is None else out
    if out.numel() == 0:
        return out
    if run is None:
        run = launch_parameters(batch * heads, pages.shape(x, groups, prefetch), x.device)
    inputs = {
        "p_dt": dt, "p_A": A, "p_B": B, "p_C": C, "p_D": D, "p_dt_bias": dt_bias,
        "dt_low": dt_limit[0], "dt_high": dt_limit[1], "stride_dt_b": dt.stride(0), "stride_dt_h": dt.stride(2),
        "stride_B_b": B.stride(0), "stride_B_g": B.stride(2), "stride_C_b": C.stride(0), "stride_C_g": C.stride(2),
        "HAS_D": D is not None, "HAS_BIAS": dt_bias is not None, "HAS_LIMIT": dt_limit != NO_LIMIT,
        "PREFETCH": prefetch, **pages.rings(),
    }  # fmt: skip
    if run.fused:
        fused_kernel[run.grid(out)](**(output_arguments(run, pages, x, C, z, out) | inputs))
        return out
    mix, fold = coefficient_buffers(scratch, batch, heads, window, x.device)
    pdl = pdl_options(x.device)
    coefficients_kernel[cdiv(heads // groups, run.block_h), groups, batch](
        **inputs, **pages.places(), p_mix=mix, p_fold=fold, H=heads, N=state_size, HEADS_PER_GROUP=heads // groups,
        BLOCK_N=block_n(state_size), BLOCK_H=run.block_h, num_warps=run.coefficient_warps,
        USE_PDL=bool(pdl), **pdl,
    )  # fmt: skip
    launch_output(run, pages, x, C, z, out, mix, fold)
    return out


def launch_output(
    run: Launch, pages: Pages, x: Tensor | None, C: Tensor, z: Tensor | None, out: Tensor, mix: Tensor, fold: Tensor
) -> None:
    """The second kernel. x: (B, ..., H, P), or None where the first has appended it. C: (B, ..., G, N)."""
    output_kernel[run.grid(out)](
        **output_arguments(run, pages, x, C, z, out), p_mix=mix, p_fold=fold, H=out.shape[-2],
        X_IN_RING=x is None, BLOCK_C=min(32 if pages.rand_seed is None else 16, block_n(C.shape[-1])),
    )  # fmt: skip


def output_arguments(
    run: Launch, pages: Pages, x: Tensor | None, C: Tensor, z: Tensor | None, out: Tensor
) -> dict[str, Any]:
    """Arguments of whichever kernel reads the states."""
    (heads, head_dim), state_size = out.shape[-2:], C.shape[-1]
    pdl, given = pdl_options(out.device), out if x is None else x
    return {
        "p_x": x, "p_C": C, "p_z": z, "p_out": out,
        "stride_x_b": given.stride(0), "stride_x_h": given.stride(-2),
        "stride_C_b": C.stride(0), "stride_C_g": C.stride(-2),
        "stride_z_b": 0 if z is None else z.stride(0), "stride_z_h": 0 if z is None else z.stride(-2),
        "stride_o_b": out.stride(0), "stride_o_h": out.stride(-2),
        **pages.places(), **pages.states(), **pages.x_rings(), **pages.B_rings(),
        "P": head_dim, "N": state_size, "HEADS_PER_GROUP": heads // C.shape[-2], "HAS_Z": z is not None,
        "BLOCK_P": run.block_p, "BLOCK_N": block_n(state_size),
        "BF16_PARTS": _parts(out.dtype, pages.state.dtype), "num_warps": run.num_warps,
        "USE_PDL": bool(pdl), **pdl,
    }  # fmt: skip
