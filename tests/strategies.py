"""Random op inputs for hypothesis: shapes are drawn, values come from a seed."""

from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from torch import Tensor


@dataclass(frozen=True)
class Dims:
    heads: int
    head_dim: int
    groups: int
    state_size: int


@st.composite
def dims(draw: st.DrawFn) -> Dims:
    groups = draw(st.integers(1, 3))
    return Dims(groups * draw(st.integers(1, 3)), draw(st.integers(1, 5)), groups, draw(st.integers(1, 6)))


@dataclass(frozen=True)
class Options:
    """Which optional arguments are present."""

    D: bool
    z: bool
    dt_bias: bool
    dt_limit: bool


options = st.builds(Options, st.booleans(), st.booleans(), st.booleans(), st.booleans())


class Inputs:
    """Everything that an SSM op reads for a leading shape such as (L,), (B,) or (B, T)."""

    def __init__(
        self,
        dims: Dims,
        shape: tuple[int, ...],
        present: Options,
        seed: int,
        dtype: torch.dtype = torch.float64,
    ):
        g = torch.Generator().manual_seed(seed)

        def normal(*size: int) -> Tensor:
            return torch.randn(*size, generator=g, dtype=torch.float64).to(dtype)

        self.x = normal(*shape, dims.heads, dims.head_dim)
        self.dt = normal(*shape, dims.heads)
        self.B = normal(*shape, dims.groups, dims.state_size)
        self.C = normal(*shape, dims.groups, dims.state_size)
        self.A = -torch.rand(dims.heads, generator=g, dtype=torch.float64).to(dtype) * 4 - 0.1
        self.options: dict[str, object] = {
            "D": normal(dims.heads) if present.D else None,
            "z": normal(*shape, dims.heads, dims.head_dim) if present.z else None,
            "dt_bias": normal(dims.heads) if present.dt_bias else None,
        }
        if present.dt_limit:
            self.options["dt_limit"] = (0.3, 1.1)

    def at(self, index: object) -> tuple[tuple[Tensor, ...], dict[str, object]]:
        """The positional arguments and the options of the tokens at ``index`` of the leading shape."""
        z = self.options["z"]
        rest = self.options | {"z": None if z is None else z[index]}
        return (self.x[index], self.dt[index], self.A, self.B[index], self.C[index]), rest
