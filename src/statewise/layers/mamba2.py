"""The Mamba-2 mixer: projection, convolution, state update, gated norm, projection, for decode and prefill rows."""

import torch
from torch import Tensor, nn

from statewise.cache.mamba import MambaLayerCache
from statewise.config import MambaConfig
from statewise.layers.batch import Batch
from statewise.ops.backend import Ops


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
        self.norm.weight = nn.Parameter(torch.empty(config.inner_size))
        self.out_proj = nn.Linear(config.inner_size, hidden_size, bias=config.proj_bias)

    def forward(self, hidden: Tensor, batch: Batch, cache: MambaLayerCache) -> Tensor:
        config, decode = self.config, batch.decode_count
        z, xBC, dt = self.in_proj(hidden).split([config.inner_size, config.conv_channels, config.heads], -1)
        A = -torch.exp(self.A_log)
        parts = []
        if decode:
            parts.append(self._decode(xBC[:decode], dt[:decode], A, batch, cache))
        if len(batch.prefill_starts):
            parts.append(self._prefill(xBC[decode:], dt[decode:], A, batch, cache))
        y = torch.cat(parts).flatten(1)
        group_size = config.inner_size // config.groups
        y = self.ops.gated_rms_norm(y, z, self.norm.weight, eps=self.eps, group_size=group_size)
        return self.out_proj(y)

    def _decode(self, xBC: Tensor, dt: Tensor, A: Tensor, batch: Batch, cache: MambaLayerCache) -> Tensor:
        weight, slots = self.conv1d.weight.squeeze(1), batch.decode_slots
        xBC = self.ops.causal_conv_step(xBC, weight, cache.conv_window, slots, bias=self.conv1d.bias)
        x, B, C = self._heads(xBC[:, None])
        y = self.ops.checkpointed_step(
            x,
            dt[:, None],
            A,
            B,
            C,
            cache.state,
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
        )
        return y[:, 0]

    def _prefill(self, xBC: Tensor, dt: Tensor, A: Tensor, batch: Batch, cache: MambaLayerCache) -> Tensor:
        slots, has_state = batch.prefill_slots, batch.has_state
        xBC = self.ops.causal_conv_prefill(
            xBC,
            self.conv1d.weight.squeeze(1),
            batch.cu_seqlens,
            bias=self.conv1d.bias,
            window=cache.conv_window,
            slots=slots,
            has_window=has_state,
        )
        x, B, C = self._heads(xBC)
        y, final = self.ops.ssd_prefill(
            x,
            dt,
            A,
            B,
            C,
            batch.cu_seqlens,
            initial_states=cache.state[slots],
            has_initial_state=has_state,
            D=self.D,
            dt_bias=self.dt_bias,
            dt_limit=self.config.dt_limit,
        )
        cache.state[slots] = final.to(cache.state.dtype)
        return y

    def _heads(self, xBC: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x (..., H, P), B and C (..., G, N): views of the convolution's output, no copies."""
        config = self.config
        states = config.groups * config.state_size
        x, B, C = xBC.split([config.inner_size, states, states], -1)
        heads, groups = (config.heads, config.head_dim), (config.groups, config.state_size)
        return x.unflatten(-1, heads), B.unflatten(-1, groups), C.unflatten(-1, groups)
