"""Folding equals the recurrence over the pending rows, whatever lies in the others, and what a step makes of them."""

import pytest
import torch

from statewise.errors import ArgumentError
from statewise.ops import checkpointed_step, fold_pending

H, P, N, G, S = 6, 5, 7, 3, 5


def case(window, pending, state_dtype=torch.float64, dtype=torch.float64, seed=0):
    """Slots 3, 0, 4 with so many pending rows each, rings that wrap around, NaN in all that is dead."""
    g = torch.Generator().manual_seed(seed)
    rows, slots = window + 1, torch.tensor([3, 0, 4])

    def drawn(*shape):
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    held = {"x_ring": drawn(S, H, rows, P), "B_ring": drawn(S, G, rows, N), "dt_ring": drawn(S, H, rows).abs()}
    start = torch.tensor([rows - 1, 9999, 9999, 2 % rows, 0], dtype=torch.int32)
    live = torch.full((S,), 9999, dtype=torch.int32)
    live[slots] = torch.tensor(pending, dtype=torch.int32)
    for slot, count in zip(slots.tolist(), pending, strict=True):
        dead = [(int(start[slot]) + j) % rows for j in range(count, rows)]
        for ring in held.values():
            ring[slot, :, dead] = torch.nan
    double = torch.float64 if dtype == torch.float64 else torch.float32
    held = {name: ring.to(double if name == "dt_ring" else dtype) for name, ring in held.items()}
    state, A = drawn(S, H, P, N).to(state_dtype), -drawn(H).abs().to(double)
    return state, held, A, slots, {"ring_start": start, "pending": live, "window": window}


@pytest.mark.parametrize("window", [2, 4, 16])
@pytest.mark.parametrize(
    ("state_dtype", "dtype"),
    [
        (torch.float64, torch.float64),
        (torch.float32, torch.float32),
        (torch.float16, torch.bfloat16),
        (torch.bfloat16, torch.float16),
    ],
)
def test_it_equals_the_recurrence_and_touches_no_other_slot(window, state_dtype, dtype):
    state, held, A, slots, trackers = case(window, (0, 1, window), state_dtype, dtype)
    before = state.clone()
    expected = state.double()
    rings = [held[name].double() for name in ("x_ring", "B_ring", "dt_ring")]
    fold_pending(expected, *rings, A.double(), slots, **trackers, backend="reference")
    fold_pending(state, *held.values(), A, slots, **trackers)
    assert torch.equal(state[[1, 2]], before[[1, 2]])
    assert torch.equal(state[3], before[3])  # nothing was pending
    tolerance = {torch.float64: 1e-13, torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 8e-3}[state_dtype]
    torch.testing.assert_close(state[slots].double(), expected[slots], rtol=tolerance, atol=tolerance)


def test_a_step_after_it_gives_what_the_step_would_have_given():
    state, held, A, slots, trackers = case(4, (1, 2, 3))
    g = torch.Generator().manual_seed(9)
    x, dt = torch.randn(3, 1, H, P, generator=g).double(), torch.randn(3, 1, H, generator=g).double()
    B, C = (torch.randn(3, 1, G, N, generator=g).double() for _ in range(2))
    kept = [tensor.clone() for tensor in (state, *held.values())]
    names = ("state", *held)
    y = checkpointed_step(x, dt, A, B, C, **dict(zip(names, kept, strict=True)), **trackers, read_slots=slots)
    fold_pending(state, *held.values(), A, slots, **trackers)
    nothing = trackers | {"ring_start": torch.zeros(S, dtype=torch.int32), "pending": torch.zeros(S, dtype=torch.int32)}
    again = checkpointed_step(x, dt, A, B, C, state, **held, **nothing, read_slots=slots)
    torch.testing.assert_close(again, y, rtol=1e-12, atol=1e-12)


def test_stochastic_rounding_draws_what_a_flush_draws():
    for backend in ("torch", "reference"):
        state, held, A, slots, trackers = case(2, (2, 2, 2), torch.bfloat16, torch.float32)
        held = {name: ring.float() for name, ring in held.items()}
        rounding = {"rand_seed": torch.tensor([7]), "rand_layer": 3}
        flushed = state.clone()
        x, B = torch.ones(3, 1, H, P), torch.ones(3, 1, G, N)
        step = {"state": flushed, **{name: ring.clone() for name, ring in held.items()}, **trackers, **rounding}
        checkpointed_step(x, torch.zeros(3, 1, H), A, B, B, **step, read_slots=slots, backend=backend)
        fold_pending(state, *held.values(), A, slots, **trackers, **rounding, backend=backend)
        assert torch.equal(state, flushed)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"window": 0}, "window is 0, expected 1 to 5"),
        ({"window": 6}, "window is 6, expected 1 to 5"),
        ({"A": torch.zeros(4)}, r"A has shape \(4,\), expected \(6,\)"),
        ({"slots": torch.tensor([0.5])}, "slots is torch.float32, expected int32 or int64"),
        ({"rand_seed": torch.tensor([1])}, "only float16 and bfloat16 are rounded"),
        ({"state": torch.zeros(5, 4, 5, 7)}, "4 heads do not divide into 3 groups"),
    ],
)
def test_what_does_not_fit_is_an_error(change, message):
    state, held, A, slots, trackers = case(4, (1, 1, 1))
    given = {"state": state, **held, "A": A, "slots": slots, **trackers} | change
    with pytest.raises(ArgumentError, match=message):
        fold_pending(**given)
