"""Padded rows, dead ring rows and foreign slots reach nothing; batches permute; 16-bit states round as they should."""

import pytest
import torch

from statewise.errors import ArgumentError
from statewise.ops import checkpointed_step, ssd_prefill, state_step
from tests.ops.test_agreement import pool
from tests.strategies import Dims, Inputs, Options

D = Dims(heads=4, head_dim=3, groups=2, state_size=5)
ALL = Options(True, True, True, True)
BACKENDS = pytest.mark.parametrize("backend", ["torch", "reference"])
NAN = float("nan")


def steady(slots: int, window: int, dtype=torch.float64, seed=0):
    """A pool whose slots are at every phase, live rows filled, dead rows NaN."""
    rows = window + 1
    g = torch.Generator().manual_seed(seed)
    p = {k: v.to(dtype) if v.is_floating_point() else v for k, v in pool(D, slots, rows).items()}
    p["state"].copy_(torch.randn(p["state"].shape, generator=g, dtype=torch.float64))
    for s in range(slots):
        p["ring_start"][s], p["pending"][s] = (3 * s) % rows, s % (window + 1)
        for j in range(int(p["pending"][s])):
            r = (int(p["ring_start"][s]) + j) % rows
            p["x_ring"][s, :, r] = torch.randn(D.heads, D.head_dim, generator=g, dtype=torch.float64)
            p["B_ring"][s, :, r] = torch.randn(D.groups, D.state_size, generator=g, dtype=torch.float64)
            p["dt_ring"][s, :, r] = torch.rand(D.heads, generator=g, dtype=torch.float64)
    return p


@BACKENDS
def test_padded_rows_read_and_write_nothing(backend):
    p = steady(6, 4)
    before = {k: v.clone() for k, v in p.items()}
    inputs = Inputs(D, (5, 1), ALL, seed=1)
    slots = torch.tensor([4, -1, 0, -1, 2], dtype=torch.int32)
    for tensor in (inputs.x, inputs.dt, inputs.B, inputs.C, inputs.options["z"]):
        tensor[[1, 3]] = NAN
    args, rest = inputs.at(slice(None))
    y = checkpointed_step(*args, **p, window=4, read_slots=slots, **rest, backend=backend)
    assert (y[[1, 3]] == 0).all()
    assert y.isfinite().all()
    for name in ("state", "x_ring", "B_ring", "dt_ring"):
        torch.testing.assert_close(p[name][[1, 3, 5]], before[name][[1, 3, 5]], rtol=0, atol=0, equal_nan=True)
    for name in ("ring_start", "pending"):
        assert torch.equal(p[name], before[name]), "the op wrote a tracker"


@BACKENDS
def test_padded_rows_of_the_plain_step(backend):
    inputs = Inputs(D, (3,), ALL, seed=1)
    state = torch.full((4, D.heads, D.head_dim, D.state_size), NAN, dtype=torch.float64)
    state[2] = 1.0
    args, rest = inputs.at(slice(None))
    y = state_step(*args, state, read_slots=torch.tensor([-1, 2, -1]), **rest, backend=backend)
    assert (y[[0, 2]] == 0).all()
    assert y[1].isfinite().all()
    assert state[[0, 1, 3]].isnan().all()


@BACKENDS
@pytest.mark.parametrize("window", [1, 4])
def test_a_batch_of_pads_only(backend, window):
    p, inputs = steady(2, 4), Inputs(D, (2, 1), ALL, seed=1)
    args, rest = inputs.at(slice(None))
    y = checkpointed_step(*args, **p, window=window, read_slots=torch.tensor([-1, -1]), **rest, backend=backend)
    assert (y == 0).all()


def test_a_permutation_of_the_batch_permutes_the_outputs():
    inputs, order = Inputs(D, (6, 1), ALL, seed=2), torch.tensor([3, 0, 5, 1, 4, 2])
    slots = torch.arange(6)
    results = []
    for index in (slots, order):
        p = steady(6, 5)
        args, rest = inputs.at(index)
        y = checkpointed_step(*args, **p, window=5, read_slots=slots[index], **rest)
        results.append((y, p))
    (y, p), (y_permuted, p_permuted) = results
    torch.testing.assert_close(y[order], y_permuted, rtol=0, atol=1e-15)
    torch.testing.assert_close(p["state"], p_permuted["state"], rtol=0, atol=1e-15)


