"""Requests that are swapped out, and slots that change places: no token is computed twice, and none changes."""

import pytest
import torch

from statewise.cache.window import advance, predicted_trackers, ring_rows
from statewise.config import EngineConfig
from statewise.engine.request import Phase
from statewise.errors import ArgumentError, ConfigError, IntegrityError
from tests.engine.harness import LETTERS, drain, engine, greedy, random_prompts, run
from tests.engine.test_traffic import alone

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
PENALISED = greedy(temperature=0.8, seed=4, repetition_penalty=1.4, frequency_penalty=0.5, max_tokens=24)


@pytest.mark.parametrize("is_async", [False, True])
def test_no_token_runs_twice(is_async):
    """Scarce blocks: requests are swapped out while they prefill and decode."""
    options = {"checkpoint_interval": 4, "max_batch": 6, "max_batched_tokens": 8, "blocks": 12}
    crowd = engine(preempt="swap", async_scheduling=is_async, **options)
    prompts = random_prompts(8, seed=3, longest=14)
    params = [PENALISED if i % 2 else greedy(max_tokens=24) for i in range(8)]
    requests = run(crowd, prompts, params)
    for prompt, request, asked in zip(prompts, requests, params, strict=True):
        assert request.output == alone(prompt, asked)[0]
        assert len(request.decode_runs) == 1
    counters = crowd.counters
    assert counters.preemptions >= counters.swaps_out == counters.swaps_in > 3
    assert counters.prefill_tokens == sum(map(len, prompts))
    assert counters.swaps_refused == 0
    assert counters.swap_bytes > 2 * counters.swaps_out * crowd.plan.mamba.bytes_per_slot
    assert crowd.runner.swap.nbytes == 0


@pytest.mark.parametrize("interval", [1, 3, 16])
@pytest.mark.parametrize("params", [greedy(max_tokens=24), PENALISED], ids=["greedy", "penalised"])
def test_with_any_number_of_rows_pending(interval, params):
    """Swapped out after every step, or every other; another request takes the slot meanwhile."""
    for every in (1, 2):
        built = engine(checkpoint_interval=interval, preempt="swap", slots=2, max_batched_tokens=8)
        request = built.submit(PROMPT, params, LETTERS)
        other = built.submit(PROMPT[::-1], greedy(max_tokens=40), LETTERS)
        for step in range(50):
            built.step()
            if step % every == 0 and request in built.scheduler.running:
                built.scheduler.preempt(request)
                built.scheduler.slots._free.reverse()
        drain(built)
        assert request.output == alone(PROMPT, params)[0]
        assert other.output == alone(PROMPT[::-1], greedy(max_tokens=40))[0]
        assert built.counters.swaps_in > 8


def test_a_prefill_goes_on_where_it_was():
    built = engine(preempt="swap", max_batched_tokens=8)
    prompt = PROMPT * 4
    request = built.submit(prompt, greedy(), LETTERS)
    for _ in range(3):
        built.step()
        built.scheduler.preempt(request)
        assert (request.phase, request.kept) == (Phase.WAITING, Phase.PREFILL)
    drain(built)
    assert request.output == alone(prompt, greedy())[0]
    assert built.counters.prefill_tokens == len(prompt)


@pytest.mark.parametrize("chunks", [1, 2, 3])
def test_a_prefill_of_what_was_generated_before_stays_a_prefill(chunks):
    """First recomputed, since the host is full, then swapped out half way: no decode row, though it has output."""
    built = engine(preempt="swap", max_batched_tokens=8, checkpoint_interval=3)
    request = built.submit(PROMPT, greedy(max_tokens=24), LETTERS)
    for _ in range(18):
        built.step()
    limit, built.scheduler._room.limit = built.scheduler._room.limit, 1
    built.scheduler.preempt(request)
    built.scheduler._room.limit = limit
    for _ in range(chunks):
        built.step()
    assert request.computed == 8 * chunks
    built.scheduler.preempt(request)
    assert request.kept is Phase.PREFILL
    drain(built)
    assert request.output == alone(PROMPT, greedy(max_tokens=24))[0]
    assert (built.counters.swaps_refused, built.counters.swaps_in) == (1, 1)


def test_a_full_host_means_recompute_and_a_counter_says_so():
    options = {"checkpoint_interval": 4, "max_batch": 6, "max_batched_tokens": 8, "blocks": 12}
    one = engine(**options).plan.mamba.bytes_per_slot + 2000
    crowd = engine(preempt="swap", swap_memory=one, **options)
    prompts = random_prompts(8, seed=3, longest=14)
    requests = run(crowd, prompts, [greedy(max_tokens=24)] * 8)
    for prompt, request in zip(prompts, requests, strict=True):
        assert request.output == alone(prompt, greedy(max_tokens=24))[0]
    assert crowd.counters.swaps_refused > 0
    assert crowd.counters.prefill_tokens > sum(map(len, prompts))


