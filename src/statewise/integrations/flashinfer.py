"""FlashInfer as a backend: what it can run, whether the installed one will do, and the ops that it builds.

``checkpointing_ssu`` of FlashInfer 0.7 and later keeps rings as we do (`statewise.ops.checkpointed_step`). Releases
from 0.6.12 to 0.6.18 export that name with two buffers and other arguments, so the signature is looked at, not the
version.
The limits below are those that its sources (0.7.4) check, static_assert, or take without an error and get wrong.
"""

import importlib
import importlib.util
import inspect
from functools import partial
from types import ModuleType

import torch
from torch import Tensor

from statewise.cache.window import ring_rows
from statewise.errors import BackendError
from statewise.integrations.flashinfer_steps import Steps
from statewise.ops.backend import Needs, Ops
from statewise.ops.common import NO_LIMIT
from statewise.ops.mixer_step.composed import composed

INSTALL = "pip install 'statewise[flashinfer]'"
MAX_WINDOW = 16
HEAD_DIM = 64  # its tiles hold 32 or 64 channels, and it compiles both whole and half a head
STATE_SIZE_STEP = 64
STATE_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
# What we pass, by name.
_CHECKPOINTED = (
    "state", "x_cache", "B_cache", "dt_cache", "ring_start", "prev_num_accepted_tokens", "x", "dt", "A", "B", "C",
    "out", "D", "z", "dt_bias", "dt_softplus", "state_batch_indices", "pad_slot_id", "algorithm", "cb_scaled",
    "cumAdt_vec", "cb_old",
)  # fmt: skip
_PLAIN = (
    "state", "x", "dt", "A", "B", "C", "D", "z", "dt_bias", "dt_softplus", "state_batch_indices",
    "dst_state_batch_indices", "pad_slot_id", "out", "algorithm",
)  # fmt: skip


def obstacle(needs: Needs | None) -> str | None:
    """Why FlashInfer cannot run ``needs``, or None. Looks for its package without importing it."""
    broken = ["it takes some shapes only and none is given"] if needs is None else _broken_limits(needs)
    if importlib.util.find_spec("flashinfer") is None:
        broken.append(f"the package flashinfer is not installed: {INSTALL}")
    return "; ".join(broken) or None


def _broken_limits(needs: Needs) -> list[str]:
    mamba, window = needs.mamba, needs.checkpoint_interval
    limits = {
        f"checkpoint_interval is {window}, it takes 1 to {MAX_WINDOW}": window <= MAX_WINDOW,
        f"the head dim is {mamba.head_dim}, it takes {HEAD_DIM}": mamba.head_dim == HEAD_DIM,
        f"the state size is {mamba.state_size}, it takes multiples of {STATE_SIZE_STEP}": (
            mamba.state_size % STATE_SIZE_STEP == 0
        ),
        f"activations are {needs.dtype}, it takes torch.bfloat16": needs.dtype == torch.bfloat16,
        f"the state is {needs.state_dtype}, it takes {', '.join(map(str, STATE_DTYPES))}": (
            needs.state_dtype in STATE_DTYPES
        ),
        "states are to be rounded stochastically, it rounds them to nearest": not needs.stochastic_rounding,
        f"the model clamps dt to {mamba.dt_limit}, it does not clamp": mamba.dt_limit == NO_LIMIT,
    }
    return [message for message, holds in limits.items() if not holds]


def defect() -> str | None:
    """What is wrong with the FlashInfer that is installed, or None. Imports it."""
    try:
        package, mamba = importlib.import_module("flashinfer"), importlib.import_module("flashinfer.mamba")
    except (ImportError, OSError, RuntimeError) as error:
        return f"flashinfer cannot be imported: {error}"
    for function, wanted in (("checkpointing_ssu", _CHECKPOINTED), ("selective_state_update", _PLAIN)):
        found = f"flashinfer {_version(package)}"
        if not hasattr(mamba, function):
            return f"{found} has no {function}; 0.7 or later is needed: {INSTALL}"
        has = inspect.signature(getattr(mamba, function)).parameters
        if "cache_buf_idx" in has:
            return (
                f"{found} has the {function} of 0.6, with two buffers (old_x, cache_buf_idx) in place of rings; "
                f"0.7 or later is needed: {INSTALL}"
            )
        missing = [name for name in wanted if name not in has]
        if missing:
            return f"{found}: {function} has no argument {', '.join(missing)}; 0.7.4 has: {INSTALL}"
    return None


