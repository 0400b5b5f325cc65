"""Paged attention against float64: odd shapes, any lengths, any places of blocks; dead memory is NaN."""

import importlib
import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from statewise.errors import ArgumentError
from statewise.ops import paged_attention_prefill, paged_attention_step, store_kv
from statewise.ops.paged_attention import Scratch
from statewise.ops.paged_attention.scratch import MAX_SPLITS, SPLIT, most_splits
from tests.ops.kernels import ACTIVATIONS, DEVICE, HAS_GPU, assert_as_good

NAN = float("nan")
gpu = pytest.mark.skipif(not HAS_GPU, reason="needs a CUDA device")

# heads, kv_heads, head_dim, block_size; lengths, or (tokens before, chunk) of each row
STEPS = [
    (4, 2, 32, 16, [5, 0, 33, 1]),
    (5, 1, 24, 4, [257, 12]),
    (3, 3, 80, 6, [17, 300]),
    (2, 1, 16, 8, [560, 513, 256]),
]
CHUNKS = [
    (4, 2, 32, 16, [(0, 5), (3, 0), (61, 4)]),
    (3, 1, 24, 4, [(0, 150), (130, 7)]),
    (2, 2, 80, 6, [(64, 1), (0, 65)]),
]
if HAS_GPU:
    STEPS += [
        (32, 8, 128, 16, [4096, 0, 1, 255, 256, 257, 5000, 33]),
        (40, 8, 128, 16, [512] * 64),
        (32, 4, 64, 64, [9000, 300, 0, 20]),
        (16, 1, 96, 16, [700, 3, 4097]),
        (32, 32, 112, 16, [1000, 40]),
        (64, 2, 256, 32, [1500, 129, 8]),
        (8, 8, 80, 1, [90, 600]),
    ]
    CHUNKS += [
        (32, 8, 128, 16, [(0, 1000), (500, 300), (0, 1), (4000, 64), (7, 0)]),
        (40, 8, 128, 16, [(0, 129)] * 9),
        (16, 1, 96, 64, [(100, 257)]),
        (8, 8, 64, 16, [(0, 2000), (3, 500)]),
        (8, 4, 112, 16, [(31, 300)]),
        (8, 2, 256, 32, [(0, 700), (200, 90)]),
    ]


