"""The MLP of Nemotron-H: up projection, squared ReLU, down projection."""

from torch import Tensor, nn

from statewise.config import MLPConfig


class MLP(nn.Module):
    """(L, hidden) -> (L, hidden), token by token; no state."""

    def __init__(self, hidden_size: int, config: MLPConfig):
        super().__init__()
        self.up_proj = nn.Linear(hidden_size, config.inner_size, bias=config.bias)
        self.down_proj = nn.Linear(config.inner_size, hidden_size, bias=config.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.up_proj(x).relu().square())
