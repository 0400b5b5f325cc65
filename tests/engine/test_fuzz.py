"""A traffic fuzzer: whatever happens around a request, its tokens are those of the same request run alone.

Arrivals, aborts, preemptions, next turns and permutations of the slots come at any moment, in pools down to one slot.
On a CPU in float64, so that matrix products of different shapes cannot blur it, against the plain step; pools, pads and
scratch are full of NaN, and the engine checks its books and its trackers after every step.

STATEWISE_FUZZ=2000 runs so many examples, drawn anew; without it, a few that are always the same.
"""

import os
import random

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from statewise.cache.window import predicted_replays, predicted_writes
from statewise.engine.request import Phase
from tests.engine.harness import LETTERS, drain, engine, greedy, run
from tests.models.tiny import tiny_config, tiny_model
from tests.ops.kernels import HAS_GPU

EXAMPLES = int(os.environ.get("STATEWISE_FUZZ", "0"))
LONGEST = 16  # tokens of a prompt, and of an output: 8 blocks hold both
MOST_TURNS = 4  # of an example, beside those that a rule takes
NEAR_TIE = 1e-3  # between two logits in float32
KINDS = {
    "greedy": {},
    "drawn": {"temperature": 0.9, "top_p": 0.9},
    "penalised": {"temperature": 0.7, "repetition_penalty": 1.4, "frequency_penalty": 0.5},
    "biased": {"logit_bias": {5: 2.0}},
    "scored": {"logprobs": 2, "prompt_logprobs": 1},
}
PATTERN = ("mamba", "attention", "mlp", "mamba")
ON_CPU: dict = {}
FIXED = {"deterministic": True, "max_batched_tokens": 80}
ON_GPU = {"device": "cuda", "backend": "triton", "dtype": "float32", "state_dtype": "float32"}
_alone: dict = {}


@st.composite
def crowds(draw):
    """Options of an engine, and how it is cut down."""
    batch = draw(st.integers(1, 6))
    return {
        "checkpoint_interval": draw(st.sampled_from([1, 2, 3, 5, 16])),
        "max_batch": batch,
        "max_batched_tokens": draw(st.sampled_from([batch, batch + 1, 9, 64])),
        "slots": draw(st.integers(1, batch)),
        "blocks": draw(st.integers(8, 20)),
        "max_context": draw(st.sampled_from([LONGEST + 2, 80])),
        "async_scheduling": draw(st.booleans()),
        "preempt": draw(st.sampled_from(["recompute", "swap", "swap"])),
        "swap_memory": draw(st.sampled_from(["4GiB", "20KiB"])),
    }


def random_tokens(rng):
    return [rng.randrange(31) for _ in range(rng.choice([1, rng.randint(1, LONGEST)]))]