class Pool:
    """Keys and values of some rows, in blocks in random order with spare ones between them; NaN wherever nothing is."""

    def __init__(self, heads, kv_heads, head_dim, block_size, lengths, dtype, seed=0, spare=3):
        self.g = torch.Generator().manual_seed(seed)
        self.heads, self.head_dim, self.dtype = heads, head_dim, dtype
        counts = [-(-length // block_size) for length in lengths]
        blocks = torch.randperm(sum(counts) + spare, generator=self.g).tolist()
        self.places = []
        self.tables = torch.zeros(len(lengths), max([*counts, 1]) + 1, dtype=torch.int32)
        pool = torch.full((2, sum(counts) + spare, block_size, kv_heads, head_dim), NAN, dtype=torch.float64)
        for row, (count, length) in enumerate(zip(counts, lengths, strict=True)):
            own = [blocks.pop() for _ in range(count)]
            self.tables[row, :count] = torch.tensor(own, dtype=torch.int32)
            places = torch.tensor([own[t // block_size] * block_size + t % block_size for t in range(length)]).long()
            pool.flatten(1, 2)[:, places] = torch.randn(2, length, kv_heads, head_dim, generator=self.g).double()
            self.places.append(places)
        self.pool, self.tables = pool.to(DEVICE, dtype), self.tables.to(DEVICE)
        self.lengths = torch.tensor(lengths, dtype=torch.int32, device=DEVICE)

    def query(self, tokens):
        """As a view of a wider tensor: rows are not contiguous."""
        wide = torch.randn(tokens, self.heads + 1, self.head_dim, generator=self.g).to(DEVICE, self.dtype)
        return wide[:, :-1]

    def step(self, query, backend, rows=slice(None), wide=False, tables=None, **kwargs):
        pool, query = (self.pool.double(), query.double()) if wide else (self.pool, query)
        tables = self.tables[rows] if tables is None else tables
        return paged_attention_step(query[rows], *pool, tables, self.lengths[rows], backend=backend, **kwargs)

    def prefill(self, query, chunks, backend, wide=False, rows=None, **kwargs):
        """chunks: (tokens before, tokens) of each row; query: packed."""
        pool, query = (self.pool.double(), query.double()) if wide else (self.pool, query)
        edges = torch.tensor([0, *(count for _, count in chunks)], device=DEVICE).cumsum(0)
        starts = torch.tensor([before for before, _ in chunks], device=DEVICE)
        tables = self.tables if rows is None else self.tables[rows]
        return paged_attention_prefill(query, *pool, edges, tables, starts, backend=backend, **kwargs)


def exact_backend():
    return "torch" if HAS_GPU else "reference"  # the loop is too slow for what a GPU gets


def ends(chunks):
    return [before + count for before, count in chunks]


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=4),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(1, 5),
    st.integers(1, 5),
    st.sampled_from([None, 0.3]),
    st.integers(0, 10**6),
)
def test_the_torch_op_equals_the_loop(lengths, kv_heads, group, head_dim, block_size, scale, seed):
    case = Pool(kv_heads * group, kv_heads, head_dim, block_size, lengths, torch.float64, seed)
    query = case.query(len(lengths))
    y, exact = (case.step(query, backend, scale=scale) for backend in ("torch", "reference"))
    torch.testing.assert_close(y, exact, rtol=1e-10, atol=1e-12)
    assert (y[case.lengths == 0] == 0).all()
    chunks = [(length - length // 2, length // 2) for length in lengths]
    query = case.query(sum(count for _, count in chunks))
    y, exact = (case.prefill(query, chunks, backend, scale=scale) for backend in ("torch", "reference"))
    torch.testing.assert_close(y, exact, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("dtype", ACTIVATIONS)
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim", "block_size", "lengths"), STEPS)
def test_a_step_is_as_good_as_the_torch_op(heads, kv_heads, head_dim, block_size, lengths, dtype):
    case = Pool(heads, kv_heads, head_dim, block_size, lengths, dtype)
    query = case.query(len(lengths))
    y = case.step(query, "triton")
    assert y.dtype == dtype
    assert y.isfinite().all()
    assert (y[case.lengths == 0] == 0).all()
    assert_as_good(y, case.step(query, "torch"), case.step(query, exact_backend(), wide=True), floor=1e-5)


@pytest.mark.parametrize("dtype", ACTIVATIONS)
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim", "block_size", "chunks"), CHUNKS)
def test_a_prefill_is_as_good_as_the_torch_op(heads, kv_heads, head_dim, block_size, chunks, dtype):
    case = Pool(heads, kv_heads, head_dim, block_size, ends(chunks), dtype)
    query = case.query(sum(count for _, count in chunks))
    y = case.prefill(query, chunks, "triton")
    assert y.dtype == dtype
    assert y.isfinite().all()
    exact = case.prefill(query, chunks, exact_backend(), wide=True)
    assert_as_good(y, case.prefill(query, chunks, "torch"), exact, floor=1e-5)


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
def test_out_scratch_and_scale_may_be_given(index):
    case = Pool(4, 2, 16, 8, [30, 0, 9], torch.float32)
    case.tables, case.lengths = case.tables.to(index), case.lengths.to(index)
    query = case.query(3)
    scratch = Scratch.allocate(5, 4, 16, 2000, DEVICE)
    for part in scratch:
        part.fill_(NAN)
    out = torch.full((3, 5, 16), NAN, device=DEVICE)[:, 1:]
    y = case.step(query, "triton", out=out, scratch=scratch, scale=0.7)
    assert y.data_ptr() == out.data_ptr()
    torch.testing.assert_close(y, case.step(query, "torch", scale=0.7), rtol=1e-5, atol=1e-5)
    assert torch.equal(case.step(query, "triton", scale=0.7), y)
    chunk = [(26, 4), (0, 0), (0, 9)]
    query = case.query(13)
    out = torch.full((13, 5, 16), NAN, device=DEVICE)[:, 1:]
    y = case.prefill(query, chunk, "triton", out=out, scale=0.7)
    assert y.data_ptr() == out.data_ptr()
    torch.testing.assert_close(y, case.prefill(query, chunk, "torch", scale=0.7), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", ACTIVATIONS)
def test_a_row_of_a_step_is_the_same_in_any_company(dtype):
    """Alone, permuted, in wider tables, from other blocks: bit for bit."""
    lengths = [4096, 0, 700, 513, 1, 9001, 256, 40] * 4 if HAS_GPU else [300, 0, 20]
    shape = (32, 8, 128, 16) if HAS_GPU else (2, 1, 16, 16)
    case = Pool(*shape, lengths, dtype)
    query = case.query(len(lengths))
    y = case.step(query, "triton")
    for _ in range(5 if HAS_GPU else 1):
        assert torch.equal(case.step(query, "triton"), y)
    order = torch.randperm(len(lengths), generator=case.g).to(DEVICE)
    assert torch.equal(case.step(query, "triton", rows=order), y[order])
    for row in range(len(lengths) if HAS_GPU else 1):
        assert torch.equal(case.step(query, "triton", rows=slice(row, row + 1))[0], y[row])
    assert torch.equal(case.step(query, "triton", tables=case.tables.T.contiguous().T), y)
    wider = torch.nn.functional.pad(case.tables, (0, 1500 if HAS_GPU else 40))
    assert torch.equal(case.step(query, "triton", tables=wider), y)
    moved = torch.randperm(case.pool.shape[1], generator=case.g).to(DEVICE)
    case.pool, case.tables = case.pool[:, moved], moved.argsort().int()[case.tables]
    assert torch.equal(case.step(query, "triton"), y)


@pytest.mark.parametrize("dtype", ACTIVATIONS)
def test_a_prompt_may_be_cut_anywhere(dtype):
    """In one piece, in chunks of any size, beside another prompt: bit for bit."""
    length = 3000 if HAS_GPU else 140
    case = Pool(*((32, 8, 128, 16) if HAS_GPU else (2, 1, 16, 4)), [length, 50], dtype)
    query = case.query(length)
    y = case.prefill(query, [(0, length)], "triton", rows=slice(0, 1))
    cuts = [0, 1, 64, 65, 129, 700, 1024, 1099, 2100, 2999, 3000] if HAS_GPU else [0, 1, 65, 140]
    parts = []
    for first, end in itertools.pairwise(cuts):
        with_other = torch.cat([case.query(20), query[first:end]])
        parts.append(case.prefill(with_other, [(30, 20), (first, end - first)], "triton", rows=[1, 0])[20:])
    if HAS_GPU:
        assert torch.equal(torch.cat(parts), y)
    else:  # a row of the interpreter's matrix products depends on where in the matrix it is
        torch.testing.assert_close(torch.cat(parts), y, rtol=1e-5 if dtype == torch.float32 else 2e-3, atol=1e-6)
    case.tables = case.tables.T.contiguous().T
    for _ in range(5 if HAS_GPU else 1):
        assert torch.equal(case.prefill(query, [(0, length)], "triton", rows=slice(0, 1)), y)


@pytest.mark.parametrize("backend", ["triton", "torch", "reference"])
@pytest.mark.parametrize("index", [torch.int32, torch.int64])
def test_new_keys_go_to_their_places_and_pads_nowhere(backend, index):
    pool = torch.full((2, 5, 3, 2, 20), NAN, device=DEVICE, dtype=torch.float16)
    new = torch.randn(2, 4, 3, 20, device=DEVICE)[:, :, 1:]
    places = torch.tensor([12, -1, 0, 5], dtype=index, device=DEVICE)
    store_kv(*new, *pool, places, backend=backend)
    live = [12, 0, 5]
    assert torch.equal(pool.flatten(1, 2)[:, live], new[:, [0, 2, 3]].half())
    dead = [place for place in range(15) if place not in live]
    assert pool.flatten(1, 2)[:, dead].isnan().all()


def test_scratch_is_as_large_as_it_says_and_bounded():
    scratch = Scratch.allocate(3, 4, 80, 100_000, torch.device("cpu"))
    assert sum(part.nbytes for part in scratch) == Scratch.size(3, 4, 80, 100_000) == 3 * Scratch.size(1, 4, 80, 10**6)
    assert [most_splits(tokens) for tokens in (0, SPLIT, SPLIT + 1, 10**6)] == [1, 1, 2, MAX_SPLITS]


def test_a_wrong_argument_is_named():
    case = Pool(4, 2, 16, 8, [30, 9], torch.float32)
    query = case.query(2)
    with pytest.raises(ArgumentError, match="4 heads do not divide into 3 groups"):
        paged_attention_step(query, *case.pool[..., :1, :].expand(-1, -1, -1, 3, -1), case.tables, case.lengths)
    with pytest.raises(ArgumentError, match="expected one dtype"):
        paged_attention_step(query.double(), *case.pool, case.tables, case.lengths)
    with pytest.raises(ArgumentError, match="lengths has shape"):
        paged_attention_step(query, *case.pool, case.tables, case.lengths[:1])
    with pytest.raises(ArgumentError, match="scale is 0"):
        case.step(query, "torch", scale=0.0)
    with pytest.raises(ArgumentError, match="scratch holds partial sums"):
        case.step(query, "triton", scratch=Scratch.allocate(1, 4, 16, 2000, DEVICE))
    with pytest.raises(ArgumentError, match="float64 runs on"):
        case.step(query, "triton", wide=True)
    with pytest.raises(ArgumentError, match="block_tables has shape"):
        case.prefill(query, [(0, 2)], "torch")


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize("dtype", ACTIVATIONS)
def test_a_graph_replays_other_lengths_and_tables(dtype):
    """Captured with one set of lengths, replayed with another: nothing is allocated, and nothing waits for the host."""
    lengths = [4096, 3, 700, 20]
    case = Pool(32, 8, 128, 16, lengths, dtype)
    query, key, out = case.query(4), case.query(4)[:, :8], torch.empty(4, 32, 128, dtype=dtype, device=DEVICE)
    scratch = Scratch.allocate(4, 32, 128, case.tables.shape[1] * 16, DEVICE)
    places = torch.tensor([own[-1] for own in case.places], device=DEVICE)
    tables, given = case.tables.clone(), case.lengths.clone()
    case.lengths.fill_(1)

    def run():
        store_kv(key, key, *case.pool, places, backend="triton")
        case.step(query, "triton", out=out, scratch=scratch)

    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    order = torch.tensor([2, 0, 3, 1], device=DEVICE)
    case.lengths.copy_(given[order])
    case.tables.copy_(tables[order])
    case.lengths[1], case.tables[1], places[0] = 0, 0, -1
    graph.replay()
    assert torch.equal(out, case.step(query, "triton"))
    assert (out[1] == 0).all()


@pytest.mark.gpu
@gpu
def test_offsets_past_32_bits():
    """A block behind the first 2^32 numbers of the pool."""
    blocks = 2**32 // (16 * 8 * 128) + 8
    pool = torch.empty(2, blocks, 16, 8, 128, dtype=torch.bfloat16, device=DEVICE)
    small = Pool(32, 8, 128, 16, [40], torch.bfloat16)
    used = small.tables[0, :3].long()
    far = torch.arange(blocks - 3, blocks, device=DEVICE)
    places = (far[:, None] * 16 + torch.arange(16, device=DEVICE)).flatten()[:40]
    rows = small.pool[:, used].flatten(1, 2)[:, :40]
    store_kv(*rows, *pool, places, backend="triton")
    query = small.query(1)
    got = paged_attention_step(query, *pool, far[None], small.lengths, backend="triton")
    assert torch.equal(got, small.step(query, "triton"))
    start = torch.tensor([39], device=DEVICE)
    edges = torch.tensor([0, 1], device=DEVICE)
    got = paged_attention_prefill(query, *pool, edges, far[None], start, backend="triton")
    assert torch.equal(got, small.prefill(query, [(39, 1)], "triton"))


@pytest.mark.parametrize("itemsize", [2, 4])
@pytest.mark.parametrize("head_dim", [16, 32, 64, 80, 96, 112, 128, 256])
def test_pieces_and_splits_fit_each_other(head_dim, itemsize):
    triton = importlib.import_module("statewise.ops.paged_attention.triton")
    scratch = importlib.import_module("statewise.ops.paged_attention.scratch")
    block = triton.step_launch(head_dim, itemsize, 16).block_t
    assert scratch.SPLIT % block == 0
    assert scratch.PIECE % block == 0 or block % scratch.PIECE == 0
