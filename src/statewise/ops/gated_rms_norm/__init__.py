"""The grouped RMS norm with a SiLU gate that closes a Mamba-2 mixer."""

from torch import Tensor

from statewise.ops.common import expect, expect_shape, implementation


def gated_rms_norm(
    x: Tensor,
    z: Tensor | None = None,
    weight: Tensor | None = None,
    *,
    eps: float = 1e-5,
    group_size: int | None = None,
    norm_before_gate: bool = False,
    backend: str = "torch",
) -> Tensor:
    """Normalise and gate the rows of x.

        norm_before_gate False:  rms_norm(x * silu(z)) * weight      (Mamba-2, Nemotron-H, Granite-4-H, Bamba, Zamba2)
        norm_before_gate True:   rms_norm(x) * weight * silu(z)
        weight None:             x * silu(z), no norm at all         (Falcon-H1 with mamba_rms_norm off)

    x, z: (..., D).  z None: no gate.  weight: (D,).  group_size: the norm is taken over groups of so many channels;
    None: over all D.  Returns (..., D) in x's dtype; the mean is float32 (float64 if x is).
    Raises ArgumentError where shapes do not fit, or if group_size does not divide D.
    mamba_ssm calls it ``RMSNormGated``.
    """
    channels = x.shape[-1]
    group_size = channels if group_size is None else group_size
    expect_shape("gated_rms_norm", z=(z, tuple(x.shape)), weight=(weight, (channels,)))
    divides = group_size > 0 and channels % group_size == 0
    expect(divides, "gated_rms_norm", f"group_size {group_size} does not divide {channels} channels")
    run = implementation("gated_rms_norm", backend)
    return run(x, z, weight, eps, group_size, norm_before_gate)
