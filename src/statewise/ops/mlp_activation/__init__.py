"""What stands between the two projections of an MLP."""

from torch import Tensor

from statewise.ops.common import expect, implementation


def mlp_activation(x: Tensor, *, gated: bool, backend: str = "torch") -> Tensor:
    """Squared ReLU (Nemotron-H), or SiLU of the first half of the channels times the second (SwiGLU; Shazeer, 2020).

        gated False:  relu(x)^2                        (..., D) to (..., D)
        gated True:   silu(x[..., :D]) * x[..., D:]    (..., 2 D) to (..., D)

    x's dtype is kept; on the triton backend everything between is float32 and the result is rounded once. Raises
    ArgumentError where the channels do not divide into two halves. vLLM calls them ``relu2`` and ``silu_and_mul``.
    """
    op = "mlp_activation"
    expect(not gated or x.shape[-1] % 2 == 0, op, f"x has {x.shape[-1]} channels, expected a gate and as many others")
    return implementation(op, backend)(x, gated)
