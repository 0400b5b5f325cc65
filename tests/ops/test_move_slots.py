"""Slot moves: any mapping at once, bit for bit, on every backend; what is not a destination stays as it was."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from statewise.cache.mamba import MambaPool
from statewise.cache.spec import MambaSpec
from statewise.errors import ArgumentError
from statewise.ops.move_slots import move_slots
from tests.ops.kernels import DEVICE, HAS_GPU

BACKENDS = pytest.mark.parametrize("backend", ["reference", "torch", "triton"])
NEEDS_GPU = pytest.mark.skipif(not HAS_GPU, reason="needs a CUDA device")


def noise(g, shape, dtype):
    """Random bits: every NaN payload, infinity and subnormal there is."""
    bits = torch.randint(-128, 128, (*shape[:-1], shape[-1] * dtype.itemsize), generator=g, dtype=torch.int8)
    return bits.view(dtype).to(DEVICE)


class Memory:
    """Tensors of every kind that a slot may consist of, and the memory that they are cut from."""

    def __init__(self, slots, seed=0):
        g = torch.Generator().manual_seed(seed)
        scale = 40 if HAS_GPU else 1
        self.memory = [
            noise(g, (2, slots, 24 * scale + 4), torch.float32),  # padded pages
            noise(g, (3, slots, 5 * scale, 3), torch.float16),  # a page of 30 bytes: 16-bit words
            noise(g, (2, slots, 2, 4, 8), torch.bfloat16),
            noise(g, (2, slots, 2, 3), torch.float64),
            noise(g, (slots, 7), torch.uint8),  # bytes
            noise(g, (slots,), torch.int32),
            noise(g, (slots,), torch.int64),
            torch.empty(2, slots, 0, 4, device=DEVICE),  # a ring of the plain step
            noise(g, (2, 2, slots, 4), torch.float32),  # two dimensions before the slot
        ]
        self.tensors = [self.memory[0][..., : 24 * scale].unflatten(-1, (2, 12 * scale)), *self.memory[1:]]
        self.slot_dims = [1, 1, 1, 1, 0, 0, 0, 1, 2]

    def bits(self):
        """All bytes of the memory, copied."""
        return [t.cpu().clone().view(torch.int8) if t.numel() else t.cpu() for t in self.memory]

    def moved(self, moves):
        """The bits expected after these moves, from their definition: new[d] = old[s], page by page."""
        expected = self.bits()
        for before, after, tensor, dim in zip(self.bits(), expected, self.tensors, self.slot_dims, strict=True):
            width = tensor.shape[-1] * tensor.element_size() if dim < tensor.dim() - 1 else tensor.element_size()
            width = width * (2 if after.dim() < tensor.dim() else 1)  # the padded pages are kept flat
            for source, destination in moves:
                if min(source, destination) < 0 or not tensor.numel():
                    continue
                if dim == tensor.dim() - 1:  # trackers: bytes of a slot lie side by side
                    span = slice(destination * width, (destination + 1) * width)
                    after[span] = before[source * width : (source + 1) * width]
                else:
                    after.select(dim, destination)[..., :width] = before.select(dim, source)[..., :width]
        return expected

    def move(self, moves, backend, index=torch.int64):
        sources = torch.tensor([s for s, _ in moves], dtype=index, device=DEVICE)
        destinations = torch.tensor([d for _, d in moves], dtype=index, device=DEVICE)
        move_slots(self.tensors, sources, destinations, slot_dims=self.slot_dims, backend=backend)


def check(slots, moves, backend, index=torch.int64, seed=0):
    memory = Memory(slots, seed)
    expected = memory.moved(moves)
    memory.move(moves, backend, index)
    for i, (bits, wanted) in enumerate(zip(memory.bits(), expected, strict=True)):
        assert torch.equal(bits, wanted), f"tensor {i}"


@st.composite
def mappings(draw):
    """S and moves with distinct destinations, in any order, pads among them."""
    slots = draw(st.integers(1, 7))
    destinations = draw(st.lists(st.integers(0, slots - 1), unique=True, max_size=slots))
    moves = [(draw(st.integers(0, slots - 1)), d) for d in destinations]
    pads = draw(st.lists(st.sampled_from([(-1, -1), (-1, 0), (0, -1)]), max_size=3))
    return slots, draw(st.permutations(moves + pads))


@BACKENDS
@settings(max_examples=25, deadline=None)
@given(case=mappings(), index=st.sampled_from([torch.int32, torch.int64]), seed=st.integers(0, 99))
def test_any_mapping_is_one_simultaneous_assignment(backend, case, index, seed):
    check(*case, backend, index, seed)


@BACKENDS
@pytest.mark.parametrize(
    "moves",
    [
        [(0, 1), (1, 0)],
        [(0, 1), (1, 2), (2, 3), (3, 4)],
        [(3, 4), (2, 3), (1, 2), (0, 1)],
        [(0, 1), (1, 2), (2, 3), (3, 4), (4, 0)],
        [(2, 0), (2, 1), (2, 3), (2, 4), (0, 2)],
        [(1, 1), (3, 3)],
        [(2, 2), (2, 3), (-1, 2), (4, -1)],
        [(-1, -1)] * 3,
        [],
    ],
    ids=["swap", "chain", "chain backwards", "cycle", "fork", "no-ops", "pads and no-ops", "pads", "nothing"],
)
def test_each_kind_of_move(backend, moves):
    check(5, moves, backend)


def test_more_moves_than_a_tile_is_high():
    """With 1000 moves each is given 8 words a tile, the least there is."""
    g = torch.Generator().manual_seed(1)
    slots = 1003
    order = torch.randperm(slots, generator=g)[:1000].tolist()
    check(slots, [(s, d) for d, s in enumerate(order)], "triton")


@BACKENDS
@pytest.mark.parametrize("interval", [1, 3])
def test_a_slot_of_a_mamba_pool_moves_whole(backend, interval):
    """State, rings, window and trackers, in all layers; also with the empty rings of the plain step."""
    dtypes = {"state_dtype": torch.float32, "activation_dtype": torch.float16}
    sizes = {"heads": 2, "head_dim": 3, "groups": 1, "state_size": 5, "conv_width": 4}
    pool = MambaPool(MambaSpec(layers=3, checkpoint_interval=interval, **sizes, **dtypes), 4, DEVICE)
    names = ["state", "conv_window", "x_ring", "B_ring", "dt_ring", "ring_start", "pending"]
    tensors, slot_dims = [getattr(pool, name) for name in names], [1, 1, 1, 1, 1, 0, 0]
    for tensor in tensors:
        tensor.copy_(torch.arange(tensor.numel()).view(tensor.shape) % 2039)
    before = [tensor.clone() for tensor in tensors]
    old, new = [3, 0, 3], [0, 3, 2]  # swap 0 and 3, fork 3
    args = torch.tensor(old, device=DEVICE), torch.tensor(new, device=DEVICE)
    move_slots(tensors, *args, slot_dims=slot_dims, backend=backend)
    for name, tensor, was, dim in zip(names, tensors, before, slot_dims, strict=True):
        order = torch.tensor([3, 1, 3, 0], device=DEVICE)
        assert torch.equal(tensor, was.index_select(dim, order)), name


def test_one_layer_of_a_pool_and_a_transposed_page():
    """A view of one layer has free strides from slot to slot; pages with gaps are an error that says so."""
    pool = torch.arange(48.0, device=DEVICE).view(2, 4, 6)
    sources, destinations = torch.tensor([0], device=DEVICE), torch.tensor([2], device=DEVICE)
    move_slots([pool[1]], sources, destinations, slot_dims=[0], backend="triton")
    assert torch.equal(pool[1, 2], pool[1, 0])
    assert pool[0, 2, 0] == 12.0
    with pytest.raises(ArgumentError, match=r"tensor 0 has shape \(4, 3\) and strides \(6, 2\): .* not dense"):
        move_slots([pool[1, :, ::2]], sources, destinations, slot_dims=[0], backend="triton")
    with pytest.raises(ArgumentError, match="not dense"):
        move_slots([pool.view(2, 4, 2, 3).mT], sources, destinations, slot_dims=[1], backend="triton")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"slot_dims": [0]}, "2 tensors, 1 slot_dims"),
        ({"slot_dims": [0, 2]}, r"tensor 1 has shape \(2, 3\), no dimension 2 counts its slots"),
        ({"slot_dims": [0, 0]}, r"the tensors have \[2, 3\] slots, expected the same number"),
        ({"sources": torch.tensor([0])}, r"have shapes \(1,\) and \(2,\), expected \(M,\) twice"),
        ({"sources": torch.tensor([0.0, 1.0])}, "sources is torch.float32, expected int32 or int64"),
        ({"backend": "reference", "destinations": torch.tensor([1, 1])}, r"destinations \[1, 1\] are not distinct"),
    ],
)
def test_what_does_not_fit_is_named(change, message):
    indices = {"sources": torch.tensor([0, 2]), "destinations": torch.tensor([1, 0])}
    with pytest.raises(ArgumentError, match=message):
        move_slots([torch.ones(3), torch.ones(2, 3)], **({"slot_dims": [0, 1], **indices} | change))


def test_more_moves_than_the_kernel_takes_is_an_error():
    with pytest.raises(ArgumentError, match="5000 moves, the triton backend takes up to 4096"):
        move_slots([torch.ones(3)], *[torch.full((5000,), -1)] * 2, slot_dims=[0], backend="triton")


@pytest.mark.gpu
@NEEDS_GPU
def test_a_captured_move_takes_new_mappings_at_every_replay():
    memory = Memory(9)
    sources, destinations = (torch.full((6,), -1, device=DEVICE) for _ in range(2))

    def run():
        move_slots(memory.tensors, sources, destinations, slot_dims=memory.slot_dims, backend="triton")

    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    for moves in ([(0, 1), (1, 0)], [(0, 5), (5, 6), (6, 0), (3, 3)], [(7, d) for d in range(6)]):
        expected = memory.moved(moves)
        padded = torch.tensor(moves + [(-1, -1)] * (6 - len(moves)))
        sources.copy_(padded[:, 0])
        destinations.copy_(padded[:, 1])
        graph.replay()
        assert all(torch.equal(a, b) for a, b in zip(memory.bits(), expected, strict=True))


@pytest.mark.gpu
@NEEDS_GPU
@pytest.mark.parametrize("moves", [2, 64, 700, 4096])
@pytest.mark.parametrize("odd", [0, 1], ids=["words", "bytes"])
def test_permutations_of_a_large_pool(moves, odd):
    """Many programs at once; offsets pass 2^32 bytes, with a page of an odd size 2^32 words as well."""
    slots, page = 4200, 1024 * 1024 + 24 + odd
    pool = torch.empty(1, slots, page, dtype=torch.int8, device=DEVICE)
    pool[:] = torch.arange(slots, device=DEVICE)[:, None] % 127
    numbers = torch.arange(slots, dtype=torch.int32, device=DEVICE)
    pool[..., :32] = numbers.view(torch.int8).view(slots, 4).repeat(1, 8)
    g = torch.Generator().manual_seed(moves)
    chosen = torch.randperm(slots, generator=g)[:moves].to(DEVICE)
    chosen[0] = slots - 1
    destinations, sources = chosen.unique(), chosen.unique().roll(1)
    move_slots([pool], sources, destinations, slot_dims=[1], backend="triton")
    order = torch.arange(slots, device=DEVICE)
    order[destinations] = sources
    heads = pool[0, :, :32].contiguous().view(torch.int32)
    assert torch.equal(heads, order.int()[:, None].expand(slots, 8))
    for begin in range(0, slots, 300):
        part = slice(begin, begin + 300)
        assert (pool[0, part, 32:] == (order[part] % 127)[:, None]).all()
