"""What a router decides: which experts each token takes, and with what weights."""

import torch
from torch import Tensor

from statewise.ops.common import expect, expect_shape, implementation


def choose_experts(
    scores: Tensor,
    chosen: int,
    *,
    bias: Tensor | None = None,
    allowed: Tensor | None = None,
    normalised: bool = True,
    scale: float = 1.0,
    dtype: torch.dtype | None = None,
    backend: str = "torch",
) -> tuple[Tensor, Tensor]:
    """Take the ``chosen`` best experts of each token, the best first, and of equal ones the first.

        bias None:   best by scores;             weights = softmax(scores of the chosen)              (Mixtral, Granite)
        bias:        best by s + bias,           weights = s of the chosen, with s = sigmoid(scores)  (DeepSeek-V3)
                     normalised: divided by their sum + 1e-20; then times scale

    scores: (L, experts).  bias: (experts,).  allowed: (L, experts) bool, at least ``chosen`` a row, or None: all.
    normalised, scale: with a bias alone.  dtype: of the weights; None: that of the scores.
    Returns weights and experts (int64), (L, chosen). Sums are float32 (float64 if the scores are). Experts are valid
    numbers whatever the scores are; scores that are not numbers give weights that are none. Raises ArgumentError where
    shapes do not fit.
    """
    op = "choose_experts"
    expect(scores.dim() == 2, op, f"scores has shape {tuple(scores.shape)}, expected (L, experts)")
    rows, experts = scores.shape
    expect(0 < chosen <= experts, op, f"chosen is {chosen}, expected 1 to {experts}")
    expect_shape(op, bias=(bias, (experts,)), allowed=(allowed, (rows, experts)))
    given = bias is not None or (normalised and scale == 1.0)
    expect(given, op, "normalised or scale is given without a bias, expected both or neither")
    return implementation(op, backend)(scores, chosen, bias, allowed, normalised, scale, dtype or scores.dtype)
