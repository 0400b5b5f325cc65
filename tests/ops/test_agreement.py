"""Loop, chunked scan and checkpointed replay agree in float64, for any split, with every option there or not."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from statewise.cache.window import advance, ring_rows
from statewise.ops import checkpointed_step, ssd_prefill, state_step
from tests.strategies import Dims, Inputs, Options, dims, options

TIGHT = {"rtol": 1e-10, "atol": 1e-10}
NAN = float("nan")


def pool(d: Dims, slots: int, rows: int) -> dict[str, torch.Tensor]:
    """State and rings full of NaN: only what a test writes may be read."""
    return {
        "state": torch.full((slots, d.heads, d.head_dim, d.state_size), NAN, dtype=torch.float64),
        "x_ring": torch.full((slots, d.heads, rows, d.head_dim), NAN, dtype=torch.float64),
        "B_ring": torch.full((slots, d.groups, rows, d.state_size), NAN, dtype=torch.float64),
        "dt_ring": torch.full((slots, d.heads, rows), NAN, dtype=torch.float64),
        "ring_start": torch.zeros(slots, dtype=torch.int32),
        "pending": torch.zeros(slots, dtype=torch.int32),
    }


def sequential(inputs: Inputs, initial: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The whole sequence by the reference loop."""
    args, rest = inputs.at(slice(None))
    edges = torch.tensor([0, inputs.x.shape[0]])
    y, final = ssd_prefill(*args, edges, initial_states=initial[None], **rest, backend="reference")
    return y, final[0]


@settings(max_examples=60, deadline=None)
@given(
    dims(),
    options,
    st.lists(st.integers(0, 9), min_size=1, max_size=4),
    st.integers(1, 11),
    st.integers(0, 10**6),
)
def test_chunked_scan_equals_the_loop(d, present, lengths, chunk_size, seed):
    inputs = Inputs(d, (sum(lengths),), present, seed)
    edges = torch.tensor([0, *lengths]).cumsum(0)
    g = torch.Generator().manual_seed(seed + 1)
    initial = torch.randn(len(lengths), d.heads, d.head_dim, d.state_size, generator=g, dtype=torch.float64)
    has = torch.rand(len(lengths), generator=g) < 0.6
    initial[~has] = NAN
    args, rest = inputs.at(slice(None))
    kwargs = {"initial_states": initial, "has_initial_state": has, **rest}
    y_loop, final_loop = ssd_prefill(*args, edges, **kwargs, backend="reference")
    y, final = ssd_prefill(*args, edges, **kwargs, chunk_size=chunk_size)
    torch.testing.assert_close(y, y_loop, **TIGHT)
    torch.testing.assert_close(final, final_loop, **TIGHT)


@settings(max_examples=60, deadline=None)
@given(
    dims(),
    options,
    st.sampled_from([1, 2, 3, 5, 16, 64]),
    st.lists(st.integers(1, 4), min_size=1, max_size=12),
    st.sampled_from(["torch", "reference"]),
    st.integers(0, 10**6),
)
def test_checkpointed_replay_equals_the_loop(d, present, window, steps, backend, seed):
    """Steps of mixed T against the loop; the state at the end is the checkpoint plus the replayed rows."""
    steps = [min(t, window) for t in steps]
    inputs = Inputs(d, (1, sum(steps)), present, seed)
    rows = window + max(steps)
    p = pool(d, 3, rows)
    g = torch.Generator().manual_seed(seed + 1)
    initial = torch.randn(d.heads, d.head_dim, d.state_size, generator=g, dtype=torch.float64)
    slot = torch.tensor([2])
    p["state"][2] = initial
    p["ring_start"][2] = seed % rows
    outputs, at = [], 0
    for tokens in steps:
        args, rest = inputs.at((slice(None), slice(at, at + tokens)))
        outputs.append(checkpointed_step(*args, **p, window=window, read_slots=slot, **rest, backend=backend))
        start, live = advance(p["ring_start"][slot], p["pending"][slot], tokens, tokens, window, rows)
        p["ring_start"][slot], p["pending"][slot] = start, live
        at += tokens
    y_loop, final_loop = sequential(_drop_batch(inputs), initial)
    torch.testing.assert_close(torch.cat(outputs, 1)[0], y_loop, **TIGHT)
    torch.testing.assert_close(effective_state(p, inputs.A, 2), final_loop, **TIGHT)
    assert p["state"][:2].isnan().all(), "a slot that is not in the batch was written"


