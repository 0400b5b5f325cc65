"""One mixer in one precision: caches, weights and ops, which it calls as layers/mamba2.py and engine/runner.py do."""

import math
from typing import Any

import torch
from torch import Tensor

from statewise.cache.mamba import MambaLayerCache, MambaPool
from statewise.cache.spec import MambaSpec
from statewise.ops import fold_pending, move_slots
from statewise.ops.backend import Ops
from statewise.ops.mixer_step.scratch import Scratch
from statewise.verify.target import Target

PAGES = ("state", "conv_window", "x_ring", "B_ring", "dt_ring")
TRACKERS = ("ring_start", "pending")
_WIDE = ("A", "D", "dt_bias")  # float32 beside weights of 16 bits


def make_weights(target: Target, g: torch.Generator, dt_range: tuple[float, float] = (1e-3, 1e-1)) -> dict[str, Tensor]:
    """Weights as mamba_ssm initialises them: A in -16 to -1, dt within dt_range where its input is 0."""
    m, device = target.mamba, target.device

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, device=device)

    low, high = map(math.log, dt_range)
    dt = torch.exp(torch.rand(m.heads, generator=g, device=device) * (high - low) + low)
    weights = {
        "conv_weight": (normal(m.conv_width, m.conv_channels) / 2).T,  # the channels of a tap side by side
        "norm_weight": 1 + normal(m.inner_size) / 4,
        "A": -1 - 15 * torch.rand(m.heads, generator=g, device=device),
        "D": normal(m.heads),
        "dt_bias": dt + torch.log(-torch.expm1(-dt)),  # softplus of it is dt
    }
    if m.conv_bias:
        weights["conv_bias"] = normal(m.conv_channels) / 4
    return {name: w if name in _WIDE else w.to(target.dtype) for name, w in weights.items()}


