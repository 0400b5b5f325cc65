"""How the kernels are run in tests: on a GPU at full size where there is one, else in Triton's interpreter.

The interpreter is switched on in conftest, before Triton is imported.
"""

import pytest
import torch

HAS_GPU = torch.cuda.is_available()
pytest.importorskip("triton", reason="Triton is not installed")

DEVICE = torch.device("cuda" if HAS_GPU else "cpu")
# The interpreter truncates casts to bfloat16 and gets its dot products wrong.
ACTIVATIONS = [torch.float32, torch.float16, torch.bfloat16] if HAS_GPU else [torch.float32, torch.float16]
STATES = ACTIVATIONS


def error(value: torch.Tensor, exact: torch.Tensor) -> float:
    """Relative error in the 2-norm. NaN never passes."""
    value, exact = value.double(), exact.double()
    return float((value - exact).norm() / exact.norm().clamp(min=1e-30))


def assert_as_good(value: torch.Tensor, same_dtype: torch.Tensor, exact: torch.Tensor, floor: float = 1e-6) -> None:
    """The kernel's error is below twice that of the same-dtype torch op, both against float64 (quack's rule)."""
    mine, theirs = error(value, exact), error(same_dtype, exact)
    assert mine <= 2 * theirs + floor, f"error {mine:.2e}, the torch op's is {theirs:.2e}"