@pytest.mark.parametrize("steps", [0, 1])
def test_an_abort_while_swapped_out_leaves_nothing_on_the_host(steps):
    """Before and after its caches have left the device."""
    built = engine(preempt="swap", slots=1, blocks=8)
    request = built.submit(PROMPT, greedy(), LETTERS)
    for _ in range(4):
        built.step()
    built.scheduler.preempt(request)
    built.scheduler.waiting.reverse()
    other = built.submit(PROMPT[::-1], greedy(), LETTERS)
    built.scheduler.waiting.reverse()
    for _ in range(steps):
        built.step()
    assert (built.runner.swap.nbytes > 0) == bool(steps)
    built.abort(request)
    assert built.runner.swap.nbytes == 0
    drain(built)
    assert other.output == alone(PROMPT[::-1], greedy())[0]
    assert (request.finish_reason, built.counters.swaps_in) == ("abort", 0)


def test_a_request_whose_last_token_is_on_its_way_is_not_copied():
    built = engine(preempt="swap", async_scheduling=True)
    request = built.submit(PROMPT, greedy(max_tokens=2), LETTERS)
    while not request.is_full:
        built.step()
    built.scheduler.preempt(request)
    drain(built)
    assert request.output == alone(PROMPT, greedy(max_tokens=2))[0]
    assert (built.counters.preemptions, built.counters.swaps_out) == (1, 0)


@pytest.mark.parametrize("is_async", [False, True])
def test_slots_that_change_places_in_any_way(is_async):
    """Cycles, swaps, moves into slots that have just been freed."""
    built = engine(checkpoint_interval=3, max_batch=4, async_scheduling=is_async)
    prompts = random_prompts(7, seed=8)
    params = [PENALISED if i % 2 else greedy(max_tokens=5 + i) for i in range(7)]
    requests = [
        built.submit(prompt, asked, LETTERS, i) for i, (prompt, asked) in enumerate(zip(prompts, params, strict=True))
    ]
    orders = [[1, 2, 3, 0], [0, 1, 3, 2], [3, 2, 1, 0], [0, 1, 2, 3]]
    step = 0
    while built.has_work:
        built.permute_slots(orders[step % 4])
        built.step()
        step += 1
    drain(built)
    for prompt, request, asked in zip(prompts, requests, params, strict=True):
        assert request.output == alone(prompt, asked)[0]
    with pytest.raises(ArgumentError, match="expected a permutation of 4 slots"):
        built.permute_slots([0, 0, 1, 2])


@pytest.mark.parametrize("window", [1, 2, 3, 16])
def test_the_closed_form_of_the_trackers(window):
    start, pending = torch.zeros(1, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    for steps in range(5 * window + 3):
        assert (int(start), int(pending)) == predicted_trackers(steps, window)
        start, pending = advance(start, pending, 1, 1, window, max(1, ring_rows(window)))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda e, r: e.runner.caches.mamba.pending.__setitem__(r.slot, 9), "request 0 has ring_start and pending"),
        (lambda e, r: e.runner.caches.mamba.state[1].select(0, 5).zero_(), "slot 5 is free, but was written to"),
        (lambda e, r: e.runner.caches.mamba.pending.__setitem__(5, 0), "slot 5 is free"),
        (lambda e, r: e.sampler.counts.table[5, 3].zero_(), "slot 5 is free"),
        (lambda e, r: e.runner.caches.kv.pool[1, 1, 7, 0].zero_(), r"blocks \[7\] are free, but were written to"),
        (lambda e, r: e.scheduler._room.take(r, 5), "the host keeps"),
    ],
    ids=["tracker", "state", "free tracker", "counts", "block", "room"],
)
def test_integrity_is_looked_at_on_the_device(damage, message):
    built = engine(preempt="swap")
    request = built.submit(PROMPT, greedy(), LETTERS)
    built.step()
    built.step()
    built.check_integrity()
    damage(built, request)
    with pytest.raises(IntegrityError, match=message):
        built.check_integrity()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"preempt": "never"}, "preempt is 'never', expected one of recompute, swap"),
        ({"swap_memory": 0.5}, "swap_memory is 0.5, a share; expected bytes"),
        ({"swap_memory": "lots"}, "swap_memory is 'lots', expected bytes or a size"),
        ({"swap_memory": "1GiB"}, "swap_memory is 1GiB, but preempt is recompute: nothing is swapped out"),
        ({"swap_memory": 5, "preempt": "swap", "deterministic": True}, "swap_memory is 5, but deterministic is on"),
        ({"nvtx": True}, "nvtx is on, but the device is cpu"),
        ({"poison": "false"}, "poison is 'false', expected True or False$"),
        ({"deterministic": None}, "deterministic is None, expected True or False$"),
        ({"async_scheduling": "off"}, "async_scheduling is 'off', expected True or False, or None"),
        ({"device": 0, "nvtx": True}, "device is 0, expected cpu or cuda"),
    ],
)
def test_options_are_checked(options, message):
    with pytest.raises(ConfigError, match=message):
        EngineConfig(**options)
