"""FlashInfer's decode steps behind the signatures of our ops: the same tensors, nothing copied."""

import functools
import importlib
from typing import Any

import torch
from torch import Tensor

from statewise.ops.common import NO_LIMIT, expect


class Steps:
    """The two decode steps. Shapes as in `statewise.ops`; FlashInfer checks them itself.

    Beyond the limits of `statewise.integrations.flashinfer.obstacle`: x, B, C and z have contiguous (H, P) or (G, N),
    their rows a multiple of 16 bytes apart; dt has stride 1 from head to head; states and rings are contiguous but for
    the slot; R is W + T. Dead ring rows must be finite: the monolith multiplies them by zero (seen with NaN on an H200;
    two kernels do not). Every shape, T and set of dtypes (slots of int32 and of int64 are two) is a kernel of its own.
    """

    def __init__(self, max_batch: int):
        """max_batch: rows of the largest step; the scratch of the two-kernel form is allocated for it, once."""
        mamba = importlib.import_module("flashinfer.mamba")
        self._plain, self._checkpointed = mamba.selective_state_update, mamba.checkpointing_ssu
        self._allocate = mamba.allocate_checkpointing_ssu_scratch
        self._max_batch = max_batch
        self._scratches: dict[tuple[Any, ...], dict[str, Tensor]] = {}

    def checkpointed_step(
        self,
        x: Tensor,
        dt: Tensor,
        A: Tensor,
        B: Tensor,
        C: Tensor,
        state: Tensor,
        *,
        x_ring: Tensor,
        B_ring: Tensor,
        dt_ring: Tensor,
        ring_start: Tensor,
        pending: Tensor,
        window: int,
        read_slots: Tensor,
        write_slots: Tensor | None = None,
        D: Tensor | None = None,
        z: Tensor | None = None,
        dt_bias: Tensor | None = None,
        dt_limit: tuple[float, float] = NO_LIMIT,
        rand_seed: Tensor | None = None,
        rand_layer: int = 0,
        prefetch: bool = False,
        out: Tensor | None = None,
        algorithm: str | None = None,
    ) -> Tensor:
        """`statewise.ops.checkpointed_step`, with write_slots the very same as read_slots, and round to nearest.

        prefetch: a promise that is of no use here.
        out: where the outputs go, rows of pads untouched; None makes a new tensor, zero there.
        algorithm: FlashInfer's "monolith" or "two-kernel", or "auto", its autotuner's choice; None: what was measured.
        """
        op = "checkpointed_step"
        if window == 1:
            y = self.state_step(
                x[:, 0],
                dt[:, 0],
                A,
                B[:, 0],
                C[:, 0],
                state,
                read_slots=read_slots,
                write_slots=write_slots,
                D=D,
                z=None if z is None else z[:, 0],
                dt_bias=dt_bias,
                dt_limit=dt_limit,
                rand_seed=rand_seed,
                out=None if out is None else out[:, 0],
            )
            return y[:, None]
        _check(op, x, B, C, z, D, dt_bias, dt_limit, rand_seed)
        expect(
            write_slots is None or write_slots is read_slots,
            op,
            "the flashinfer backend writes the slots that it reads; backends triton, torch and reference take others",
        )
        rows = window + x.shape[1]
        expect(x_ring.shape[2] == rows, op, f"R = {x_ring.shape[2]} ring rows, flashinfer expects W + T = {rows}")
        if out is None:
            out = torch.zeros(x.shape, dtype=x.dtype, device=x.device)
        if out.numel() == 0:
            return out
        algorithm = algorithm or choose(x.shape[0] * x.shape[2], state.element_size())
        A, D, dt_bias, dt = tied(A, D, dt_bias, dt, state)
        self._checkpointed(
            state=state, x_cache=x_ring, B_cache=B_ring, dt_cache=dt_ring, ring_start=ring_start,
            prev_num_accepted_tokens=pending, x=x, dt=dt, A=A, B=B, C=C, out=out, D=D, z=z, dt_bias=dt_bias,
            dt_softplus=True, state_batch_indices=read_slots.contiguous(), pad_slot_id=-1, algorithm=algorithm,
            **({} if algorithm == "monolith" else self._scratch(x, window)),
        )  # fmt: skip
        return out

    def state_step(
        self,
        x: Tensor,
        dt: Tensor,
        A: Tensor,
        B: Tensor,
        C: Tensor,
        state: Tensor,
        *,
        read_slots: Tensor,
        write_slots: Tensor | None = None,
        D: Tensor | None = None,
        z: Tensor | None = None,
        dt_bias: Tensor | None = None,
        dt_limit: tuple[float, float] = NO_LIMIT,
        rand_seed: Tensor | None = None,
        rand_layer: int = 0,
        prefetch: bool = False,
        out: Tensor | None = None,
        algorithm: str = "auto",
    ) -> Tensor:
        """`statewise.ops.state_step`, for at least as many slots as rows, and round to nearest.

        FlashInfer wants dt, D and dt_bias of one dtype: dt, B x H numbers, is widened to theirs rather than rounding
        the weights. out: as above, rows of pads undefined.  algorithm: "auto", "simple", "vertical" or "horizontal".
        """
        _check("state_step", x, B, C, z, D, dt_bias, dt_limit, rand_seed)
        if D is None:
            D = _zeros(x.shape[1], dt.dtype if dt_bias is None else dt_bias.dtype, x.device)
        result = torch.empty(x.shape, dtype=x.dtype, device=x.device) if out is None else out
        if result.numel() == 0:
            return result
        if write_slots is read_slots:
            write_slots = None
        if write_slots is not None:  # it writes whatever it reads: a pad in either must be one in both
            pad = (read_slots < 0) | (write_slots < 0)
            read_slots, write_slots = (torch.where(pad, -1, t.to(read_slots.dtype)) for t in (read_slots, write_slots))
        A, D, dt_bias, dt = tied(A, D, dt_bias, dt.to(D.dtype), state)
        self._plain(
            state=state, x=x, dt=dt, A=A, B=B, C=C, D=D, z=z, dt_bias=dt_bias, dt_softplus=True,
            state_batch_indices=read_slots, dst_state_batch_indices=write_slots, pad_slot_id=-1, out=result,
            algorithm=algorithm,
        )  # fmt: skip
        return result.masked_fill_((read_slots < 0)[:, None, None], 0) if out is None else result

    def _scratch(self, x: Tensor, window: int) -> dict[str, Tensor]:
        """What the two-kernel form writes between its kernels; one set serves all layers of a device."""
        batch, heads = x.shape[0], x.shape[2]
        key = (x.device, heads, window)
        message = f"{batch} rows, but the largest batch was said to be {self._max_batch}"
        expect(batch <= self._max_batch, "checkpointed_step", message)
        if key not in self._scratches:
            made = self._allocate(self._max_batch, heads, 1, window, x.dtype, x.device)
            self._scratches[key] = dict(zip(("cb_scaled", "cumAdt_vec", "cb_old"), made, strict=True))
        return self._scratches[key]


