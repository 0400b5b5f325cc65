"""Which implementation of the ops runs. Resolved once, with its reason; nothing falls back in silence."""

import importlib
import importlib.util
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from statewise import ops
from statewise.config import MambaConfig
from statewise.errors import BackendError
from statewise.ops import tuning
from statewise.ops.common import BACKENDS

# What Triton 3.6 compiles for; bfloat16 needs it too.
LEAST_CAPABILITY = (8, 0)
# name -> what it is: those that are modules of the op folders, and those that integrations build.
DESCRIPTIONS = BACKENDS | {"flashinfer": "FlashInfer's decode step, Triton kernels for the rest"}


def _nothing() -> None:
    pass


@dataclass(frozen=True)
class Ops:
    """The callables that a layer needs, bound to one backend. Signatures: `statewise.ops`.

    ``warm_up()`` compiles and allocates what the steps would otherwise compile and allocate when first called. To be
    called before the first step that is timed or captured in a CUDA graph; it changes no tensor of the caller's.
    ``capturable``: whether steps can be captured in a CUDA graph: they neither wait for the host nor ask it.
    ``reads_dead_rows``: whether a NaN in a dead ring row reaches the output; a slot's rings are then zeroed at prefill.
    """

    name: str
    ssd_prefill: Callable[..., tuple[Tensor, Tensor]]
    state_step: Callable[..., Tensor]
    checkpointed_step: Callable[..., Tensor]
    fold_pending: Callable[..., None]
    causal_conv_prefill: Callable[..., Tensor]
    causal_conv_step: Callable[..., Tensor]
    gated_rms_norm: Callable[..., Tensor]
    add_rms_norm: Callable[..., tuple[Tensor, Tensor]]
    mixer_step: Callable[..., Tensor]
    mlp_activation: Callable[..., Tensor]
    advance_trackers: Callable[..., None]
    apply_rope: Callable[..., None]
    paged_attention_step: Callable[..., Tensor]
    paged_attention_prefill: Callable[..., Tensor]
    store_kv: Callable[..., None]
    choose_experts: Callable[..., tuple[Tensor, Tensor]]
    sort_by_expert: Callable[..., tuple[Tensor, Tensor, Tensor]]
    grouped_linear: Callable[..., Tensor]
    warm_up: Callable[[], None] = _nothing
    reads_dead_rows: bool = False
    capturable: bool = False


@dataclass(frozen=True, kw_only=True)
class Needs:
    """What the ops will be asked to run: the mixers of a model, and the dtypes, interval and batch of its caches."""

    mamba: MambaConfig
    dtype: torch.dtype  # of the activations
    state_dtype: torch.dtype
    checkpoint_interval: int
    max_batch: int
    stochastic_rounding: bool = False  # of the states that decode steps write

    @property
    def is_double(self) -> bool:
        """Whether any tensor is float64."""
        return torch.float64 in (self.dtype, self.state_dtype)


def resolve(name: str, device: torch.device, needs: Needs | None = None) -> tuple[Ops, str]:
    """The ops of backend ``name`` on ``device``, and why it was chosen. "auto" is triton on an NVIDIA GPU, else torch.

    name: "auto" or a key of DESCRIPTIONS.  needs: what will be run; None judges the device alone.
    device: may be one that is not there, to plan for another machine; then what only it could tell is not checked.
    Raises BackendError for a name that is unknown or cannot run, listing what can, and why the rest cannot; ConfigError
    for a tuning table of the user's that cannot be used.
    """
    against = obstacles(device, needs)
    if name == "auto":
        return _automatic(device, against["triton"])
    if name == "flashinfer" and against[name] is None:
        flashinfer = _integration(name)
        against[name] = flashinfer.defect()
        if against[name] is None:
            assert needs is not None  # else there is an obstacle
            rest = _bind("triton", device)
            return flashinfer.build(rest, needs, device), f"flashinfer: asked for; {flashinfer.summary()}"
    if name in against and against[name] is None:
        return _bind(name, device), f"{name}: asked for"
    why = f": {against[name]}" if name in against else ""
    can, cannot = listing({key: value for key, value in against.items() if key != name})
    others = f"; not possible: {'; '.join(cannot)}" if cannot else ""
    raise BackendError(f"backend {name!r} cannot run here{why}; possible: auto; {'; '.join(can)}{others}")


