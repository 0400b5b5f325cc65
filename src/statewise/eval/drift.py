"""How far a state that is rounded when it is written wanders from the exact one, over thousands of tokens.

One mixer, new requests, random inputs; the same inputs for every way to keep the state. Exact is a float64 scan of the
same tokens. Activations are float32 unless asked otherwise, so that what is seen is the rounding of states.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from statewise.ops.backend import resolve
from statewise.verify.side import Side, make_weights
from statewise.verify.sides import relative
from statewise.verify.target import Target

LONGEST = 256  # tokens that float64 takes at once
POINTS = (1, 2, 5)  # of each decade
FIRST_SEED = 0


@dataclass(frozen=True)
class Way:
    """How states are kept: their dtype, tokens between two writes, and how a write rounds."""

    state_dtype: torch.dtype
    window: int
    stochastic: bool

    @property
    def name(self) -> str:
        """For a table."""
        return f"{str(self.state_dtype).removeprefix('torch.')}{', stochastic' if self.stochastic else ''}"


@dataclass(frozen=True)
class Drift:
    """Relative errors at one token: the root mean square over heads, and the worst head's.

    output: of the mixer's output at that token, all channels together, before the output projection.
    """

    token: int
    state: float
    worst_head: float
    output: float


def ways(state_dtypes: Sequence[torch.dtype], windows: Sequence[int]) -> list[Way]:
    """All combinations; 16-bit states are rounded to nearest and stochastically."""
    return [
        Way(dtype, window, stochastic)
        for dtype in state_dtypes
        for stochastic in ((False, True) if dtype.itemsize == 2 else (False,))
        for window in windows
    ]


def measured_at(tokens: int) -> list[int]:
    """1, 2, 5, 10, 20, 50 and so on, and ``tokens``."""
    decades = range(len(str(tokens)))
    return [*(t for t in (first * 10**d for d in decades for first in POINTS) if t < tokens), tokens]


def measure(
    target: Target,
    found: Sequence[Way],
    tokens: int,
    rows: int,
    dt_range: tuple[float, float],
    on_token: Callable[[int], None] | None = None,
) -> dict[Way, list[Drift]]:
    """Decode ``tokens`` tokens of ``rows`` requests in every way. dt_range: of the heads, at an input of 0.

    on_token: told how many are done, now and then.
    """
    inputs = _Inputs(target, rows, dt_range)
    sides = {way: _side(target, way, rows, inputs.weights) for way in found}
    torch_ops, _ = resolve("torch", target.device)
    exact = Side(target, torch_ops, target.spec(is_double=True), rows, inputs.weights)
    for side in (*sides.values(), exact):
        for name in ("state", "conv_window"):  # as new requests have them; dead ring rows keep their NaN
            getattr(side.pool, name).zero_()
    drifts: dict[Way, list[Drift]] = {way: [] for way in found}
    done = 0
    for token in measured_at(tokens):
        for projected in inputs.chunks(token - done):
            exact_y = _scan(exact, projected, inputs.rows, continues=done > 0)[:, -1]
            outputs = {way: _decode(side, projected, inputs.rows) for way, side in sides.items()}
            done += projected.shape[1]
            if on_token:
                on_token(done)
        state = exact.state_now(inputs.rows)
        for way, side in sides.items():
            drifts[way].append(_drift(token, side.state_now(inputs.rows), state, outputs[way], exact_y))
    return drifts


class _Inputs:
    """Weights, and one stream of tokens that all ways and float64 see."""

    def __init__(self, target: Target, rows: int, dt_range: tuple[float, float]):
        self.target = target
        self.g = torch.Generator(target.device).manual_seed(1)
        self.weights = make_weights(target, self.g, dt_range)
        self.rows = torch.arange(rows, device=target.device)

    def chunks(self, tokens: int) -> Iterator[Tensor]:
        """(rows, T, width) at a time."""
        m, device = self.target.mamba, self.target.device
        width = m.inner_size + m.conv_channels + m.heads
        for first in range(0, tokens, LONGEST):
            shape = (len(self.rows), min(LONGEST, tokens - first), width)
            yield torch.randn(shape, generator=self.g, device=device).to(self.target.dtype)


def _side(target: Target, way: Way, rows: int, weights: dict[str, Tensor]) -> Side:
    kept = replace(target, state_dtype=way.state_dtype, window=way.window)
    seed = torch.tensor([FIRST_SEED], dtype=torch.int64, device=target.device) if way.stochastic else None
    return Side(kept, target.tested, kept.spec(), rows, weights, seed)


def _scan(exact: Side, projected: Tensor, rows: Tensor, continues: bool) -> Tensor:
    edges = torch.arange(len(rows) + 1, device=rows.device) * projected.shape[1]
    has_state = torch.full((len(rows),), continues, device=rows.device)
    return exact.prefill(projected.flatten(0, 1), edges, rows, has_state).view(len(rows), projected.shape[1], -1)


def _decode(side: Side, projected: Tensor, rows: Tensor) -> Tensor:
    """The outputs of the last of these tokens."""
    for token in projected.unbind(1):
        y = side.decode(token, rows).clone()
        side.advance(rows)
    return y


def _drift(token: int, state: Tensor, exact: Tensor, y: Tensor, exact_y: Tensor) -> Drift:
    heads = relative(state, exact, 2)
    return Drift(
        token=token,
        state=float(heads.square().mean().sqrt()),
        worst_head=float(heads.max()),
        output=float(relative(y, exact_y, 2)),
    )