def summary() -> str:
    """Who runs what, for the reason of the choice."""
    version = _version(importlib.import_module("flashinfer"))
    return f"{version} runs the decode step (compiled for minutes when a shape is new), Triton kernels the rest"


def build(rest: Ops, needs: Needs, device: torch.device) -> Ops:
    """Ops whose decode steps are FlashInfer's; the others are those of ``rest``.

    Every op is named here, so that a new one is not taken from ``rest`` unseen.
    """
    steps = Steps(needs.max_batch)
    return Ops(
        name="flashinfer",
        ssd_prefill=rest.ssd_prefill,
        state_step=steps.state_step,
        checkpointed_step=steps.checkpointed_step,
        mixer_step=composed(rest.causal_conv_step, steps.checkpointed_step, rest.gated_rms_norm),
        fold_pending=rest.fold_pending,
        causal_conv_prefill=rest.causal_conv_prefill,
        causal_conv_step=rest.causal_conv_step,
        gated_rms_norm=rest.gated_rms_norm,
        add_rms_norm=rest.add_rms_norm,
        mlp_activation=rest.mlp_activation,
        advance_trackers=rest.advance_trackers,
        apply_rope=rest.apply_rope,
        paged_attention_step=rest.paged_attention_step,
        paged_attention_prefill=rest.paged_attention_prefill,
        store_kv=rest.store_kv,
        choose_experts=rest.choose_experts,
        sort_by_expert=rest.sort_by_expert,
        grouped_linear=rest.grouped_linear,
        warm_up=partial(warm_up, steps, needs, device),
        reads_dead_rows=True,
    )


def warm_up(steps: Steps, needs: Needs, device: torch.device, index: torch.dtype = torch.int64) -> None:
    """Compile or load the kernels (minutes where FlashInfer meets the shape for the first time), allocate the scratch.

    Runs steps of one padded row, with dtypes as the engine has them: float32 weights, slots of ``index``.
    Raises BackendError where FlashInfer finds no compiler, or compiling, loading or running them fails.
    """
    try:
        _run_once(steps, needs, device, index)
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, OSError) as error:
        line = (str(error).strip().splitlines() or [repr(error)])[0][:200]
        raise BackendError(
            f"backend 'flashinfer' cannot run here: its kernels do not compile, load or run: {line} "
            "(FLASHINFER_JIT_VERBOSE=1 shows the compiler's output); possible: auto; triton; torch; reference"
        ) from error


def _run_once(steps: Steps, needs: Needs, device: torch.device, index: torch.dtype) -> None:
    mamba, window = needs.mamba, needs.checkpoint_interval
    heads, groups, rows = mamba.heads, mamba.groups, ring_rows(window)
    inner, outer = (heads, mamba.head_dim), (groups, mamba.state_size)

    def some(*shape: int, dtype: torch.dtype = needs.dtype) -> Tensor:
        return torch.zeros(shape, dtype=dtype, device=device)

    weight = some(heads, dtype=torch.float32)
    trackers = some(1, dtype=torch.int32)
    args = (some(1, 1, *inner), some(1, 1, heads), weight, some(1, 1, *outer), some(1, 1, *outer))
    for algorithm in ("monolith", "two-kernel"):
        steps.checkpointed_step(
            *args,
            some(1, *inner, mamba.state_size, dtype=needs.state_dtype),
            x_ring=some(1, heads, rows, mamba.head_dim),
            B_ring=some(1, groups, rows, mamba.state_size),
            dt_ring=some(1, heads, rows, dtype=torch.float32),
            ring_start=trackers,
            pending=trackers,
            window=window,
            read_slots=torch.full((1,), -1, dtype=index, device=device),
            D=weight,
            dt_bias=weight,
            algorithm=algorithm,
        )


def _version(package: ModuleType) -> str:
    return str(getattr(package, "__version__", "of an unknown version"))
