"""What stands between two layers: the residual takes up the layer's output, and the next one reads its RMS norm."""

from torch import Tensor

from statewise.ops.common import expect, expect_shape, implementation


def add_rms_norm(
    residual: Tensor, update: Tensor | None, weight: Tensor, *, eps: float = 1e-5, backend: str = "torch"
) -> tuple[Tensor, Tensor]:
    """``total = residual + update`` and ``rms_norm(total) * weight``.

    residual, update: (L, D).  update None: total is the residual itself.  weight: (D,).  Sums and means are float32
    (float64 if the residual is).  Returns the normed rows, in the weight's dtype, and the total, in the residual's;
    both are new, except where total is the residual. The sum is normed as it is stored, so rounded if the residual is.
    A row's result depends on that row alone. Raises ArgumentError where shapes do not fit.
    vLLM calls it ``fused_add_rms_norm``.
    """
    op = "add_rms_norm"
    expect(residual.dim() == 2, op, f"residual has shape {tuple(residual.shape)}, expected (L, D)")
    expect_shape(op, update=(update, tuple(residual.shape)), weight=(weight, (residual.shape[1],)))
    return implementation(op, backend)(residual, update, weight, eps)
