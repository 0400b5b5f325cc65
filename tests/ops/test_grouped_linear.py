"""The product of experts: every backend against float64, groups of any length; a row's company changes no bit."""

import importlib
import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from statewise.errors import ArgumentError
from statewise.ops import grouped_linear
from tests.ops.kernels import ACTIVATIONS, DEVICE, HAS_GPU, assert_as_good

NAN = float("nan")
gpu = pytest.mark.skipif(not HAS_GPU, reason="needs a CUDA device")
TRITON = importlib.import_module("statewise.ops.grouped_linear.triton")

# Rows of each group, in, out. The interpreter sees tiles of 16, 32, 64 and 128 rows, pieces and tiles that end early.
SHAPES = [
    ([1], 1, 1),
    ([3, 0, 17, 0, 4], 70, 100),
    ([0, 0, 5], 33, 7),
    ([2, 19], 130, 64),
    ([40], 64, 130),
    ([0, 130, 0], 20, 40),
]
if HAS_GPU:
    GRANITE, NEMOTRON = ((4096, 1536), (768, 4096)), ((2688, 1856), (1856, 2688))
    MANY = ([1, 0, 0, 0] * 4, [17, 18, 0, 31, 16, 1] * 2, [60, 0, 29] * 5, [280] * 11 + [1], [0] * 7 + [900])
    SHAPES += [(lengths, *sizes) for sizes in GRANITE + NEMOTRON for lengths in MANY]
    SHAPES += [([300, 0, 5], 1000, 77), ([33] * 9, 36, 2052)]


class Case:
    """Rows as a view of something wider that is NaN elsewhere, and weights likewise."""

    def __init__(self, lengths, size, out, dtype, seed=0):
        self.g = torch.Generator(DEVICE).manual_seed(seed)
        self.rows, self.weight = self.numbers(sum(lengths), size), self.numbers(len(lengths), out, size)
        self.rows, self.weight = sliced(self.rows.to(dtype)), sliced((self.weight * size**-0.5).to(dtype))
        self.ends = ends_of(lengths)

    def numbers(self, *shape):
        return torch.randn(*shape, generator=self.g, dtype=torch.float64, device=DEVICE)

    def run(self, backend="triton", rows=None, ends=None):
        rows, ends = self.rows if rows is None else rows, self.ends if ends is None else ends
        return grouped_linear(rows, self.weight.to(rows.dtype), ends, backend=backend)

    def exact(self):
        return self.run("torch" if HAS_GPU else "reference", self.rows.double())  # the loop is too slow for a GPU's


def sliced(t):
    wide = torch.full((*t.shape[:-1], t.shape[-1] + 24), NAN, dtype=t.dtype, device=t.device)
    wide[..., 8 : 8 + t.shape[-1]] = t
    return wide[..., 8 : 8 + t.shape[-1]]


def ends_of(lengths):
    return torch.tensor(list(itertools.accumulate(lengths)), dtype=torch.int32, device=DEVICE)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 6), min_size=1, max_size=5), st.integers(1, 6), st.integers(1, 6), st.integers(0, 10**6))
