"""Random traffic: each request's tokens are those of the same request run alone with the plain step.

In float64, so that matrix products of different shapes cannot blur it. Pools are full of NaN at the start and on
every free.
"""

import random
from contextlib import nullcontext

import pytest
import torch

from statewise.cache.window import predicted_replays, predicted_writes
from statewise.engine.request import Phase, SamplingParams
from tests.engine.harness import LETTERS, drain, engine, greedy, random_prompts, run

_alone: dict = {}


def alone(prompt, params):
    """The tokens of one request in an engine of its own, plain mode, one chunk."""
    key = (tuple(prompt), params)
    if key not in _alone:
        [request] = run(engine(checkpoint_interval=1), [prompt], [params])
        _alone[key] = (request.output, request.text.text, request.finish_reason)
    return _alone[key]


@pytest.mark.parametrize("seed", range(32))
def test_company_changes_nothing(seed):
    rng = random.Random(seed)
    interval = rng.choice([1, 2, 3, 16, 64])
    batch = rng.randint(1, 6)
    crowd = engine(
        checkpoint_interval=interval,
        max_batch=batch,
        max_batched_tokens=rng.choice([batch, batch + 1, 11, 64]),
        slots=rng.randint(1, batch),
        blocks=rng.randint(9, 24),
        padded=rng.choice([(), (1, 2, 4), (5, 6)]),
        async_scheduling=rng.random() < 0.5,
    )
    prompts = random_prompts(10, seed)
    params = [
        SamplingParams(
            max_tokens=rng.randint(1, 16), temperature=rng.choice([0, 0.8]), seed=i, ignore_eos=True, top_p=0.9
        )
        for i in range(10)
    ]
    pending = list(zip(range(10), prompts, params, strict=True))
    live, aborted = [], set()
    while pending or crowd.has_work:
        while pending and rng.random() < 0.5:
            i, prompt, param = pending.pop(0)
            live.append(crowd.submit(prompt, param, LETTERS, i))
        if live and rng.random() < 0.03:
            victim = rng.choice(live)
            if victim.phase is not Phase.FINISHED:
                crowd.abort(victim)
                aborted.add(victim.index)
        crowd.step()
    drain(crowd)
    assert len(aborted) < len(live) == 10
    for request in live:
        tokens, text, reason = alone(prompts[request.index], params[request.index])
        if request.index in aborted:
            assert request.output == tokens[: len(request.output)]
            assert request.finish_reason == "abort"
        else:
            assert request.output == tokens
            assert (request.text.text, request.finish_reason) == (text, reason)


def test_the_traffic_does_preempt():
    """Scarce blocks: requests are preempted while they prefill and decode, and end as if they never were."""
    crowd = engine(checkpoint_interval=4, max_batch=6, max_batched_tokens=8, blocks=12)
    prompts = random_prompts(8, seed=3, longest=14)
    requests = run(crowd, prompts, [greedy(max_tokens=24)] * 8)
    assert crowd.counters.preemptions > 3
    for prompt, request in zip(prompts, requests, strict=True):
        assert request.output == alone(prompt, greedy(max_tokens=24))[0]


@pytest.mark.parametrize("interval", [1, 2, 3, 16])
def test_state_writes_are_those_that_the_rule_predicts(interval):
    """Counted by the engine, predicted by the closed form, seen in the pool: no other step changes a state."""
    crowd = engine(checkpoint_interval=interval, max_batched_tokens=16)
    prompts = random_prompts(7, seed=11)
    requests = [crowd.submit(p, greedy(max_tokens=5 + 9 * i), LETTERS, i) for i, p in enumerate(prompts)]
    state = crowd.runner.caches.mamba.state
    seen = 0
    while crowd.has_work:
        before = state.clone()
        decoding = {r.slot for r in requests if r.phase is Phase.DECODE}
        crowd.step()
        changed = {s for s in range(crowd.plan.slots) if not before[:, s].equal(state[:, s]) and s in decoding}
        seen += len(changed)
    steps = [len(r.output) - 1 for r in requests]
    counters = crowd.counters
    assert counters.preemptions == 0
    assert counters.state_writes == seen == sum(predicted_writes(n, interval) for n in steps)
    assert counters.replayed_rows == sum(predicted_replays(n, interval) for n in steps)
    assert counters.decode_rows == sum(steps)
    assert counters.pending_depth == counters.replayed_rows / sum(steps)
    spec = crowd.plan.mamba
    row = spec.ring_row_bytes if interval > 1 else 0
    assert counters.state_bytes_written == sum(steps) * (spec.conv_window_bytes + row) + seen * spec.state_bytes
    assert counters.state_bytes_moved == spec.bytes_moved(
        steps=sum(steps), state_writes=seen, replayed=counters.replayed_rows
    )


def test_a_recycled_slot_remembers_nothing():
    """One slot, many owners in turn, each as if it were the first."""
    crowd = engine(checkpoint_interval=16, slots=1)
    prompts = random_prompts(6, seed=5)
    requests = run(crowd, prompts, [greedy(max_tokens=20)] * 6)
    for prompt, request in zip(prompts, requests, strict=True):
        assert request.output == alone(prompt, greedy(max_tokens=20))[0]


def test_the_reference_ops_serve_the_same_tokens():
    from tests.models.tiny import tiny_config, tiny_model

    slow = engine(checkpoint_interval=3, model=tiny_model(tiny_config(), backend="reference"), backend="reference")
    prompts = random_prompts(2, seed=9, longest=6)
    for prompt, request in zip(prompts, run(slow, prompts, [greedy(max_tokens=8)] * 2), strict=True):
        assert request.output == alone(prompt, greedy(max_tokens=8))[0]


def test_a_warm_up_leaves_nothing_behind():
    """What a GPU runs before its first step, on the CPU."""
    built = engine()
    pools = [built.runner.caches.mamba.state, built.runner.caches.mamba.conv_window, built.runner.caches.kv.pool]
    before = [pool.clone() for pool in pools]
    built.runner.warm_up()
    for pool, was in zip(pools, before, strict=True):
        torch.testing.assert_close(pool, was, rtol=0, atol=0, equal_nan=True)
    assert built.counters.decode_rows == built.counters.prefill_tokens == 0
    prompts = random_prompts(2, seed=6)
    for prompt, request in zip(prompts, run(built, prompts, [greedy()] * 2), strict=True):
        assert request.output == alone(prompt, greedy())[0]


def test_the_phases_of_a_step_are_marked():
    """With ``nvtx`` each is a range; here a list takes their place."""
    crowd, marked = engine(), []

    def phase(name):
        marked.append(name)
        return nullcontext()

    crowd._phase = crowd.runner._phase = phase
    run(crowd, [[1, 2, 3]], [greedy(max_tokens=2)])
    assert marked == [
        "schedule",
        "move",
        "prefill",
        "sample",
        "collect",
        "schedule",
        "move",
        "decode",
        "sample",
        "collect",
    ]
