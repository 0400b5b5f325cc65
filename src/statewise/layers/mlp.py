"""The MLP between two projections: the squared ReLU of Nemotron-H, or gated by SiLU (SwiGLU, Shazeer, 2020)."""

from torch import Tensor, nn
from torch.nn.functional import silu

from statewise.config import MLPConfig


class MLP(nn.Module):
    """(L, hidden) -> (L, hidden), token by token; no state. Gated: the rows of the gate first in ``up_proj``."""

    def __init__(self, hidden_size: int, config: MLPConfig):
        super().__init__()
        self.gated = config.gated
        self.up_proj = nn.Linear(hidden_size, up_size(config.inner_size, config.gated), bias=config.bias)
        self.down_proj = nn.Linear(config.inner_size, hidden_size, bias=config.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(activation(self.up_proj(x), self.gated))


def up_size(inner_size: int, gated: bool) -> int:
    """Rows of the up projection."""
    return 2 * inner_size if gated else inner_size


def activation(x: Tensor, gated: bool) -> Tensor:
    """(..., up_size) -> (..., inner_size)."""
    if not gated:
        return x.relu().square()
    gate, up = x.chunk(2, dim=-1)
    return silu(gate) * up