def choose(pairs: int, itemsize: int) -> str:
    """The faster form for so many (row, head) pairs and bytes a state element: bench/results, H200, 2026-11-30.

    Two kernels won at batch 4 to 16 of 128 heads with a float32 state and at 16 with a bfloat16 one, the monolith below
    and from 32 on. FlashInfer's own rule takes two kernels from one pair a multiprocessor on, up to 22 % slower.
    """
    return "two-kernel" if (512 if itemsize == 4 else 2048) <= pairs < 4096 else "monolith"


def tied(
    A: Tensor, D: Tensor | None, dt_bias: Tensor | None, dt: Tensor, state: Tensor
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor]:
    """A, D, dt_bias and dt as FlashInfer, vLLM and mamba_ssm take them: one number a head, stride 0 within it.

    A, D, dt_bias: (H,).  dt: (..., H).  state: (S, H, P, N).  Returns views of (H, P, N), (H, P), (H, P), (..., H, P).
    """
    _, heads, head_dim, state_size = state.shape
    D, dt_bias = (None if t is None else t[:, None].expand(heads, head_dim) for t in (D, dt_bias))
    return A[:, None, None].expand(heads, head_dim, state_size), D, dt_bias, dt[..., None].expand(*dt.shape, head_dim)


def _check(
    op: str,
    x: Tensor,
    B: Tensor,
    C: Tensor,
    z: Tensor | None,
    D: Tensor | None,
    dt_bias: Tensor | None,
    dt_limit: tuple[float, float],
    rand_seed: Tensor | None,
) -> None:
    """What FlashInfer would take without an error, and get wrong or fault on."""
    expect(x.dtype == torch.bfloat16, op, f"x is {x.dtype}, the flashinfer backend takes torch.bfloat16")
    expect(dt_limit == NO_LIMIT, op, f"dt_limit is {dt_limit}, the flashinfer backend does not clamp dt")
    expect(rand_seed is None, op, "rand_seed is given, the flashinfer backend rounds to nearest")
    if D is not None and dt_bias is not None:
        message = f"D is {D.dtype} and dt_bias {dt_bias.dtype}, the flashinfer backend takes one dtype"
        expect(D.dtype == dt_bias.dtype, op, message)
    for name, tensor in {"x": x, "B": B, "C": C, "z": z}.items():
        if tensor is not None:
            message = f"{name} has strides {tensor.stride()}, the flashinfer backend takes rows of multiples of 8"
            rows = zip(tensor.shape[:-2], tensor.stride(), strict=False)
            expect(all(stride % 8 == 0 for size, stride in rows if size > 1), op, message)


@functools.cache
def _zeros(heads: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The D of a mixer without one; FlashInfer's plain step needs it."""
    return torch.zeros(heads, dtype=dtype, device=device)
