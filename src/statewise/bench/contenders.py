"""Who is timed: our steps, and every peer that can be imported. A contender runs one step of one layer of a workload.

FlashInfer (0.7 and later) runs on the very same tensors, since the ring contract is its own, through the adapter of our
backend. vLLM's replay keeps rings of its own: W rows, a write position a batch row, and a flush that folds the new row.
"""

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from statewise.bench.workload import Layer, Workload
from statewise.integrations.flashinfer_steps import Steps, tied
from statewise.ops import checkpointed_step, state_step

Step = Callable[[], None]
Call = Callable[[Any], Tensor]  # of a Layer: runs its step and returns the outputs, in ``layer.out`` or its own


@dataclass(frozen=True)
class Contender:
    """``make(workload)`` returns the step of a layer and what advances its own trackers after all, if it has any."""

    name: str
    kind: str  # "plain" or "checkpointed"
    ours: bool
    make: Callable[[Workload], tuple[Call, Step | None]]
    shares_rings: bool = True  # False: it has rings of its own, with ``pending - 1`` rows in them at the start


def contenders() -> list[Contender]:
    """Ours, and those whose package is installed."""
    found = [
        Contender("statewise plain", "plain", True, _our_plain),
        Contender("statewise", "checkpointed", True, _our_checkpointed),
    ]
    if importlib.util.find_spec("flashinfer"):
        for algorithm in ("auto", "simple", "vertical"):
            found.append(Contender(f"flashinfer plain {algorithm}", "plain", False, _flashinfer_plain(algorithm)))
        for algorithm in ("monolith", "two-kernel"):
            found.append(Contender(f"flashinfer {algorithm}", "checkpointed", False, _flashinfer(algorithm)))
    if importlib.util.find_spec("vllm"):
        found.append(Contender("vllm plain", "plain", False, _vllm_plain))
        found.append(Contender("vllm replay", "checkpointed", False, _vllm_replay, shares_rings=False))
    if importlib.util.find_spec("mamba_ssm"):
        found.append(Contender("mamba_ssm plain", "plain", False, _mamba_ssm))
    return found


def step_arguments(d: Layer, w: Workload) -> dict[str, Any]:
    """Of `statewise.ops.checkpointed_step`: one token of each row of the workload, in layer ``d``."""
    tokens = {name: getattr(d, name)[:, None] for name in ("x", "dt", "B", "C")}
    names = ("A", "D", "dt_bias", "state", "x_ring", "B_ring", "dt_ring")
    trackers = {"ring_start": w.ring_start, "pending": w.pending, "window": w.shape.window, "read_slots": w.slots}
    return tokens | {name: getattr(d, name) for name in names} | trackers


def in_double(arguments: dict[str, Any]) -> dict[str, Any]:
    """The same arguments of an op on the CPU, floating point as float64, for its exact result."""
    return {name: _double(value) if isinstance(value, Tensor) else value for name, value in arguments.items()}


def _double(t: Tensor) -> Tensor:
    return (t.double() if t.is_floating_point() else t).cpu()


def _our_plain(w: Workload) -> tuple[Call, None]:
    def call(d: Layer) -> Tensor:
        return state_step(
            d.x,
            d.dt,
            d.A,
            d.B,
            d.C,
            d.state,
            read_slots=w.slots,
            D=d.D,
            dt_bias=d.dt_bias,
            prefetch=True,
            backend="triton",
        )

    return call, None


def _our_checkpointed(w: Workload) -> tuple[Call, None]:
    def call(d: Layer) -> Tensor:
        # The promise of prefetch holds: no other layer writes this one's caches.
        return checkpointed_step(**step_arguments(d, w), prefetch=True, backend="triton")[:, 0]

    return call, None


def _flashinfer_plain(algorithm: str) -> Callable[[Workload], tuple[Call, None]]:
    def make(w: Workload) -> tuple[Call, None]:
        steps = Steps(w.batch)
        # It wants one dtype for dt, D and dt_bias: here that of dt, so that it has nothing to cast.
        weights = {id(d): (d.D.to(d.dt.dtype), d.dt_bias.to(d.dt.dtype)) for d in w.layers}

        def call(d: Layer) -> Tensor:
            D, bias = weights[id(d)]
            steps.state_step(
                d.x, d.dt, d.A, d.B, d.C, d.state, read_slots=w.slots, D=D, dt_bias=bias, out=d.out, algorithm=algorithm
            )
            return d.out

        return call, None

    return make


def _flashinfer(algorithm: str) -> Callable[[Workload], tuple[Call, None]]:
    def make(w: Workload) -> tuple[Call, None]:
        steps = Steps(w.batch)

        def call(d: Layer) -> Tensor:
            steps.checkpointed_step(**step_arguments(d, w), out=d.out[:, None], algorithm=algorithm)
            return d.out

        return call, None

    return make


def _vllm_plain(w: Workload) -> tuple[Call, None]:
    from vllm.model_executor.layers.mamba.ops.mamba_ssm import selective_state_update

    weights = {id(d): tied(d.A, d.D, d.dt_bias, d.dt, d.state) for d in w.layers}

    def call(d: Layer) -> Tensor:
        A, D, bias, dt = weights[id(d)]
        selective_state_update(
            d.state, d.x, dt, A, d.B, d.C, D, bias, dt_softplus=True, state_batch_indices=w.slots,
            dst_state_batch_indices=w.slots, null_block_id=-1, out=d.out,
        )  # fmt: skip
        return d.out

    return call, None


def _vllm_replay(w: Workload) -> tuple[Call, Step]:
    from vllm.model_executor.layers.mamba.ops.selective_state_update_replayssm_output_only import (
        selective_state_update_replayssm_output_only as replay,
    )

    s, rows = w.shape, w.shape.window
    shared = {
        "bc_pre": torch.empty(w.batch, s.groups, rows, device="cuda"),
        "write_pos": (w.pending - 1).clone(),
        "is_flush": (w.pending == rows).to(torch.int8),
    }
    weights = {id(d): tied(d.A, d.D, d.dt_bias, d.dt, d.state) for d in w.layers}
    rings = {
        id(d): {
            "x_cache": w.normal(w.batch, s.heads, rows, s.head_dim),
            "dt_cache": torch.rand(w.batch, s.heads, rows, device="cuda") * 0.1,
            "B_cache": w.normal(w.batch, s.groups, rows, s.state_size),
        }
        for d in w.layers
    }

    def call(d: Layer) -> Tensor:
        A, D, bias, dt = weights[id(d)]
        replay(
            d.state, d.x, dt, A, d.B, d.C, D, bias, dt_softplus=True, max_cache_len=rows,
            state_batch_indices=w.slots, null_block_id=-1, out=d.out, **rings[id(d)], **shared,
        )  # fmt: skip
        return d.out

    def advance() -> None:
        shared["write_pos"].copy_((shared["write_pos"] + 1) % rows)
        shared["is_flush"].copy_((shared["write_pos"] == rows - 1).to(torch.int8))

    return call, advance


def _mamba_ssm(w: Workload) -> tuple[Call, None]:
    from mamba_ssm.ops.triton.selective_state_update import selective_state_update

    weights = {id(d): tied(d.A, d.D, d.dt_bias, d.dt, d.state) for d in w.layers}

    def call(d: Layer) -> Tensor:
        A, D, bias, dt = weights[id(d)]
        out: Tensor = selective_state_update(
            d.state, d.x, dt, A, d.B, d.C, D, dt_bias=bias, dt_softplus=True, state_batch_indices=w.slots
        )
        return out

    return call, None
