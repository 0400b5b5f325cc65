"""RoPE: every backend against the loop of complex numbers, far positions against float64, each row by itself."""

import math

import pytest
import torch

from statewise.errors import ArgumentError
from statewise.ops import apply_rope
from statewise.ops.apply_rope.frequencies import inverse_frequencies
from statewise.ops.apply_rope.torch import rotated
from tests.ops.kernels import ACTIVATIONS, DEVICE, HAS_GPU, assert_as_good

# (L, heads, kv_heads, head_dim, rotary_dim)
SHAPES = [(1, 1, 1, 2, 2), (3, 4, 2, 16, 8), (2, 5, 1, 24, 24), (2, 3, 3, 20, 6)]
SHAPES += [(257, 32, 8, 128, 64), (64, 20, 4, 128, 128), (8, 64, 8, 256, 256)] if HAS_GPU else [(2, 20, 3, 128, 128)]


def inputs(tokens, heads, kv_heads, head_dim, rotary_dim, dtype=torch.float64, seed=0):
    g = torch.Generator().manual_seed(seed)
    query = torch.randn(tokens, heads, head_dim, generator=g).to(dtype)
    key = torch.randn(tokens, kv_heads, head_dim, generator=g).to(dtype)
    positions = torch.randint(-1, 200_000, (tokens,), generator=g)
    frequencies = inverse_frequencies(rotary_dim, 10_000.0)
    return [t.to(DEVICE) for t in (query, key, positions, frequencies)]


def rotate(query, key, positions, inv_freq, backend="torch"):
    """New tensors."""
    query, key = query.clone(), key.clone()
    apply_rope(query, key, positions, inv_freq, backend=backend)
    return query, key