class Traffic(RuleBasedStateMachine):
    """A crowd in float64 on the CPU."""

    model, kinds, platform = tiny_model(tiny_config(PATTERN)), tuple(KINDS), ON_CPU

    @initialize(options=crowds(), padded=st.sampled_from([(), (1, 2, 4), (5, 6), (3, 6)]))
    def begin(self, options, padded):
        options = options | {"max_batched_tokens": max(options["max_batched_tokens"], options["max_batch"])}
        if options["preempt"] != "swap" or self.platform.get("deterministic"):
            del options["swap_memory"]  # of no use there, and so an error
        self.crowd = engine(model=self.model, **self.padding(padded), **(options | self.platform))
        self.requests, self.aborted, self.rng, self.turns = [], set(), random.Random(0), 0

    def padding(self, padded):
        return {"padded": padded}

    @rule(seed=st.integers(0, 2**20), count=st.integers(1, 4))
    def submit(self, seed, count):
        rng = random.Random(seed)
        for _ in range(count):
            params = self.params(rng, KINDS[rng.choice(self.kinds)])
            keep = not self.crowd.config.deterministic and rng.random() < 0.4
            prompt = random_tokens(rng)
            self.requests.append(self.crowd.submit(prompt, params, LETTERS, len(self.requests), keep=keep))

    def params(self, rng, kind):
        new = rng.randint(1, LONGEST)
        return greedy(
            max_tokens=new,
            min_tokens=rng.choice([0, new // 2]),
            seed=rng.randrange(2**20),
            stop_token_ids=tuple(rng.sample(range(31), rng.randint(0, 5))),
            **(kind | self.asked()),
        )

    @precondition(lambda self: self.extensible())
    @rule(data=st.data(), seed=st.integers(0, 2**20))
    def extend(self, data, seed):
        self.extend_one(data.draw(st.sampled_from(self.extensible())), random.Random(seed))

    def extend_one(self, request, rng):
        kind = {key: value for key, value in KINDS[rng.choice(self.kinds)].items() if key != "prompt_logprobs"}
        params, index = self.params(rng, kind), len(self.requests)
        self.requests.append(self.crowd.extend(request, random_tokens(rng), params, LETTERS, index))

    def extensible(self):
        room = self.crowd.plan.max_context - LONGEST
        ended = [request for request in self.requests if request.keep and request.phase is Phase.FINISHED]
        return [request for request in ended if request.arrived < room]

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def release(self, data):
        self.crowd.release(data.draw(st.sampled_from(self.requests)))

    def asked(self):
        return {}

    @rule(count=st.integers(1, 6))
    def step(self, count):
        for _ in range(count):
            self.take_turns(self.crowd.step())

    def take_turns(self, requests):
        """Some of those who ask first are answered at once; others later, by the rule above."""
        for request in requests:
            if request in self.extensible() and self.turns < MOST_TURNS and self.rng.random() < 0.7:
                self.extend_one(request, self.rng)
                self.turns += 1

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def abort(self, data):
        request = data.draw(st.sampled_from(self.requests))
        if request.phase is not Phase.FINISHED:
            self.crowd.abort(request)
            self.aborted.add(request)

    @precondition(lambda self: self.crowd.scheduler.running)
    @rule(data=st.data())
    def preempt(self, data):
        self.crowd.scheduler.preempt(data.draw(st.sampled_from(self.crowd.scheduler.running)))

    @rule(data=st.data())
    def permute(self, data):
        self.crowd.permute_slots(data.draw(st.permutations(range(self.crowd.plan.slots))))

    def teardown(self):
        if not hasattr(self, "crowd") or self.crowd.has_failed:
            return
        while self.crowd.has_work:
            self.take_turns(self.crowd.step())
        self.crowd.check_integrity()
        for request in self.requests:
            self.crowd.release(request)
        drain(self.crowd)
        self.crowd.check_integrity()
        assert self.crowd.runner.swap.nbytes == 0
        for request in self.requests:
            self.compare(request, self.alone(request))
        runs = [n for request in self.requests for n in request.decode_runs]
        interval, counters = self.crowd.config.checkpoint_interval, self.crowd.counters
        assert counters.state_writes == sum(predicted_writes(n, interval) for n in runs)
        assert counters.replayed_rows == sum(predicted_replays(n, interval) for n in runs)
        assert counters.swaps_in <= counters.swaps_out <= counters.preemptions

    def alone(self, request):
        context = self.crowd.config.max_context
        key = (self.model, request.prompt, request.params, context)
        if key not in _alone:
            options = {"checkpoint_interval": 1, "max_batch": 1, "async_scheduling": False, "max_context": context}
            [other] = run(engine(model=self.model, **(options | self.platform)), [request.prompt], [request.params])
            _alone[key] = other
        return _alone[key]

    def compare(self, request, alone):
        if request in self.aborted:
            assert request.finish_reason == "abort"
            assert request.output == alone.output[: len(request.output)]
            return
        assert (request.output, request.finish_reason) == (alone.output, alone.finish_reason)
        assert [top.token_ids for top in request.logprobs] == [top.token_ids for top in alone.logprobs]
        assert [s and s.top.token_ids for s in request.prompt_logprobs] == [
            s and s.top.token_ids for s in alone.prompt_logprobs
        ]


class TrafficOfFixedShapes(Traffic):
    """With ``deterministic``."""

    platform = FIXED

    def padding(self, padded):
        return {}


class TrafficOnGPU(Traffic):
    """In float32 on the kernels, with graphs. Tokens may part where two logits are as good as equal."""

    kinds = ("greedy",)
    platform = ON_GPU

    @classmethod
    def build(cls):
        """The model, on the device."""
        device = torch.device("cuda")
        return tiny_model(tiny_config(PATTERN), backend="triton", device=device).float().to(device).prepare()

    def padding(self, padded):
        return {}

    def asked(self):
        return {"logprobs": 2}

    def compare(self, request, alone):
        pairs = enumerate(zip(request.output, alone.output, strict=False))
        parted = next((i for i, (a, b) in pairs if a != b), None)
        if parted is None:
            assert len(request.output) == len(alone.output) or request in self.aborted
            assert request.finish_reason == ("abort" if request in self.aborted else alone.finish_reason)
            return
        top = request.logprobs[parted]
        assert alone.output[parted] in top.token_ids
        assert top.logprobs[0] - top.logprobs[1] < NEAR_TIE


def _fuzz(machine, few):
    patient = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
    bounded = settings(
        max_examples=EXAMPLES or few,
        derandomize=not EXAMPLES,
        stateful_step_count=40,
        deadline=None,
        suppress_health_check=patient,
        database=None,
    )
    run_state_machine_as_test(machine, settings=bounded)


def test_tokens_do_not_depend_on_what_happens_around_them():
    _fuzz(Traffic, 30)


def test_nor_do_they_in_steps_of_fixed_shapes():
    _fuzz(TrafficOfFixedShapes, 6)


@pytest.mark.gpu
@pytest.mark.skipif(not HAS_GPU, reason="needs a CUDA device")
def test_tokens_do_not_depend_on_what_happens_around_them_on_a_gpu():
    TrafficOnGPU.model = TrafficOnGPU.build()
    _fuzz(TrafficOnGPU, 10)
