"""The rows of experts: every backend against the loop, and what a sort and its inverse are for."""

import pytest
import torch

from statewise.errors import ArgumentError
from statewise.ops import sort_by_expert
from tests.ops.kernels import DEVICE, HAS_GPU

SHAPES = [(1, 1, 1), (1, 10, 72), (37, 3, 5), (350, 4, 6)] + ([(512, 10, 72), (2048, 6, 128)] if HAS_GPU else [])


def choices(tokens, chosen, experts, dtype=torch.int64):
    generator = torch.Generator().manual_seed(tokens)
    scores = torch.rand(tokens, experts, generator=generator)
    scores[:, experts // 2] += tokens % 2  # in some cases one that all tokens choose
    return scores.topk(chosen, -1).indices.to(dtype).to(DEVICE) if chosen <= experts else None


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("backend", ["torch", "triton"])
def test_every_backend_equals_the_loop(shape, dtype, backend):
    chosen = choices(*shape, dtype)
    expected = sort_by_expert(chosen, shape[-1], backend="reference")
    for got, wanted in zip(sort_by_expert(chosen, shape[-1], backend=backend), expected, strict=True):
        assert got.dtype == wanted.dtype
        assert torch.equal(got, wanted)


@pytest.mark.parametrize("backend", ["torch", "triton"])
def test_rows_come_back_and_lie_between_the_ends_of_their_experts(backend):
    chosen = choices(90, 4, 7)
    tokens, places, ends = sort_by_expert(chosen, 9, backend=backend)  # nobody chooses the last two
    assert torch.equal(tokens[places], torch.arange(90, device=DEVICE)[:, None].expand(-1, 4))
    assert torch.equal(places.flatten().sort().values, torch.arange(360, device=DEVICE))
    assert torch.equal(torch.searchsorted(ends.long(), places, right=True), chosen)
    assert ends[-3:].tolist() == [360] * 3


def test_strided_choices():
    chosen = choices(20, 6, 8)
    for got, wanted in zip(
        sort_by_expert(chosen[::2, 1:4], 8, backend="triton"), sort_by_expert(chosen[::2, 1:4], 8), strict=True
    ):
        assert torch.equal(got, wanted)


def test_what_does_not_fit_is_an_error():
    with pytest.raises(ArgumentError, match=r"chosen has shape \(4,\), expected \(L, k\)"):
        sort_by_expert(torch.zeros(4, dtype=torch.int64), 2)
    with pytest.raises(ArgumentError, match=r"chosen is torch.float32, expected int32 or int64"):
        sort_by_expert(torch.zeros(4, 1), 2)
    with pytest.raises(ArgumentError, match="experts is 0, expected at least 1"):
        sort_by_expert(torch.zeros(4, 1, dtype=torch.int64), 0)