@pytest.mark.parametrize("shape", SHAPES)
def test_torch_equals_the_loop(shape):
    arguments = inputs(*(min(shape[0], 4), *shape[1:]))
    got = rotate(*arguments)
    assert not torch.equal(got[0], arguments[0])
    for mine, loop in zip(got, rotate(*arguments, backend="reference"), strict=True):
        torch.testing.assert_close(mine, loop, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", ACTIVATIONS)
def test_triton_is_as_good_as_torch(shape, dtype):
    query, key, *where = inputs(*shape, dtype)
    exact = rotate(query.double(), key.double(), *where)
    same_dtype = rotate(query, key, *where)
    got = rotate(query, key, *where, backend="triton")
    for mine, theirs, truth in zip(got, same_dtype, exact, strict=True):
        assert mine.dtype == dtype
        assert_as_good(mine, theirs, truth)
        assert torch.equal(mine[..., shape[-1] :], theirs[..., shape[-1] :])


@pytest.mark.parametrize("backend", ["torch", "triton"])
@pytest.mark.parametrize("theta", [10_000.0, 1e11])
def test_cos_and_sin_are_right_at_far_positions(backend, theta):
    positions = [0, 1, 4095, 99_999, 100_000, 262_143, 1_000_000, 16_777_215]
    half = 64
    query = torch.zeros(len(positions), 1, 2 * half, device=DEVICE)
    query[..., :half] = 1.0  # the pair (1, 0) turns to (cos, sin)
    key, frequencies = query.clone(), inverse_frequencies(2 * half, theta)
    apply_rope(query, key, torch.tensor(positions, device=DEVICE), frequencies.to(DEVICE), backend=backend)
    angles = [[position * frequency for frequency in frequencies.tolist()] for position in positions]
    exact = torch.tensor([[[*map(math.cos, row), *map(math.sin, row)]] for row in angles], dtype=torch.float64)
    for got in (query, key):
        torch.testing.assert_close(got.cpu().double(), exact, rtol=0, atol=5e-7)


def test_scores_depend_on_the_distance_alone():
    query, key, _, inv_freq = inputs(1, 2, 2, 12, 8)
    scores = []
    for shift in (0, 1, 777):
        turned, _ = rotate(query, key, torch.tensor([5 + shift], device=DEVICE), inv_freq)
        _, other = rotate(query, key, torch.tensor([2 + shift], device=DEVICE), inv_freq)
        scores.append((turned * other).sum(-1))
    torch.testing.assert_close(scores[1], scores[0], rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(scores[2], scores[0], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("backend", ["torch", "triton"])
def test_position_zero_changes_nothing(backend):
    query, key, positions, inv_freq = inputs(3, 4, 2, 16, 8, torch.float16)
    got = rotate(query, key, positions.zero_(), inv_freq, backend)
    assert torch.equal(got[0], query)
    assert torch.equal(got[1], key)


@pytest.mark.parametrize("backend", ["torch", "triton"])
def test_a_row_does_not_depend_on_its_company(backend):
    query, key, positions, inv_freq = inputs(7, 4, 2, 16, 8, torch.float16)
    together = rotate(query, key, positions, inv_freq, backend)
    order = torch.tensor([3, 0, 6], device=DEVICE)
    apart = rotate(query[order], key[order], positions[order], inv_freq, backend)
    assert all(torch.equal(a[order], b) for a, b in zip(together, apart, strict=True))


@pytest.mark.parametrize("backend", ["torch", "triton"])
def test_views_of_one_projection_and_no_rows(backend):
    query, key, positions, inv_freq = inputs(4, 4, 2, 16, 8, torch.float32)
    expected = rotate(query, key, positions, inv_freq, backend)
    wide = torch.full((4, 8, 16), torch.nan, device=DEVICE)
    wide[:, 1:5], wide[:, 5:7] = query, key
    apply_rope(wide[:, 1:5], wide[:, 5:7], positions.int(), inv_freq, backend=backend)
    assert torch.equal(wide[:, 1:5], expected[0])
    assert torch.equal(wide[:, 5:7], expected[1])
    assert wide[:, [0, 7]].isnan().all()
    apply_rope(query[:0], key[:0], positions[:0], inv_freq, backend=backend)


def test_rotated_is_the_same_for_rows_of_sequences_and_has_a_gradient():
    query, key, _, inv_freq = inputs(5, 4, 2, 16, 8)
    positions = torch.arange(5, device=DEVICE)
    expected, _ = rotate(query, key, positions, inv_freq)
    rows = torch.stack([query, query]).requires_grad_()
    got = rotated(rows, positions, inv_freq)
    torch.testing.assert_close(got, torch.stack([expected, expected]), rtol=0, atol=0)
    (gradient,) = torch.autograd.grad(got, rows, torch.ones_like(got))
    back = rotated(torch.ones_like(query), -positions, inv_freq)  # a rotation's transpose is the way back
    torch.testing.assert_close(gradient[1], back, rtol=1e-12, atol=1e-12)


@pytest.mark.gpu
@pytest.mark.skipif(not HAS_GPU, reason="needs a CUDA device")
def test_a_captured_launch_reads_the_positions_of_its_replay():
    query, key, positions, inv_freq = inputs(9, 8, 2, 64, 32, torch.bfloat16)
    rotate(query, key, positions, inv_freq, "triton")
    work, place = (query.clone(), key.clone()), positions.clone()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        apply_rope(*work, place, inv_freq, backend="triton")
    for shift in (0, 1000):
        place.copy_(positions + shift)
        work[0].copy_(query)
        work[1].copy_(key)
        graph.replay()
        expected = rotate(query, key, positions + shift, inv_freq, "triton")
        assert all(torch.equal(a, b) for a, b in zip(work, expected, strict=True))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"query": torch.zeros(2, 4)}, r"query has shape \(2, 4\), expected \(L, heads, head_dim\)"),
        ({"key": torch.zeros(2, 1, 6)}, r"key has shape \(2, 1, 6\), expected \(2, 1, 4\)"),
        ({"key": torch.zeros(2, 4)}, r"key has shape \(2, 4\), expected \(L, kv_heads, head_dim\)"),
        ({"key": torch.zeros(2, 1, 4).half()}, "key is torch.float16, query torch.float32"),
        ({"positions": torch.zeros(3).long()}, r"positions has shape \(3,\), expected \(2,\)"),
        ({"positions": torch.zeros(2)}, "positions is torch.float32, expected int32 or int64"),
        ({"inv_freq": torch.ones(2)}, "inv_freq is torch.float32, expected torch.float64"),
        ({"inv_freq": torch.ones(1, 2).double()}, r"inv_freq has shape \(1, 2\)"),
        ({"inv_freq": torch.ones(3).double()}, "R is 6, expected 2 to head_dim = 4"),
    ],
)
def test_what_does_not_fit_is_an_error(change, message):
    arguments = {
        "query": torch.zeros(2, 3, 4),
        "key": torch.zeros(2, 1, 4),
        "positions": torch.zeros(2).long(),
        "inv_freq": torch.ones(2).double(),
    }
    with pytest.raises(ArgumentError, match=message):
        apply_rope(**(arguments | change))