def test_the_torch_op_equals_the_loop(lengths, size, out, seed):
    case = Case(lengths, size, out, torch.float64, seed)
    torch.testing.assert_close(case.run("torch"), case.run("reference"), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", ACTIVATIONS)
@pytest.mark.parametrize(("lengths", "size", "out"), SHAPES)
def test_triton_is_as_good_as_torch(lengths, size, out, dtype):
    case = Case(lengths, size, out, dtype)
    y = case.run()
    assert y.dtype == dtype
    assert_as_good(y, case.run("torch"), case.exact(), floor=1e-5)


@pytest.mark.parametrize("backend", ["triton", "torch", "reference"])
def test_no_rows_and_rows_of_one_group_alone(backend):
    case = Case([0, 4, 0], 20, 12, torch.float32)
    torch.testing.assert_close(case.run(backend), case.rows @ case.weight[1].T, rtol=1e-4, atol=1e-5)
    assert case.run(backend, case.rows[:0], torch.zeros_like(case.ends)).shape == (0, 12)


@pytest.mark.parametrize("dtype", ACTIVATIONS)
@pytest.mark.parametrize("backend", ["triton", "torch"])
def test_a_row_of_nan_reaches_no_other(backend, dtype):
    lengths = [300, 0, 5, 40, 17] if HAS_GPU else [9, 0, 5]
    case = Case(lengths, 96, 72, dtype)
    expected, spoiled = case.run(backend), case.rows.clone()
    dead = torch.arange(0, len(spoiled), 3)
    spoiled[dead] = NAN
    y = case.run(backend, spoiled)
    live = [row for row in range(len(y)) if row % 3]
    assert torch.equal(y[live], expected[live])
    assert y[dead].isnan().all()


@pytest.mark.parametrize("dtype", ACTIVATIONS)
def test_a_row_is_the_same_in_any_company(dtype):
    """Of as many rows, some are always there: beside others, in groups of other lengths, at other places."""
    groups, count, size, out = (72, 1280, 768, 520) if HAS_GPU else (4, 24, 40, 20)
    case, g = Case([count, *[0] * (groups - 1)], size, out, dtype), torch.Generator().manual_seed(1)
    own = torch.arange(0, count, 4)
    chosen = torch.randint(groups, (count,), generator=g)
    expected = None
    for skew in (0, 1, 0.5, 0.9, 0):
        others = torch.randint(groups, (count,), generator=g)
        others[torch.rand(count, generator=g) < skew] = groups // 2
        others[own] = chosen[own]
        rows = case.numbers(count, size).to(dtype)
        rows[own] = case.rows[own]
        order = torch.randperm(count, generator=g)
        order = order[others[order].argsort(stable=True)]
        y = case.run(rows=rows[order.to(DEVICE)], ends=ends_of(others.bincount(minlength=groups).tolist()))
        y = y[order.argsort()[own].to(DEVICE)]
        expected = y if expected is None else expected
        if HAS_GPU:
            assert torch.equal(y, expected)
        else:  # a row of the interpreter's matrix products depends on where in the matrix it is
            torch.testing.assert_close(y, expected, rtol=1e-5 if dtype == torch.float32 else 2e-3, atol=1e-6)


@pytest.mark.parametrize("itemsize", [2, 4])
@pytest.mark.parametrize("size", [64, 100, 768, 1856, 4096])
def test_a_launch_fits_every_gpu(size, itemsize):
    """The smallest have 99 KiB for a program. Of twice as many rows the tiles are the same or the next ones."""
    runs = [TRITON.launch(2**i, size, 72, itemsize) for i in range(20)]
    for run, following in itertools.pairwise(runs):
        assert run.num_stages * (run.block_m + run.block_n) * run.block_k * itemsize <= 96 * 1024
        assert following.block_m in (run.block_m, 2 * run.block_m)
    assert len({run.block_m for run in runs}) > 2


def test_what_does_not_fit_is_an_error():
    rows, weight, ends = torch.zeros(3, 4), torch.zeros(2, 5, 4), torch.tensor([1, 3], dtype=torch.int32)
    with pytest.raises(ArgumentError, match=r"rows has shape \(4,\), expected \(R, in\)"):
        grouped_linear(rows[0], weight, ends)
    with pytest.raises(ArgumentError, match=r"weight has shape \(5, 4\), expected \(G, out, in\)"):
        grouped_linear(rows, weight[0], ends)
    with pytest.raises(ArgumentError, match=r"weight has shape \(0, 5, 4\), expected none of it to be 0"):
        grouped_linear(rows, weight[:0], ends)
    with pytest.raises(ArgumentError, match="rows has 3 channels, expected 4 as weight has"):
        grouped_linear(rows[:, 1:], weight, ends)
    with pytest.raises(ArgumentError, match=r"rows is torch.float16, weight torch.float32, expected one dtype"):
        grouped_linear(rows.half(), weight, ends)
    with pytest.raises(ArgumentError, match=r"rows is torch.int64, expected a floating-point dtype"):
        grouped_linear(rows.long(), weight.long(), ends)
    with pytest.raises(ArgumentError, match=r"ends has shape \(1,\), expected \(2,\)"):
        grouped_linear(rows, weight, ends[:1])
    with pytest.raises(ArgumentError, match=r"ends is torch.int64, expected int32"):
        grouped_linear(rows, weight, ends.long())
    with pytest.raises(ArgumentError, match="float64 runs on the torch and reference backends"):
        grouped_linear(rows.double(), weight.double(), ends, backend="triton")
    with pytest.raises(ArgumentError, match=r"weight has strides .*, the triton backend expects 1 in the last"):
        grouped_linear(rows, torch.zeros(2, 4, 5).mT, ends, backend="triton")


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize("dtype", ACTIVATIONS)
@pytest.mark.parametrize(("size", "out"), [(4096, 1536), (1856, 2688)])
def test_a_graph_replays_other_ends(size, out, dtype):
    """Captured with one routing, replayed with others: the same bits as a launch."""
    case = Case([480, *[0] * 23], size, out, dtype)
    held = case.ends.clone()
    case.run(ends=held)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = case.run(ends=held)
    for lengths in ([0] * 23 + [480], [20, 0, 18, 42] * 6, [150, *[0] * 7] * 3):
        held.copy_(ends_of([*lengths[:-1], 480 - sum(lengths[:-1])]))
        y.fill_(NAN)
        graph.replay()
        assert torch.equal(y, case.run(ends=held.clone()))
        assert_as_good(y, case.run("torch", ends=held), case.run("torch", case.rows.double(), held), floor=1e-5)


@pytest.mark.gpu
@gpu
def test_offsets_past_32_bits():
    """A group behind the first 2^32 numbers of the weights."""
    groups = 2**32 // (1536 * 4096) + 4
    case = Case([5], 4096, 1536, torch.bfloat16)
    weight = torch.empty(groups, 1536, 4096, dtype=torch.bfloat16, device=DEVICE)
    weight[-1] = case.weight[0]
    ends = ends_of([0] * (groups - 1) + [5])
    y = grouped_linear(case.rows, weight, ends, backend="triton")
    assert_as_good(y, case.run("torch"), case.exact(), floor=1e-5)