def effective_state(p: dict[str, torch.Tensor], A: torch.Tensor, slot: int) -> torch.Tensor:
    """The state as of the last token: the checkpoint with the pending ring rows folded in."""
    state = p["state"][slot]
    for j in range(int(p["pending"][slot])):
        r = (int(p["ring_start"][slot]) + j) % p["x_ring"].shape[2]
        x, dt = p["x_ring"][slot, :, r], p["dt_ring"][slot, :, r]
        B = p["B_ring"][slot, :, r].repeat_interleave(x.shape[0] // p["B_ring"].shape[1], 0)
        state = (A * dt).exp()[:, None, None] * state + (dt[:, None] * x)[..., None] * B[:, None]
    return state


def _drop_batch(inputs: Inputs) -> Inputs:
    for name in ("x", "dt", "B", "C"):
        setattr(inputs, name, getattr(inputs, name)[0])
    if inputs.options["z"] is not None:
        inputs.options["z"] = inputs.options["z"][0]
    return inputs


@settings(max_examples=40, deadline=None)
@given(dims(), options, st.integers(1, 12), st.integers(0, 10**6))
def test_plain_steps_equal_the_loop(d, present, length, seed):
    inputs = Inputs(d, (length,), present, seed)
    g = torch.Generator().manual_seed(seed + 1)
    initial = torch.randn(d.heads, d.head_dim, d.state_size, generator=g, dtype=torch.float64)
    y_loop, final_loop = sequential(inputs, initial)
    for backend in ("torch", "reference"):
        state = initial[None].clone()
        outputs = []
        for t in range(length):
            args, rest = inputs.at(slice(t, t + 1))
            outputs.append(state_step(*args, state, read_slots=torch.tensor([0]), **rest, backend=backend))
        torch.testing.assert_close(torch.cat(outputs), y_loop, **TIGHT)
        torch.testing.assert_close(state[0], final_loop, **TIGHT)


@settings(max_examples=30, deadline=None)
@given(dims(), options, st.sampled_from([torch.float32, torch.float64]), st.integers(0, 10**6))
def test_window_one_is_the_plain_step_bit_for_bit(d, present, dtype, seed):
    inputs = Inputs(d, (4, 1), present, seed, dtype)
    g = torch.Generator().manual_seed(seed)
    state = torch.randn(6, d.heads, d.head_dim, d.state_size, generator=g, dtype=torch.float64).to(dtype)
    plain = state.clone()
    slots = torch.tensor([5, -1, 0, 3])
    p = pool(d, 6, ring_rows(1)) | {"state": state}
    args, rest = inputs.at(slice(None))
    y = checkpointed_step(*args, **p, window=1, read_slots=slots, **rest)
    args, rest = inputs.at((slice(None), 0))
    y_plain = state_step(*args, plain, read_slots=slots, **rest)
    assert torch.equal(y[:, 0], y_plain)
    assert torch.equal(state, plain)


@pytest.mark.parametrize("backend", ["torch", "reference"])
@pytest.mark.parametrize("accepted", [0, 1, 2, 3])
def test_rejected_tokens_leave_no_trace(backend, accepted):
    """Speculative verification: of 3 new tokens some are accepted; the next steps see only those."""
    d, window, rows = Dims(4, 3, 2, 5), 5, 8
    inputs = Inputs(d, (1, 40), Options(True, True, True, True), seed=accepted)
    p = pool(d, 1, rows)
    p["state"].zero_()
    slot, kept, outputs = torch.tensor([0]), [], []
    for step in range(10):
        span = list(range(step * 3, step * 3 + 3))
        args, rest = inputs.at((slice(None), span))
        y = checkpointed_step(*args, **p, window=window, read_slots=slot, **rest, backend=backend)
        keep = accepted if step % 2 else 3
        kept += span[:keep]
        outputs.append(y[0, :keep])
        start, live = advance(p["ring_start"], p["pending"], keep, 3, window, rows)
        p["ring_start"].copy_(start)
        p["pending"].copy_(live)
    args, rest = _drop_batch(inputs).at(kept)
    y_loop, final = ssd_prefill(*args, torch.tensor([0, len(kept)]), **rest, backend="reference")
    torch.testing.assert_close(torch.cat(outputs), y_loop, **TIGHT)
    torch.testing.assert_close(effective_state(p, inputs.A, 0), final[0], **TIGHT)


@pytest.mark.parametrize("backend", ["torch", "reference"])
def test_a_shared_checkpoint_is_read_and_never_written(backend):
    """Two requests decode from the checkpoint in slot 0; each owns one after its first flush."""
    d, window, rows = Dims(2, 3, 1, 4), 3, 4
    inputs = Inputs(d, (2, 8), Options(True, False, True, False), seed=7)
    p = pool(d, 3, rows)
    g = torch.Generator().manual_seed(8)
    shared = torch.randn(d.heads, d.head_dim, d.state_size, generator=g, dtype=torch.float64)
    p["state"][0] = shared
    own = torch.tensor([1, 2])
    read, outputs = torch.tensor([0, 0]), []
    for t in range(8):
        args, rest = inputs.at((slice(None), slice(t, t + 1)))
        y = checkpointed_step(*args, **p, window=window, read_slots=read, write_slots=own, **rest, backend=backend)
        outputs.append(y)
        flushed = p["pending"][own] + 1 > window
        start, live = advance(p["ring_start"][own], p["pending"][own], 1, 1, window, rows)
        p["ring_start"][own], p["pending"][own] = start, live
        read = torch.where(flushed, own, read)
    assert torch.equal(p["state"][0], shared)
    assert torch.equal(read, own)
    for row in range(2):
        args, rest = inputs.at(row)
        y_loop, _ = ssd_prefill(*args, torch.tensor([0, 8]), initial_states=shared[None], **rest, backend="reference")
        torch.testing.assert_close(torch.cat(outputs, 1)[row], y_loop, **TIGHT)
