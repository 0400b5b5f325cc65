"""Routers: every backend against the loop, ties and all."""

import pytest
import torch

from statewise.errors import ArgumentError
from statewise.ops import choose_experts
from tests.ops.kernels import DEVICE, HAS_GPU

SHAPES = [(1, 1, 1), (5, 10, 72), (9, 3, 5)] + ([(512, 10, 72), (300, 6, 128)] if HAS_GPU else [])
SIGMOIDS = [{"normalised": True, "scale": 2.5}, {"normalised": False}]


def numbers(*shape, dtype=torch.float32, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype).to(DEVICE)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("backend", ["torch", "triton"])
@pytest.mark.parametrize("sigmoid", [None, *SIGMOIDS])
@pytest.mark.parametrize("limited", [True, False])
def test_every_backend_equals_the_loop(shape, dtype, backend, sigmoid, limited):
    """bfloat16 scores of 72 experts are often equal: the first of them is taken."""
    rows, chosen, experts = shape
    scores, options = numbers(rows, experts, dtype=dtype), {}
    if limited:
        options["allowed"] = numbers(rows, experts, seed=1).argsort(-1) < (chosen + experts) // 2
    if sigmoid:
        scores = (scores * 4).round() / 4  # sigmoids that differ by more than float32 rounds
        options |= {"bias": (numbers(experts, seed=2) * 4).round() / 4, **sigmoid}
    weights, found = choose_experts(scores, chosen, **options, dtype=torch.float32, backend=backend)
    wanted, best = choose_experts(scores, chosen, **options, dtype=torch.float32, backend="reference")
    assert found.dtype == torch.int64
    assert torch.equal(found, best)
    torch.testing.assert_close(weights, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("backend", ["torch", "triton"])
def test_weights_have_the_dtype_asked_for_or_that_of_the_scores(backend):
    scores = numbers(3, 6, dtype=torch.bfloat16)
    assert choose_experts(scores, 2, backend=backend)[0].dtype == torch.bfloat16
    assert choose_experts(scores, 2, dtype=torch.float32, backend=backend)[0].dtype == torch.float32


@pytest.mark.filterwarnings("ignore:All-NaN slice encountered:RuntimeWarning")  # of Triton's interpreter
@pytest.mark.parametrize("backend", ["torch", "triton"])
@pytest.mark.parametrize("bias", [True, False])
def test_scores_that_are_no_numbers_choose_experts_that_exist(backend, bias):
    scores = numbers(3, 5)
    scores[1] = torch.nan
    bias = numbers(5, seed=1) if bias else None
    weights, found = choose_experts(scores, 2, bias=bias, backend=backend)
    assert 0 <= found.min() <= found.max() < 5
    assert weights[1].isnan().all()
    alone = choose_experts(scores[::2], 2, bias=bias, backend=backend)
    assert torch.equal(found[::2], alone[1])
    assert torch.equal(weights[::2], alone[0])


def test_what_does_not_fit_is_an_error():
    with pytest.raises(ArgumentError, match=r"scores has shape \(4,\), expected \(L, experts\)"):
        choose_experts(torch.zeros(4), 2)
    with pytest.raises(ArgumentError, match="chosen is 5, expected 1 to 4"):
        choose_experts(torch.zeros(2, 4), 5)
    with pytest.raises(ArgumentError, match="given without a bias"):
        choose_experts(torch.zeros(2, 4), 2, scale=2.0)
    with pytest.raises(ArgumentError, match=r"bias has shape \(3,\), expected \(4,\)"):
        choose_experts(torch.zeros(2, 4), 2, bias=torch.zeros(3))
