"""The activation of an MLP by PyTorch."""

from torch import Tensor
from torch.nn.functional import silu


def mlp_activation(x: Tensor, gated: bool) -> Tensor:
    if not gated:
        return x.relu().square()
    gate, up = x.chunk(2, dim=-1)
    return silu(gate) * up
