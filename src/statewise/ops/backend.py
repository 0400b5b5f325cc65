"""Which implementation of the ops runs. Resolved once, with its reason; nothing falls back in silence."""

import importlib.util
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from statewise import ops
from statewise.errors import BackendError
from statewise.ops.common import BACKENDS


@dataclass(frozen=True)
class Ops:
    """The callables that a layer needs, bound to one backend. Signatures: `statewise.ops`."""

    name: str
    ssd_prefill: Callable[..., tuple[Tensor, Tensor]]
    state_step: Callable[..., Tensor]
    checkpointed_step: Callable[..., Tensor]
    causal_conv_prefill: Callable[..., Tensor]
    causal_conv_step: Callable[..., Tensor]
    gated_rms_norm: Callable[..., Tensor]
    advance_trackers: Callable[..., None]


def resolve(name: str, device: torch.device, double: bool = False) -> tuple[Ops, str]:
    """The ops of backend ``name`` on ``device``, and why it was chosen.

    name: "auto" or a key of BACKENDS.  double: whether any tensor is float64.
    Raises BackendError, listing what can run, for a name that is unknown or cannot run here.
    """
    obstacle = _triton_obstacle(device, double)
    if name == "auto":
        # Not yet "triton" on a GPU: its prefill has shapes that no GPU has run (docs/log.md). It is there by name.
        why = "the Triton kernels are run only by name so far" if obstacle is None else f"triton cannot run, {obstacle}"
        return _bind("torch"), f"torch: {why}"
    if name in BACKENDS and not (name == "triton" and obstacle):
        return _bind(name), f"{name}: asked for"
    can = [f"{key} ({what})" for key, what in BACKENDS.items() if key != "triton" or obstacle is None]
    why = f": {obstacle}" if name == "triton" else ""
    raise BackendError(f"backend {name!r} cannot run here{why}; possible: auto; {'; '.join(can)}")


def _triton_obstacle(device: torch.device, double: bool) -> str | None:
    """Why the Triton kernels cannot run, or None. Its interpreter (TRITON_INTERPRET=1) runs them on a CPU, slowly."""
    if double:
        return "its kernels sum in float32 and float64 is asked for"
    if device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        return f"it needs a GPU and the device is {device.type}"
    if importlib.util.find_spec("triton") is None:
        return "the package triton is not installed"
    return None


def _bind(name: str) -> Ops:
    return Ops(
        name=name,
        ssd_prefill=partial(ops.ssd_prefill, backend=name),
        state_step=partial(ops.state_step, backend=name),
        checkpointed_step=partial(ops.checkpointed_step, backend=name),
        causal_conv_prefill=partial(ops.causal_conv_prefill, backend=name),
        causal_conv_step=partial(ops.causal_conv_step, backend=name),
        gated_rms_norm=partial(ops.gated_rms_norm, backend=name),
        advance_trackers=partial(ops.advance_trackers, backend=name),
    )
