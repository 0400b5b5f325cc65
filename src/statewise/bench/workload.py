"""What a decode benchmark runs on: many layers' caches, one step's inputs, slots at every phase of their rings."""

from dataclasses import dataclass

import torch
from torch import Tensor

from statewise.cache.window import advance
from statewise.config import MAX_CHECKPOINT_INTERVAL
from statewise.errors import ConfigError


@dataclass(frozen=True)
class Shape:
    """One layer's mixer: H heads of P channels, N states, G groups, interval W. Raises ConfigError if it cannot be."""

    heads: int = 128
    head_dim: int = 64
    groups: int = 8
    state_size: int = 128
    window: int = 16

    def __post_init__(self) -> None:
        for name in ("heads", "head_dim", "groups", "state_size"):
            size = getattr(self, name)
            if size < 1:
                raise ConfigError(f"{name} is {size}, expected a whole number, at least 1")
        if self.heads % self.groups:
            raise ConfigError(f"{self.heads} heads do not divide into {self.groups} groups")
        if not 2 <= self.window <= MAX_CHECKPOINT_INTERVAL:
            bounds = f"2 to {MAX_CHECKPOINT_INTERVAL}"
            raise ConfigError(f"checkpoint_interval is {self.window}, expected a whole number, {bounds}")

    @property
    def ring_rows(self) -> int:
        """R = W + 1."""
        return self.window + 1


def floor_bytes(shape: Shape, batch: int, state_dtype: torch.dtype) -> float:
    """The fewest bytes of a checkpointed step of one layer, in the steady state.

    The state once and 1 / W of a write; the live ring rows, (W + 1) / 2 on average, once; the new row; x, dt, B, C
    in and y out.
    """
    state = shape.heads * shape.head_dim * shape.state_size * state_dtype.itemsize
    x, bc = shape.heads * shape.head_dim * 2, shape.groups * shape.state_size * 2
    row = x + bc + shape.heads * 4
    io = 2 * x + 2 * bc + shape.heads * 2
    return batch * (state * (1 + 1 / shape.window) + (shape.window + 1) / 2 * row + row + io)


@dataclass(frozen=True)  # a CUDA graph goes on writing to a tensor that a layer no longer holds
class Layer:
    """Caches and inputs of one layer. Shapes: `statewise.ops.checkpointed_step` with T = 1, without the T dimension."""

    state: Tensor
    x_ring: Tensor
    B_ring: Tensor
    dt_ring: Tensor
    x: Tensor
    dt: Tensor
    B: Tensor
    C: Tensor
    A: Tensor
    D: Tensor
    dt_bias: Tensor
    out: Tensor


class Workload:
    """``layers`` layers for ``batch`` rows, each its own slot, random data, activations bfloat16."""

    def __init__(self, shape: Shape, batch: int, state_dtype: torch.dtype, layers: int, seed: int = 0):
        self.shape, self.batch, self.state_dtype = shape, batch, state_dtype
        self.g = torch.Generator("cuda").manual_seed(seed)
        self.layers = [self._layer() for _ in range(layers)]
        places = torch.randperm(batch, generator=self.g, device="cuda")
        self.slots = torch.randperm(batch, generator=self.g, device="cuda").int()
        self.ring_start = torch.randint(0, shape.ring_rows, (batch,), generator=self.g, device="cuda").int()
        self.pending = (shape.window - places % shape.window).int()  # steady state: one slot in W flushes at each step

    def normal(self, *size: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        """Random numbers, standard normal."""
        return torch.randn(*size, generator=self.g, device="cuda").to(dtype)

    def _layer(self) -> Layer:
        s, b = self.shape, self.batch
        H, P, G, N, R = s.heads, s.head_dim, s.groups, s.state_size, s.ring_rows
        return Layer(
            state=self.normal(b, H, P, N, dtype=self.state_dtype),
            x_ring=self.normal(b, H, R, P),
            B_ring=self.normal(b, G, R, N),
            dt_ring=torch.rand(b, H, R, generator=self.g, device="cuda") * 0.1,
            x=self.normal(b, H, P),
            dt=self.normal(b, H),
            B=self.normal(b, G, N),
            C=self.normal(b, G, N),
            A=-torch.rand(H, generator=self.g, device="cuda") * 4 - 0.5,
            D=self.normal(H, dtype=torch.float32),
            dt_bias=self.normal(H, dtype=torch.float32) - 3,
            out=torch.empty(b, H, P, dtype=torch.bfloat16, device="cuda"),
        )

    def advance(self) -> None:
        """Move the trackers as the engine does after a step."""
        start, pending = advance(self.ring_start, self.pending, 1, 1, self.shape.window, self.shape.ring_rows)
        self.ring_start.copy_(start)
        self.pending.copy_(pending)


def layers_for(shape: Shape, batch: int, state_dtype: torch.dtype) -> int:
    """So many that their states are several times the L2 cache (60 MB on an H200), and at least two."""
    state = batch * shape.heads * shape.head_dim * shape.state_size * state_dtype.itemsize
    return max(2, min(64, int(6e8 // state) + 1))
