"""The MLP between two projections: the squared ReLU of Nemotron-H, or gated by SiLU (SwiGLU, Shazeer, 2020)."""

from torch import Tensor, nn

from statewise.config import MLPConfig
from statewise.ops.backend import Ops
from statewise.ops.mlp_activation.torch import mlp_activation


class MLP(nn.Module):
    """(L, hidden) -> (L, hidden), token by token; no state. Gated: the rows of the gate first in ``up_proj``."""

    def __init__(self, hidden_size: int, config: MLPConfig, ops: Ops):
        super().__init__()
        self.gated, self.ops = config.gated, ops
        self.up_proj = nn.Linear(hidden_size, up_size(config.inner_size, config.gated), bias=config.bias)
        self.down_proj = nn.Linear(config.inner_size, hidden_size, bias=config.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.ops.mlp_activation(self.up_proj(x), gated=self.gated))

    def whole(self, x: Tensor) -> Tensor:
        """(rows, T, hidden): the forward of training, with the torch op, under which autograd and torch.compile run."""
        return self.down_proj(mlp_activation(self.up_proj(x), self.gated))


def up_size(inner_size: int, gated: bool) -> int:
    """Rows of the up projection."""
    return 2 * inner_size if gated else inner_size
