"""The whole of a mixer between its projections: ours in three launches, the peers' as their best parts in a row.

A peer is the step of each contender of `bench op` between vLLM's tuned convolution step and its gated norm.
"""

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from statewise.bench.contenders import Call, Contender, Step, contenders, in_double
from statewise.bench.workload import Layer, Shape, Workload, floor_bytes
from statewise.ops import mixer_step
from statewise.ops.mixer_step.scratch import Scratch

WIDTH, EPS = 4, 1e-5


def mixer_floor_bytes(shape: Shape, batch: int, state_dtype: torch.dtype) -> float:
    """The fewest bytes of a mixer's step: those of the checkpointed step but its inputs and its output, the channels
    before the convolution, the windows read and written, the gate, the output; the weights once a layer."""
    inner, bc = shape.heads * shape.head_dim, 2 * shape.groups * shape.state_size
    channels = inner + bc
    row = channels * (1 + 2 * (WIDTH - 1)) + 2 * inner
    weights = channels * (WIDTH + 1) + inner
    return floor_bytes(shape, batch, state_dtype) + 2 * (batch * (row - 2 * inner - bc) + weights)


@dataclass(frozen=True)
class MixerLayer(Layer):
    """x, B and C are views of ``convolved``, where a peer's convolution leaves them."""

    xBC: Tensor  # noqa: N815
    z: Tensor
    conv_window: Tensor
    conv_weight: Tensor
    conv_bias: Tensor
    norm_weight: Tensor
    convolved: Tensor


class MixerWorkload(Workload):
    """Layers with what their convolutions and norms need beside their steps."""

    layers: list[MixerLayer]  # type: ignore[assignment]

    def _layer(self) -> MixerLayer:
        s, d = self.shape, super()._layer()
        inner, states = s.heads * s.head_dim, s.groups * s.state_size
        channels = inner + 2 * states
        projected = self.normal(self.batch, inner + channels + s.heads)
        z, xBC, dt = projected.split([inner, channels, s.heads], 1)
        convolved = torch.empty(self.batch, channels, dtype=torch.bfloat16, device="cuda")
        x, B, C = convolved.split([inner, states, states], 1)
        parts = {name: t.unflatten(1, vars(d)[name].shape[1:]) for name, t in (("x", x), ("B", B), ("C", C))}
        return MixerLayer(
            **(vars(d) | parts | {"dt": dt}),
            xBC=xBC,
            z=z,
            conv_window=self.normal(self.batch, WIDTH - 1, channels).mT,  # as the pool lays it, and vLLM
            conv_weight=self.normal(WIDTH, channels).T / 2,
            conv_bias=self.normal(channels),
            norm_weight=self.normal(inner),
            convolved=convolved,
        )


def mixer_contenders() -> list[Contender]:
    """Ours, and the combinations of what is installed."""
    found = [
        Contender("statewise plain", "plain", True, _ours(plain=True)),
        Contender("statewise", "checkpointed", True, _ours(plain=False)),
    ]
    if importlib.util.find_spec("vllm"):
        found += [_with_vllm(contender) for contender in contenders() if not contender.ours]
    return found


def _ours(plain: bool) -> Callable[[Any], tuple[Call, None]]:
    def make(w: MixerWorkload) -> tuple[Call, None]:
        s, window = w.shape, 1 if plain else w.shape.window
        shape = (w.batch, s.heads, s.head_dim, s.groups, s.state_size, window)
        scratch = Scratch.allocate(*shape, torch.bfloat16, torch.device("cuda"))
        options: dict[str, Any] = {"window": window, "scratch": scratch, "prefetch": True, "backend": "triton"}

        def call(d: MixerLayer) -> Tensor:
            return mixer_step(**mixer_arguments(d, w), **options)

        return call, None

    return make


def mixer_arguments(d: MixerLayer, w: MixerWorkload) -> dict[str, Any]:
    """Of `statewise.ops.mixer_step`."""
    caches = ("conv_window", "state", "x_ring", "B_ring", "dt_ring")
    inputs = ("xBC", "dt", "z", "A", "D", "dt_bias", "conv_weight", "conv_bias", "norm_weight")
    return {name: getattr(d, name) for name in (*caches, *inputs)} | {
        "ring_start": w.ring_start,
        "pending": w.pending,
        "read_slots": w.slots,
        "eps": EPS,
        "group_size": w.shape.heads * w.shape.head_dim // w.shape.groups,
    }


def _with_vllm(contender: Contender) -> Contender:
    """The step of ``contender`` between vLLM's convolution and its norm."""

    def make(w: Any) -> tuple[Call, Step | None]:
        from vllm.model_executor.layers.mamba.ops.causal_conv1d import causal_conv1d_update
        from vllm.model_executor.layers.mamba.ops.layernorm_gated import rms_norm_gated

        step, advance = contender.make(w)
        own = {id(d): (d.conv_window.clone(), d.conv_weight.contiguous()) for d in w.layers}
        group_size = w.shape.heads * w.shape.head_dim // w.shape.groups

        def call(d: MixerLayer) -> Tensor:
            window, weight = own[id(d)]
            causal_conv1d_update(
                d.xBC, window, weight, d.conv_bias, "silu", conv_state_indices=w.slots,
                null_block_id=-1, out=d.convolved,
            )  # fmt: skip
            y = step(d)
            norm = {"z": d.z, "eps": EPS, "group_size": group_size, "norm_before_gate": False}
            normed: Tensor = rms_norm_gated(y.flatten(1), d.norm_weight, None, **norm)
            return normed

        return call, advance

    return replace(contender, make=make)


def mixer_error(contender: Contender, shape: Shape, state_dtype: torch.dtype, batch: int) -> float:
    """As `statewise.bench.op.error`, of the normalised outputs."""
    w = MixerWorkload(shape, batch, state_dtype, layers=1)
    if not contender.shares_rings:
        w.pending.fill_(1)
    call, _ = contender.make(w)
    is_plain = contender.kind == "plain" or not contender.shares_rings
    arguments = in_double(mixer_arguments(w.layers[0], w))
    exact = mixer_step(**arguments, window=1 if is_plain else shape.window)
    return float((call(w.layers[0]).double().cpu() - exact).norm() / exact.norm())
