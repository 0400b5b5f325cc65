"""The gated norm, vectorised."""

from torch import Tensor
from torch.nn import functional as F

from statewise.ops.common import accumulation_dtype


def gated_rms_norm(
    x: Tensor, z: Tensor | None, weight: Tensor | None, eps: float, group_size: int, norm_before_gate: bool
) -> Tensor:
    acc = accumulation_dtype(x)
    y = x.to(acc)
    gate = None if z is None else F.silu(z.to(acc))
    if gate is not None and (weight is None or not norm_before_gate):
        y = y * gate
    if weight is not None:
        y = F.rms_norm(y.unflatten(-1, (-1, group_size)), (group_size,), eps=eps).flatten(-2) * weight.to(acc)
        if gate is not None and norm_before_gate:
            y = y * gate
    return y.to(x.dtype)
