"""Add and norm, vectorised."""

from torch import Tensor
from torch.nn.functional import rms_norm

from statewise.ops.common import accumulation_dtype


def add_rms_norm(residual: Tensor, update: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    total = residual if update is None else (residual + update).to(residual.dtype)
    acc = accumulation_dtype(total)
    return rms_norm(total.to(acc), weight.shape, weight.to(acc), eps).to(weight.dtype), total