def test_prefill_keeps_neighbours_apart():
    inputs = Inputs(D, (9,), ALL, seed=3)
    for tensor in (inputs.x, inputs.dt, inputs.B, inputs.C):
        tensor[:4] = NAN
    args, rest = inputs.at(slice(None))
    y, final = ssd_prefill(*args, torch.tensor([0, 4, 9]), **rest, chunk_size=3)
    assert y[4:].isfinite().all()
    assert final[1].isfinite().all()


def test_prefill_of_nothing_returns_the_initial_states():
    inputs = Inputs(D, (0,), ALL, seed=3)
    initial = torch.randn(2, D.heads, D.head_dim, D.state_size, dtype=torch.float64)
    args, rest = inputs.at(slice(None))
    y, final = ssd_prefill(*args, torch.tensor([0, 0, 0]), initial_states=initial, **rest)
    assert y.shape == inputs.x.shape
    assert torch.equal(final, initial)


def test_prefill_is_differentiable():
    inputs = Inputs(Dims(2, 2, 1, 3), (5,), ALL, seed=4)
    args, rest = inputs.at(slice(None))
    leaves = [t.requires_grad_() for t in args]
    rest["dt_limit"] = (0.001, 50.0)
    edges = torch.tensor([0, 3, 5])
    assert torch.autograd.gradcheck(lambda *a: ssd_prefill(*a, edges, **rest, chunk_size=2), leaves)


@BACKENDS
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_16_bit_state_is_rounded_only_when_it_is_written(backend, dtype):
    """16 tokens from a 16-bit checkpoint: outputs as exact as float32 sums, and one rounding at the flush."""
    exact, low = steady(1, 16), steady(1, 16)
    low["state"] = low["state"].to(dtype)
    exact["state"] = low["state"].double()
    inputs = Inputs(D, (1, 17), Options(True, False, True, False), seed=5)
    for t in range(17):
        args, rest = inputs.at((slice(None), slice(t, t + 1)))
        pair = [
            checkpointed_step(*args, **p, window=16, read_slots=torch.tensor([0]), **rest, backend=backend)
            for p in (exact, low)
        ]
        torch.testing.assert_close(pair[1], pair[0], rtol=1e-12, atol=1e-12)
        for p in (exact, low):
            p["pending"] += 1 if t < 16 else 0
    torch.testing.assert_close(low["state"].double(), exact["state"], rtol=torch.finfo(dtype).eps, atol=1e-4)
    assert not torch.equal(low["state"].double(), exact["state"])


def test_padded_pages_are_addressed_by_their_strides():
    p = steady(3, 4)
    wide = torch.full((3, D.heads, D.head_dim * 2, D.state_size), NAN, dtype=torch.float64)
    wide[:, :, : D.head_dim] = p["state"]
    p["state"] = wide[:, :, : D.head_dim]
    same = steady(3, 4)
    inputs = Inputs(D, (3, 1), ALL, seed=6)
    args, rest = inputs.at(slice(None))
    outputs = [checkpointed_step(*args, **q, window=4, read_slots=torch.arange(3), **rest) for q in (p, same)]
    assert torch.equal(outputs[0], outputs[1])
    assert wide[:, :, D.head_dim :].isnan().all(), "the padding of a page was written"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"window": 0}, "T = 1 new tokens, expected 1 to window = 0"),
        ({"window": 9}, r"R = 5 ring rows, expected at least 10"),
        ({"read_slots": torch.tensor([0])}, r"read_slots has shape \(1,\), expected \(2,\)"),
        ({"read_slots": torch.tensor([0.0, 1.0])}, "read_slots is torch.float32, expected int32 or int64"),
        ({"D": torch.ones(3)}, r"D has shape \(3,\), expected \(4,\)"),
    ],
)
def test_what_does_not_fit_is_named(change, message):
    p, inputs = steady(2, 4), Inputs(D, (2, 1), ALL, seed=1)
    args, rest = inputs.at(slice(None))
    kwargs = {**p, "window": 4, "read_slots": torch.tensor([0, 1]), **rest, **change}
    with pytest.raises(ArgumentError, match=message):
        checkpointed_step(*args, **kwargs)


def test_packed_lengths_must_cover_the_tokens():
    args, rest = Inputs(D, (5,), ALL, seed=1).at(slice(None))
    with pytest.raises(ArgumentError, match=r"cu_seqlens is \[0, 4\], expected to rise from 0 to 5"):
        ssd_prefill(*args, torch.tensor([0, 4]), **rest)