class Side:
    """``pool`` has one layer. A padded row or sequence has slot -1. rand_seed: (1,), if states are rounded by it."""

    def __init__(
        self,
        target: Target,
        ops: Ops,
        spec: MambaSpec,
        slots: int,
        weights: dict[str, Tensor],
        rand_seed: Tensor | None = None,
    ):
        self.target, self.ops, self.spec = target, ops, spec
        self.dtype = spec.activation_dtype
        self.pool = MambaPool(spec, slots, target.device, True, rand_seed)
        self.cache = self.pool.layer(0)
        is_double = self.dtype == torch.float64
        self.weights = {name: w.double() if is_double else w for name, w in weights.items()}
        m = target.mamba
        self._options: dict[str, Any] = {"dt_limit": m.dt_limit, "D": self.weights["D"]}
        self._norm: dict[str, Any] = {"eps": target.eps, "group_size": m.inner_size // m.groups}
        self._scratch: Scratch | None = None

    def decode(self, projected: Tensor, slots: Tensor) -> Tensor:
        """One token a row. projected: (B, inner + channels + H), as the input projection does. Returns (B, inner)."""
        m, w, cache = self.target.mamba, self.weights, self.cache
        projected = projected.to(self.dtype, copy=True)  # an ordinary launch in front, as the engine's matrix product
        z, xBC, dt = projected.split([m.inner_size, m.conv_channels, m.heads], 1)
        return self.ops.mixer_step(
            xBC,
            dt,
            z,
            conv_weight=w["conv_weight"],
            conv_bias=w.get("conv_bias"),
            conv_window=cache.conv_window,
            A=w["A"],
            state=cache.state,
            x_ring=cache.x_ring,
            B_ring=cache.B_ring,
            dt_ring=cache.dt_ring,
            ring_start=cache.ring_start,
            pending=cache.pending,
            window=self.spec.checkpoint_interval,
            read_slots=slots,
            dt_bias=w["dt_bias"],
            norm_weight=w["norm_weight"],
            **self._options,
            **self._norm,
            rand_seed=cache.rand_seed,
            scratch=self._scratch_of(len(slots)),
            prefetch=True,
        )

    def advance(self, slots: Tensor) -> None:
        """Move the trackers past a token of each row, and the seed of stochastic rounding."""
        window, rows = self.spec.checkpoint_interval, self.spec.ring_rows
        trackers = (self.pool.ring_start, self.pool.pending, slots)
        self.ops.advance_trackers(*trackers, tokens=1, accepted=1, window=window, ring_rows=rows)
        if self.pool.rand_seed is not None:
            self.pool.rand_seed += 1

    def prefill(self, projected: Tensor, cu_seqlens: Tensor, slots: Tensor, has_state: Tensor) -> Tensor:
        """Packed sequences. projected: (L, inner + channels + H). Returns (L, inner). Nothing is pending then."""
        m, w, cache = self.target.mamba, self.weights, self.cache
        projected = projected.to(self.dtype, copy=True)
        z, xBC, dt = projected.split([m.inner_size, m.conv_channels, m.heads], 1)
        xBC = self.ops.causal_conv_prefill(
            xBC,
            w["conv_weight"],
            cu_seqlens,
            bias=w.get("conv_bias"),
            window=cache.conv_window,
            slots=slots,
            has_window=has_state,
        )
        states = m.groups * m.state_size
        x, B, C = xBC.split([m.inner_size, states, states], 1)
        y, _ = self.ops.ssd_prefill(
            x.unflatten(1, (m.heads, m.head_dim)),
            dt,
            w["A"],
            B.unflatten(1, (m.groups, m.state_size)),
            C.unflatten(1, (m.groups, m.state_size)),
            cu_seqlens,
            has_initial_state=has_state,
            state=cache.state,
            slots=slots,
            dt_bias=w["dt_bias"],
            **self._options,
        )
        self.pool.ring_start[slots] = 0
        self.pool.pending[slots] = 0
        if self.ops.reads_dead_rows:
            self.pool.clear_rings(slots)
        return self.ops.gated_rms_norm(y.flatten(1), z, w["norm_weight"], **self._norm)

    def move(self, sources: Tensor, destinations: Tensor) -> None:
        """Whole slots: pages and trackers."""
        tensors = [getattr(self.pool, name) for name in (*PAGES, *TRACKERS)]
        backend = "torch" if self.ops.name == "torch" else "triton"
        slot_dims = [1] * len(PAGES) + [0] * len(TRACKERS)
        move_slots(tensors, sources, destinations, slot_dims=slot_dims, backend=backend)

    def copy_of(self, slots: Tensor) -> dict[str, Tensor]:
        """All that these slots hold."""
        pages = {name: getattr(self.pool, name)[:, slots] for name in PAGES}
        return pages | {name: getattr(self.pool, name)[slots] for name in TRACKERS}

    def restore(self, slots: Tensor, saved: dict[str, Tensor]) -> None:
        """Put back what `copy_of` these slots returned."""
        for name in PAGES:
            getattr(self.pool, name)[:, slots] = saved[name]
        for name in TRACKERS:
            getattr(self.pool, name)[slots] = saved[name]

    def state_now(self, slots: Tensor) -> Tensor:
        """`folded_state` of these slots."""
        return folded_state(self.cache, self.weights["A"].double(), slots)

    def _scratch_of(self, rows: int) -> Scratch | None:
        """One for all steps, as the runner has it; grows when a larger batch comes."""
        if self.ops.name != "triton":
            return None
        if self._scratch is None or self._scratch.y.shape[0] < rows:
            m, window = self.target.mamba, self.spec.checkpoint_interval
            shape = (rows, m.heads, m.head_dim, m.groups, m.state_size, window)
            self._scratch = Scratch.allocate(*shape, self.dtype, self.target.device)
        return self._scratch


def folded_state(cache: MambaLayerCache, A: Tensor, slots: Tensor) -> Tensor:
    """The states with their pending rows folded in, (n, H, P, N), float64: what a request has, whatever W is.

    A: (H,), float64.
    """
    state, own = cache.state[slots].double(), torch.arange(len(slots), device=slots.device)
    if cache.checkpoint_interval > 1:
        x_ring, B_ring, dt_ring = (ring[slots].double() for ring in (cache.x_ring, cache.B_ring, cache.dt_ring))
        fold_pending(
            state,
            x_ring,
            B_ring,
            dt_ring,
            A,
            own,
            ring_start=cache.ring_start[slots],
            pending=cache.pending[slots],
            window=cache.checkpoint_interval,
        )
    return state


def same_bits(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    """Whether all tensors are equal bit by bit, NaN included."""
    return all(torch.equal(_bytes(tensor), _bytes(b[name])) for name, tensor in a.items())


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(torch.uint8)