def obstacles(device: torch.device, needs: Needs | None = None) -> dict[str, str | None]:
    """Each backend, and why it cannot run, or None. Looks for packages, imports none of them."""
    gpu, interpreted = gpu_obstacle(device), os.environ.get("TRITON_INTERPRET") == "1"
    triton = None if interpreted and device.type == "cpu" else gpu  # its interpreter runs on a CPU, slowly
    if needs is not None and needs.is_double:
        triton = "its kernels sum in float32 and float64 is asked for"
    elif triton is None and importlib.util.find_spec("triton") is None:
        triton = "the package triton is not installed"
    flashinfer = gpu or _integration("flashinfer").obstacle(needs) or (triton and f"the rest runs on triton, {triton}")
    return dict.fromkeys(DESCRIPTIONS) | {"triton": triton, "flashinfer": flashinfer}


def listing(against: dict[str, str | None]) -> tuple[list[str], list[str]]:
    """The backends that can run, with what they are, and those that cannot, with the reason."""
    can = [f"{name} ({DESCRIPTIONS[name]})" for name, obstacle in against.items() if obstacle is None]
    return can, [f"{name} ({obstacle})" for name, obstacle in against.items() if obstacle is not None]


def gpu_obstacle(device: torch.device) -> str | None:
    """Why ``device`` is no GPU that kernels here are written for, or None. None too where it cannot be looked at."""
    if device.type != "cuda":
        return f"it needs an NVIDIA GPU and the device is {device.type}"
    if torch.version.hip:
        return "it needs an NVIDIA GPU and this PyTorch is built for AMD's"
    if torch.cuda.is_available() and torch.cuda.get_device_capability(device) < LEAST_CAPABILITY:
        return f"it needs compute capability {_dotted(LEAST_CAPABILITY)} and the device is {_gpu(device)}"
    return None


def _automatic(device: torch.device, triton: str | None) -> tuple[Ops, str]:
    if device.type != "cuda":
        return _bind("torch", device), f"torch: the device is {device.type}, and triton needs an NVIDIA GPU"
    if triton is not None:
        return _bind("torch", device), f"torch: triton cannot run, {triton}"
    return _bind("triton", device), f"triton: the device is {_gpu(device)}"


def _gpu(device: torch.device) -> str:
    if not torch.cuda.is_available():
        return "an NVIDIA GPU (none is here: its compute capability is not checked)"
    capability = torch.cuda.get_device_capability(device)
    return f"{torch.cuda.get_device_name(device)}, compute capability {_dotted(capability)}"


def _dotted(capability: tuple[int, int]) -> str:
    return ".".join(map(str, capability))


def _integration(name: str) -> Any:
    """Imported when asked about, since integrations build on this module. It imports its package later still."""
    return importlib.import_module(f"statewise.integrations.{name}")


def _bind(name: str, device: torch.device) -> Ops:
    if name == "triton":
        tuning.check(device)
    return Ops(
        name=name,
        capturable=name == "triton",
        ssd_prefill=partial(ops.ssd_prefill, backend=name),
        state_step=partial(ops.state_step, backend=name),
        checkpointed_step=partial(ops.checkpointed_step, backend=name),
        fold_pending=partial(ops.fold_pending, backend=name),
        causal_conv_prefill=partial(ops.causal_conv_prefill, backend=name),
        causal_conv_step=partial(ops.causal_conv_step, backend=name),
        gated_rms_norm=partial(ops.gated_rms_norm, backend=name),
        add_rms_norm=partial(ops.add_rms_norm, backend=name),
        mixer_step=partial(ops.mixer_step, backend=name),
        mlp_activation=partial(ops.mlp_activation, backend=name),
        advance_trackers=partial(ops.advance_trackers, backend=name),
        apply_rope=partial(ops.apply_rope, backend=name),
        paged_attention_step=partial(ops.paged_attention_step, backend=name),
        paged_attention_prefill=partial(ops.paged_attention_prefill, backend=name),
        store_kv=partial(ops.store_kv, backend=name),
        choose_experts=partial(ops.choose_experts, backend=name),
        sort_by_expert=partial(ops.sort_by_expert, backend=name),
        grouped_linear=partial(ops.grouped_linear, backend=name),
    )
