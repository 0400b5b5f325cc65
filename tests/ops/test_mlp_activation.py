"""The activations of MLPs: every backend against the loop."""

import pytest
import torch

from statewise.errors import ArgumentError
from statewise.ops import mlp_activation
from tests.ops.kernels import ACTIVATIONS, DEVICE, HAS_GPU, assert_as_good

SHAPES = [(1, 2), (3, 34), (2, 2100), (2, 3, 6)] + ([(257, 21504), (2048, 8192)] if HAS_GPU else [])


def numbers(shape, dtype):
    return (3 * torch.randn(*shape, generator=torch.Generator().manual_seed(0))).to(dtype).to(DEVICE)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", ACTIVATIONS)
@pytest.mark.parametrize("gated", [True, False])
def test_triton_is_as_good_as_torch(shape, dtype, gated):
    x = numbers(shape, dtype)
    got = mlp_activation(x, gated=gated, backend="triton")
    assert got.dtype == dtype
    assert_as_good(got, mlp_activation(x, gated=gated), mlp_activation(x.double(), gated=gated))


@pytest.mark.parametrize("gated", [True, False])
def test_torch_equals_the_loop(gated):
    x = numbers((4, 10), torch.float64)
    expected = mlp_activation(x, gated=gated, backend="reference")
    torch.testing.assert_close(mlp_activation(x, gated=gated), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("gated", [True, False])
def test_strided_rows_none_and_those_that_are_no_numbers(gated):
    wide = torch.full((3, 40), torch.nan, device=DEVICE)
    wide[:2, 6:26] = numbers((2, 20), torch.float32)
    got = mlp_activation(wide[:, 6:26], gated=gated, backend="triton")
    torch.testing.assert_close(got, mlp_activation(wide[:, 6:26], gated=gated), equal_nan=True)
    assert got[2].isnan().all()
    assert mlp_activation(wide[:0, 6:26], gated=gated, backend="triton").shape == (0, 10 if gated else 20)


def test_what_does_not_fit_is_an_error():
    with pytest.raises(ArgumentError, match="x has 5 channels, expected a gate and as many others"):
        mlp_activation(torch.zeros(2, 5), gated=True)
