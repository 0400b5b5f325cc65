"""The linear layer: every backend against float64, and each row by itself."""

import pytest
import torch

from statewise.errors import ArgumentError
from statewise.ops import linear
from tests.ops.kernels import ACTIVATIONS, DEVICE, HAS_GPU, assert_as_good

HALVES = [dtype for dtype in ACTIVATIONS if dtype != torch.float32]
SHAPES = [(1, 40, 24), (3, 300, 70), (17, 64, 16), (33, 130, 50)]
SHAPES += [(m, k, n) for m in (1, 2, 16, 31, 64, 65) for k, n in ((4096, 18560), (8192, 4096))] if HAS_GPU else []


def inputs(rows, width, outputs, dtype, seed=0):
    g = torch.Generator().manual_seed(seed)
    x, weight, bias = (torch.randn(*shape, generator=g) for shape in ((rows, width), (outputs, width), (outputs,)))
    return [t.to(dtype).to(DEVICE) for t in (x, weight / width**0.5, bias)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("activation", [None, "relu2"])
@pytest.mark.parametrize("has_bias", [True, False])
def test_triton_is_as_good_as_the_library(shape, dtype, activation, has_bias):
    x, weight, bias = inputs(*shape, dtype)
    bias = bias if has_bias else None
    exact = linear(x.double(), weight.double(), None if bias is None else bias.double(), activation=activation)
    got = linear(x, weight, bias, activation=activation, backend="triton")
    assert got.dtype == dtype
    assert_as_good(got, linear(x, weight, bias, activation=activation), exact)
    kept = torch.full_like(got, torch.nan)
    assert linear(x, weight, bias, activation=activation, out=kept, backend="triton") is kept
    assert torch.equal(kept, got)


@pytest.mark.parametrize("activation", [None, "relu2"])
def test_torch_equals_the_loop(activation):
    x, weight, bias = (t.double() for t in inputs(3, 12, 7, torch.float32))
    for given in (bias, None):
        got = linear(x, weight, given, activation=activation)
        expected = linear(x, weight, given, activation=activation, backend="reference")
        torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)
        assert torch.equal(linear(x, weight, given, activation=activation, out=torch.empty_like(got)), got)


def test_rows_of_other_requests_change_no_bit():
    x, weight, bias = inputs(16, 320, 48, HALVES[0])
    together = linear(x, weight, bias, backend="triton")
    other = x.clone()
    other[1:] = torch.nan
    assert torch.equal(linear(other, weight, bias, backend="triton")[0], together[0])
    order = torch.randperm(16, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    assert torch.equal(linear(x[order], weight, bias, backend="triton"), together[order])
    assert torch.equal(linear(x[:5], weight, bias, backend="triton"), together[:5])


def test_strided_rows_and_none():
    x, weight, _ = inputs(4, 64, 32, HALVES[0])
    wide = torch.full((4, 100), torch.nan, device=DEVICE, dtype=x.dtype)
    wide[:, 5:69] = x
    assert torch.equal(linear(wide[:, 5:69], weight, backend="triton"), linear(x, weight, backend="triton"))
    assert linear(x[:0], weight, backend="triton").shape == (0, 32)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.zeros(2, 3, 4)}, r"x has shape \(2, 3, 4\), expected \(L, K\)"),
        ({"weight": torch.zeros(3, 5)}, r"weight has shape \(3, 5\), expected \(3, 4\)"),
        ({"bias": torch.zeros(2)}, r"bias has shape \(2,\), expected \(3,\)"),
        ({"out": torch.zeros(3, 2)}, r"out has shape \(3, 2\), expected \(2, 3\)"),
        ({"activation": "gelu"}, "activation is 'gelu', expected None or 'relu2'"),
    ],
)
def test_what_does_not_fit_is_an_error(change, message):
    with pytest.raises(ArgumentError, match=message):
        linear(**({"x": torch.zeros(2, 4), "weight": torch.zeros(3, 4)} | change))
