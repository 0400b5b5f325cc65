"""Bytes planned are bytes allocated; slots balance their books; the closed forms of the ring hold."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from statewise.cache.mamba import MambaPool
from statewise.cache.paged_kv import PagedKV
from statewise.cache.slots import Places
from statewise.cache.spec import KVSpec, MambaSpec
from statewise.cache.window import advance, flushes, predicted_replays, predicted_writes, ring_rows
from statewise.errors import IntegrityError

CPU = torch.device("cpu")


def mamba_spec(interval=16, state=torch.float32, activation=torch.float32):
    return MambaSpec(
        layers=3,
        heads=4,
        head_dim=8,
        groups=2,
        state_size=16,
        conv_width=4,
        checkpoint_interval=interval,
        state_dtype=state,
        activation_dtype=activation,
    )


@pytest.mark.parametrize("interval", [1, 2, 16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_bytes_planned_equal_bytes_allocated(interval, dtype):
    spec = mamba_spec(interval, dtype, dtype)
    assert MambaPool(spec, 5, CPU).nbytes == 5 * spec.bytes_per_slot
    kv = KVSpec(layers=2, kv_heads=2, head_dim=8, block_size=16, dtype=dtype)
    assert PagedKV(kv, 7, CPU).nbytes == 7 * kv.bytes_per_block


def test_bytes_moved_by_a_plain_and_a_checkpointed_step():
    plain, ring = mamba_spec(1), mamba_spec(16)
    state, window = 3 * 4 * 8 * 16 * 4, 3 * (4 * 8 + 2 * 2 * 16) * 3 * 4
    assert plain.bytes_moved(steps=10, state_writes=10, replayed=0) == 10 * (2 * state + 2 * window)
    row = 3 * (4 * 8 * 4 + 2 * 16 * 4 + 4 * 4)
    moved = ring.bytes_moved(steps=17, state_writes=1, replayed=136)
    assert moved == 17 * (state + 2 * window + row + 8) + state + 136 * row


@given(st.integers(1, 20), st.integers(0, 100))
def test_the_closed_forms_count_what_the_trackers_do(window, steps):
    start, pending = torch.zeros(1, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    writes = replays = 0
    for _ in range(steps):
        writes += int(flushes(pending, 1, window))
        replays += int(pending)
        start, pending = advance(start, pending, 1, 1, window, max(1, ring_rows(window)))
        assert 0 <= int(pending) <= window
    assert writes == predicted_writes(steps, window)
    assert replays == predicted_replays(steps, window)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5), st.integers(1, 3))))
def test_places_balance_whatever_happens(actions):
    places, held = Places(7), {}
    for allocate, owner, n in actions:
        if allocate and places.can_allocate(n):
            held.setdefault(owner, []).extend(places.allocate(owner, n))
        elif not allocate and held.get(owner):
            places.free(owner, [held[owner].pop()])
        places.check_integrity()
        assert places.free_count == 7 - sum(map(len, held.values()))
        assert all(sorted(places.owned_by(o)) == sorted(p) for o, p in held.items())


def test_a_double_free_and_a_foreign_free_are_caught():
    places = Places(2)
    [a] = places.allocate("a")
    with pytest.raises(IntegrityError, match=r"'b' frees slot 0, which is 'a''s"):
        places.free("b", [a])
    places.free("a", [a])
    with pytest.raises(IntegrityError, match="'a' frees slot 0, which is free"):
        places.free("a", [a])
    with pytest.raises(IntegrityError, match="3 slots asked for, 2 of 2 are free"):
        places.allocate("a", 3)


def test_freed_memory_is_poisoned_only_when_asked():
    for poison in (False, True):
        pool = MambaPool(mamba_spec(), 3, CPU, poison)
        pool.state[:, 1] = 1.0
        pool.forget([1])
        assert bool(pool.state[:, 1].isnan().all()) is poison
        assert bool(pool.x_ring[:, 0].isnan().all()) is poison


def test_a_layer_of_the_paged_cache_is_a_view_and_no_other_changes():
    kv = PagedKV(KVSpec(layers=2, kv_heads=1, head_dim=2, block_size=4, dtype=torch.float32), 5, CPU, poison=True)
    keys, values = kv.layer(1)
    keys[3, 2], values[3, 2] = 1.0, -1.0
    assert (kv.pool[1, 0].flatten(0, 1)[14] == 1).all()
    assert (kv.pool[1, 1].flatten(0, 1)[14] == -1).all()
    assert kv.pool[0].isnan().all()
    assert int(kv.pool[1].isfinite().sum()) == 4
