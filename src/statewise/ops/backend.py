"""Which implementation of the ops runs. Resolved once, with its reason; nothing falls back in silence."""

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


def resolve(name: str, device: torch.device) -> tuple[Ops, str]:
    """The ops of backend ``name`` on ``device``, and why it was chosen.

    name: "auto" or a key of BACKENDS. Raises BackendError, listing what can run, for any other name.
    """
    if name == "auto":
        return _bind("torch"), f"torch: the only fast backend so far, on {device.type}"
    if name not in BACKENDS:
        can = "; ".join(f"{key} ({what})" for key, what in BACKENDS.items())
        raise BackendError(f"backend {name!r} cannot run here; possible: auto; {can}")
    return _bind(name), f"{name}: asked for"


def _bind(name: str) -> Ops:
    return Ops(
        name=name,
        ssd_prefill=partial(ops.ssd_prefill, backend=name),
        state_step=partial(ops.state_step, backend=name),
        checkpointed_step=partial(ops.checkpointed_step, backend=name),
        causal_conv_prefill=partial(ops.causal_conv_prefill, backend=name),
        causal_conv_step=partial(ops.causal_conv_step, backend=name),
        gated_rms_norm=partial(ops.gated_rms_norm, backend=name),
    )
