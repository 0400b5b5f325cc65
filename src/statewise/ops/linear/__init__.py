"""A linear layer. For few rows it is a reading of the weights, which a kernel of ours begins before its turn."""

from torch import Tensor

from statewise.ops.common import expect, expect_shape, implementation


def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    activation: str | None = None,
    out: Tensor | None = None,
    backend: str = "torch",
) -> Tensor:
    """``activation(x @ weight.T + bias)``.

    x: (L, K).  weight: (N, K).  bias: (N,).  activation: None or "relu2" (squared ReLU, as in Nemotron-H's MLP), taken
    before the result is rounded where a kernel of ours runs.  out: (L, N), written and returned; for inference.
    Returns (L, N) in x's dtype; sums are float32 (float64 if x is).

    The triton backend runs its own kernel for up to `statewise.ops.linear.triton.MOST_ROWS` rows of 16-bit numbers, and
    PyTorch's library for the rest. Raises ArgumentError where shapes or names do not fit.
    """
    op = "linear"
    expect(x.dim() == 2, op, f"x has shape {tuple(x.shape)}, expected (L, K)")
    rows, width = x.shape
    expect_shape(op, weight=(weight, (weight.shape[0], width)), bias=(bias, (weight.shape[0],)))
    expect_shape(op, out=(out, (rows, weight.shape[0])))
    expect(activation in (None, "relu2"), op, f"activation is {activation!r}, expected None or 'relu2'")
    return implementation(op, backend)(x, weight, bias, activation, out)
