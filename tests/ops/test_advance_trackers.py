"""The trackers: the rule of cache/window on every backend."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from statewise.cache.window import advance, flushes, ring_rows
from statewise.errors import ArgumentError
from statewise.ops.advance_trackers import advance_trackers
from tests.ops.kernels import DEVICE, HAS_GPU

BACKENDS = pytest.mark.parametrize("backend", ["reference", "torch", "triton"])


class Case:
    """Trackers at every phase, rows in slots here and there, pads among them."""

    def __init__(self, batch, window, tokens, seed=0, index=torch.int64):
        g = torch.Generator().manual_seed(seed)
        self.window, self.tokens, self.rows = window, tokens, ring_rows(window, tokens)
        slots = batch + 3
        self.ring_start = torch.randint(0, max(1, self.rows), (slots,), generator=g, dtype=torch.int32)
        self.pending = torch.randint(0, window + 1, (slots,), generator=g, dtype=torch.int32)
        self.slots = torch.randperm(slots, generator=g)[:batch].to(index)
        self.slots[torch.rand(batch, generator=g) < 0.25] = -1
        self.accepted = torch.randint(0, tokens + 1, (batch,), generator=g).to(index)

    def run(self, backend, accepted=None):
        """The trackers after the step, on the CPU. ``accepted`` None: each row its own."""
        start, pending = self.ring_start.clone().to(DEVICE), self.pending.clone().to(DEVICE)
        counts = torch.tensor([7, 1 << 40], device=DEVICE)
        advance_trackers(
            start,
            pending,
            self.slots.to(DEVICE),
            tokens=self.tokens,
            accepted=self.accepted.to(DEVICE) if accepted is None else accepted,
            window=self.window,
            ring_rows=self.rows,
            counts=counts,
            backend=backend,
        )
        before = self.pending[self.slots[self.slots >= 0].long()]
        flushed = torch.as_tensor(flushes(before, self.tokens, self.window))
        assert counts.tolist() == [7 + flushed.sum(), (1 << 40) + before.sum()]
        return start.cpu(), pending.cpu()

    def check(self, backend, accepted=None):
        start, pending = self.run(backend, accepted)
        live = (self.slots >= 0).nonzero().squeeze(1)
        own = self.slots[live].long()
        wanted_start, wanted = self.ring_start.clone(), self.pending.clone()
        stay = self.accepted[live].int() if accepted is None else accepted
        wanted_start[own], wanted[own] = advance(
            wanted_start[own], wanted[own], stay, self.tokens, self.window, self.rows
        )
        assert torch.equal(start, wanted_start)
        assert torch.equal(pending, wanted)


@BACKENDS
@settings(max_examples=50, deadline=None)
@given(st.data())
def test_the_rule_of_the_window(backend, data):
    window = data.draw(st.sampled_from([1, 2, 3, 16]))
    tokens = data.draw(st.integers(1, min(window, 5)))
    index = data.draw(st.sampled_from([torch.int32, torch.int64]))
    case = Case(data.draw(st.integers(0, 9)), window, tokens, data.draw(st.integers(0, 999)), index)
    accepted = data.draw(st.one_of(st.none(), st.integers(0, tokens)))
    case.check(backend, accepted)


@BACKENDS
@pytest.mark.parametrize("batch", [33, 1024, 1025, 4096])
def test_a_batch_of_many_blocks(backend, batch):
    for window in (1, 4):
        Case(batch, window, 1, seed=batch).check(backend, accepted=1)
    Case(batch, 16, 5, seed=batch).check(backend)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens": 5}, "tokens = 5, expected 1 to window = 4"),
        ({"accepted": 3}, "accepted = 3, expected 0 to tokens = 2"),
        ({"accepted": torch.tensor([1])}, r"accepted has shape \(1,\), expected \(2,\)"),
        ({"accepted": torch.tensor([1.0, 1.0])}, "accepted is torch.float32, expected int32 or int64"),
        ({"ring_rows": 5}, "R = 5 ring rows, expected at least 6"),
        ({"pending": torch.zeros(3)}, "pending is torch.float32, expected torch.int32"),
        ({"pending": torch.zeros(4, dtype=torch.int32)}, r"ring_start has shape \(3,\), expected \(4,\)"),
    ],
)
def test_what_does_not_fit_is_named(change, message):
    kwargs = {
        "ring_start": torch.zeros(3, dtype=torch.int32),
        "pending": torch.zeros(3, dtype=torch.int32),
        "slots": torch.tensor([0, 2]),
        "tokens": 2,
        "accepted": 2,
        "window": 4,
        "ring_rows": 6,
    }
    with pytest.raises(ArgumentError, match=message):
        advance_trackers(**(kwargs | change))


@pytest.mark.gpu
@pytest.mark.skipif(not HAS_GPU, reason="needs a CUDA device")
def test_a_captured_advance_goes_on_at_every_replay():
    window, batch = 4, 300
    start, pending = (torch.zeros(batch, dtype=torch.int32, device=DEVICE) for _ in range(2))
    slots = torch.arange(batch, device=DEVICE)
    pending[::2] = 1
    sizes = {"tokens": 1, "accepted": 1, "window": window, "ring_rows": ring_rows(window)}

    def run():
        advance_trackers(start, pending, slots, **sizes, backend="triton")

    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    expected = start.clone(), pending.clone()
    for _ in range(20):
        graph.replay()
        expected = advance(*expected, 1, 1, window, ring_rows(window))
        assert torch.equal(start, expected[0])
        assert torch.equal(pending, expected[1])
