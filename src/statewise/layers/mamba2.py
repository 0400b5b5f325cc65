"""The Mamba-2 mixer: projection, convolution, state update, gated norm, projection, for decode and prefill rows."""

from typing import Any

import torch
from torch import Tensor, nn

from statewise.cache.mamba import MambaLayerCache
from statewise.config import MambaConfig
from statewise.layers.batch import Batch
from statewise.ops.backend import Ops
from statewise.ops.causal_conv.torch import causal_conv_rows
from statewise.ops.gated_rms_norm.torch import gated_rms_norm
from statewise.ops.mixer_step.scratch import Scratch
from statewise.ops.ssd_prefill.torch import ssd_rows


class Mamba2Mixer(nn.Module):
    """(L, hidden) -> (L, hidden). Parameter names and shapes are those of the released checkpoints."""

    def __init__(self, hidden_size: int, config: MambaConfig, eps: float, ops: Ops):
        super().__init__()
        self.config, self.eps, self.ops = config, eps, ops
        rows = config.inner_size + config.conv_channels + config.heads
        self.in_proj = nn.Linear(hidden_size, rows, bias=config.proj_bias)
        self.conv1d = nn.Conv1d(
            config.conv_channels,
            config.conv_channels,
            config.conv_width,
            groups=config.conv_channels,
            bias=config.conv_bias,
        )
        self.dt_bias = nn.Parameter(torch.empty(config.heads))
        self.A_log = nn.Parameter(torch.empty(config.heads))
        self.D = nn.Parameter(torch.empty(config.heads))
        self.norm = nn.Module()
        weight = nn.Parameter(torch.empty(config.inner_size)) if config.norm else None
        self.norm.register_parameter("weight", weight)
        self.out_proj = nn.Linear(config.inner_size, hidden_size, bias=config.proj_bias)

        self.A: Tensor | None = None
        self.conv_weight: Tensor | None = None

    def prepare(self) -> None:
        """Compute once what depends on the weights alone. For inference, after they have been loaded."""
        self.A = -torch.exp(self.A_log.detach())
        self.conv_weight = self.conv1d.weight.detach().squeeze(1).T.contiguous().T  # the channels of a tap side by side

    def forward(self, hidden: Tensor, batch: Batch, cache: MambaLayerCache, scratch: Scratch | None = None) -> Tensor:
        """scratch: of at least as many rows as decode, for the backend that uses it; None: it allocates."""
        decode, norm = batch.decode_count, self._norm()
        z, xBC, dt = self._split(hidden)
        A, parts = self._A(), []
        if decode:
            slots = batch.decode_slots
            parts.append(self._decode(xBC[:decode], dt[:decode], z[:decode], A, slots, cache, scratch, norm))
        if batch.prefill_count:
            y = self._prefill(xBC[decode:], dt[decode:], A, batch, cache)
            parts.append(self.ops.gated_rms_norm(y.flatten(1), z[decode:], self.norm.weight, **norm))
        return self.out_proj(parts[0] if len(parts) == 1 else torch.cat(parts))

    def whole(self, hidden: Tensor) -> Tensor:
        """(rows, T, hidden), sequences of one length from their first token, no cache: the forward of training.

        Differentiable, so always by the torch ops, whatever the backend. Under autocast the projections alone multiply
        in 16 bits; convolution, scan and norm sum in float32.
        """
        config, norm_weight = self.config, self.norm.weight
        assert norm_weight is None or isinstance(norm_weight, Tensor)
        z, xBC, dt = self._split(hidden)
        with torch.autocast(hidden.device.type, enabled=False):
            x, B, C = self._heads(causal_conv_rows(xBC, self._conv_weight(), self.conv1d.bias))
            A = -torch.exp(self.A_log)  # not what `prepare` has kept: it has no gradient
            y = ssd_rows(x, dt, A, B, C, D=self.D, dt_bias=self.dt_bias, dt_limit=config.dt_limit)
            y = gated_rms_norm(y.flatten(-2), z, norm_weight, **self._norm(), norm_before_gate=False)
        return self.out_proj(y)

    def _split(self, hidden: Tensor) -> tuple[Tensor, ...]:
        """z (..., H * P), xBC (..., channels of the convolution), dt (..., H)."""
        config = self.config
        return self.in_proj(hidden).split([config.inner_size, config.conv_channels, config.heads], -1)

    def _norm(self) -> dict[str, Any]:
        return {"eps": self.eps, "group_size": self.config.inner_size // self.config.groups}

    def _decode(
        self,
        xBC: Tensor,
        dt: Tensor,
        z: Tensor,
        A: Tensor,
        slots: Tensor,
        cache: MambaLayerCache,
        scratch: Scratch | None,
        norm: dict[str, Any],
    ) -> Tensor:
        return self.ops.mixer_step(
            xBC,
            dt,
            z,
            conv_weight=self._conv_weight(),
            conv_bias=self.conv1d.bias,
            conv_window=cache.conv_window,
            A=A,
            state=cache.state,
            x_ring=cache.x_ring,
            B_ring=cache.B_ring,
            dt_ring=cache.dt_ring,
            ring_start=cache.ring_start,
            pending=cache.pending,
            window=cache.checkpoint_interval,
            read_slots=slots,
            D=self.D,
            dt_bias=self.dt_bias,
            dt_limit=self.config.dt_limit,
            norm_weight=self.norm.weight,
            **norm,
            rand_seed=cache.rand_seed,
            rand_layer=cache.layer_index,
            out=None if scratch is None else scratch.normed[: slots.shape[0]],
            scratch=scratch,
            prefetch=True,  # the matrix product in front, an ordinary launch, writes none of the caches
        )

    def fold(self, cache: MambaLayerCache, slots: Tensor) -> None:
        """Fold the pending rows of ``slots``, (n,), into their states."""
        self.ops.fold_pending(
            cache.state,
            cache.x_ring,
            cache.B_ring,
            cache.dt_ring,
            self._A(),
            slots,
            ring_start=cache.ring_start,
            pending=cache.pending,
            window=cache.checkpoint_interval,
            rand_seed=cache.rand_seed,
            rand_layer=cache.layer_index,
        )

    def _A(self) -> Tensor:
        return -torch.exp(self.A_log) if self.A is None else self.A

    def _conv_weight(self) -> Tensor:
        return self.conv1d.weight.squeeze(1) if self.conv_weight is None else self.conv_weight

    def _prefill(self, xBC: Tensor, dt: Tensor, A: Tensor, batch: Batch, cache: MambaLayerCache) -> Tensor:
        xBC = self.ops.causal_conv_prefill(
            xBC,
            self._conv_weight(),
            batch.cu_seqlens,
            bias=self.conv1d.bias,
            window=cache.conv_window,
            slots=batch.prefill_slots,
            has_window=batch.has_state,
        )
        x, B, C = self._heads(xBC)
        y, _ = self.ops.ssd_prefill(
            x,
            dt,
            A,
            B,
            C,
            batch.cu_seqlens,
            has_initial_state=batch.has_state,
            state=cache.state,
            slots=batch.prefill_slots,
            D=self.D,
            dt_bias=self.dt_bias,
            dt_limit=self.config.dt_limit,
        )
        return y

    def _heads(self, xBC: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x (..., H, P), B and C (..., G, N): views of the convolution's output, no copies."""
        config = self.config
        states = config.groups * config.state_size
        x, B, C = xBC.split([config.inner_size, states, states], -1)
        heads, groups = (config.heads, config.head_dim), (config.groups, config.state_size)
        return x.unflatten(-1, heads), B.unflatten(-1, groups), C.unflatten(-1, groups)
