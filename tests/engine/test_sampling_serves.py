"""Sampling in the engine: a request's tokens are its own, whatever company, slot and interruptions it has."""

import pytest

from statewise.engine.request import SamplingParams
from statewise.errors import RequestError
from tests.engine.harness import LETTERS, drain, engine, greedy, random_prompts, run

PROMPT = random_prompts(1, seed=21)[0]
KINDS = {
    "drawn": {"temperature": 0.9},
    "cut": {"temperature": 1.2, "top_k": 7, "top_p": 0.9, "min_p": 0.01},
    "penalised": {"temperature": 0.8, "repetition_penalty": 1.3, "presence_penalty": 0.4, "frequency_penalty": 0.3},
    "greedy and penalised": {"temperature": 0, "repetition_penalty": 1.5, "frequency_penalty": 1.0},
    "biased": {"temperature": 1.0, "logit_bias": {3: 2.0, 5: -100.0}, "min_tokens": 9, "stop_token_ids": (3, 8)},
}


def of_kind(kind, seed=7, **more):
    return SamplingParams(**({"max_tokens": 14, "ignore_eos": True, "seed": seed} | KINDS[kind] | more))


_alone = {}


def alone(prompt, params):
    """The tokens of a request that has an engine to itself."""
    key = (tuple(prompt), params)
    if key not in _alone:
        [request] = run(engine(checkpoint_interval=1), [prompt], [params])
        _alone[key] = request.output
    return _alone[key]


def test_the_kinds_make_a_difference():
    assert len({tuple(alone(PROMPT, of_kind(kind))) for kind in KINDS}) == len(KINDS)
    assert len({tuple(alone(PROMPT, of_kind("drawn", seed))) for seed in range(4)}) == 4
    assert alone(PROMPT, of_kind("greedy and penalised")) != alone(PROMPT, greedy(max_tokens=14))


def test_the_same_tokens_in_a_batch_of_fifty():
    """All kinds side by side, each in a slot of its own; prompts are cut into chunks."""
    built = engine(max_batch=50, max_batched_tokens=60, checkpoint_interval=4)
    prompts = random_prompts(49, seed=4, longest=9)
    prompts.insert(33, PROMPT)
    params = [of_kind(list(KINDS)[i % len(KINDS)], seed=i) for i in range(50)]
    requests = run(built, prompts, params)
    for i in (*range(0, 50, 7), 33):
        assert requests[i].output == alone(prompts[i], params[i])


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_tokens_after_preemptions_and_in_another_slot(kind):
    """All are preempted every few steps, and come back into the slots that the others have just left."""
    built = engine(max_batch=2, max_batched_tokens=8, checkpoint_interval=3)
    others = [greedy(max_tokens=5, repetition_penalty=1.7, stop=()) for _ in range(9)]
    request = built.submit(PROMPT, of_kind(kind), LETTERS)
    for i, (prompt, params) in enumerate(zip(random_prompts(9, seed=2), others, strict=True)):
        built.submit(prompt, params, LETTERS, i + 1)
    slots = set()
    for step in range(60):
        built.step()
        if request.slot is not None:
            slots.add(request.slot)
        if step % 6 == 5:
            for running in reversed(list(built.scheduler.running)):
                built.scheduler.preempt(running)
            built.scheduler.slots._free.reverse()
    drain(built)
    assert len(request.decode_runs) > 2
    assert slots == {0, 1}
    assert request.output == alone(PROMPT, of_kind(kind))


def test_scarce_blocks_preempt_and_change_no_token():
    built = engine(max_batch=6, max_batched_tokens=8, blocks=12, checkpoint_interval=4)
    prompts = random_prompts(8, seed=3, longest=14)
    params = [of_kind(list(KINDS)[i % len(KINDS)], seed=i, max_tokens=20) for i in range(8)]
    requests = run(built, prompts, params)
    assert built.counters.preemptions > 3
    for prompt, request, each in zip(prompts, requests, params, strict=True):
        assert request.output == alone(prompt, each)


def test_a_repetition_penalty_keeps_greedy_decoding_from_repeating():
    prompt = PROMPT[:3]
    [plain] = run(engine(), [prompt], [greedy(max_tokens=20)])
    [penalised] = run(engine(), [prompt], [greedy(max_tokens=20, repetition_penalty=1e9)])
    assert len(set(plain.output)) < 20
    assert len({*prompt, *penalised.output}) == 20 + len(set(prompt))


def test_a_bias_forces_and_forbids_tokens():
    [plain] = run(engine(), [PROMPT], [greedy()])
    [forced] = run(engine(), [PROMPT], [greedy(logit_bias={7: 100})])
    assert forced.output == [7] * 12
    [without] = run(engine(), [PROMPT], [greedy(logit_bias=dict.fromkeys(plain.output, -100))])
    assert not set(without.output) & set(plain.output)


def test_log_probabilities_are_those_of_the_model_whatever_the_sampler_does():
    [plain] = run(engine(), [PROMPT], [greedy(max_tokens=1, logprobs=3)])
    [other] = run(engine(), [PROMPT], [greedy(max_tokens=1, logprobs=3, logit_bias={7: 100}, repetition_penalty=3.0)])
    assert other.output == [7]
    [top], [unforced] = other.logprobs, plain.logprobs
    assert top.first(3) == unforced
    [everything] = run(engine(), [PROMPT], [greedy(max_tokens=1, logprobs=31)])[0].logprobs
    seven = everything.logprobs[everything.token_ids.index(7)]
    assert 7 in unforced.token_ids or (top.token_ids[3:], top.logprobs[3:]) == ((7,), (seven,))


def test_a_drawn_token_that_is_none_of_the_likeliest_comes_behind_them():
    prompts, params = random_prompts(4, seed=1), [greedy(temperature=3.0, seed=i, logprobs=1) for i in range(4)]
    behind = 0
    for request in run(engine(), prompts, params):
        for token, top in zip(request.output, request.logprobs, strict=True):
            assert token in top.token_ids
            assert len(top.token_ids) == len(top.logprobs) == (1 if token == top.token_ids[0] else 2)
            assert top.logprobs[-1] <= top.logprobs[0]
            behind += len(top.token_ids) - 1
    assert behind > 10


def test_only_those_who_ask_get_log_probabilities():
    prompts = random_prompts(3, seed=1)
    requests = run(engine(), prompts, [greedy(logprobs=n) for n in (0, 2, 1)])
    alone = run(engine(), prompts[1:2], [greedy(logprobs=2)])[0]
    assert [len(r.logprobs) for r in requests] == [0, 12, 12]
    assert [top.token_ids for top in requests[1].logprobs] == [top.token_ids for top in alone.logprobs]
    assert {len(top.token_ids) for top in requests[2].logprobs} == {1}


@pytest.mark.parametrize("least", [0, 1, 4, 12])
def test_min_tokens(least):
    """Neither an end of text nor a stop token nor a stop string ends it before."""
    [plain] = run(engine(), [PROMPT], [greedy()])
    letters = LETTERS.decode(plain.output)
    for built, options in (
        (engine(eos=plain.output), {"ignore_eos": False}),
        (engine(), {"stop_token_ids": tuple(plain.output)}),
    ):
        [request] = run(built, [PROMPT], [greedy(min_tokens=least, **options)])
        assert not set(request.output[:least]) & set(plain.output)
        assert len(request.output) > least or least == 12
    [request] = run(engine(), [PROMPT], [greedy(min_tokens=least, stop=tuple(set(letters)))])
    assert (len(request.output), request.text.text) == (min(12, least + 1), letters[:least])
    assert request.finish_reason == ("stop" if least < 12 else "length")


def test_a_stop_string_may_begin_before_min_tokens():
    letters = run(engine(), [PROMPT], [greedy()])[0].text.text
    stop = letters[2:6]
    assert letters.index(stop) == 2
    for least, reason in ((5, "stop"), (6, "length")):
        [request] = run(engine(), [PROMPT], [greedy(min_tokens=least, stop=(stop,))])
        assert request.finish_reason == reason
    short = [greedy(min_tokens=4, stop=(letters[2:4], "x" * 9))]
    again = letters.find(letters[2:4], 3)
    assert len(run(engine(), [PROMPT], short)[0].output) == (again + 2 if again >= 0 else 12)


def test_a_request_that_may_not_produce_any_token_ends_alone():
    stuck = greedy(min_tokens=1, stop_token_ids=tuple(range(31)))
    bad, good = run(engine(), [PROMPT, PROMPT], [stuck, greedy()])
    assert str(bad.error).endswith("token 0 are not numbers, or min_tokens rules out all that are possible")
    assert len(good.output) == 12


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"repetition_penalty": 0}, "repetition_penalty is 0, expected above 0"),
        ({"repetition_penalty": float("inf")}, "repetition_penalty is inf"),
        ({"presence_penalty": 2.1}, "presence_penalty is 2.1, expected -2 to 2"),
        ({"frequency_penalty": -3}, "frequency_penalty is -3, expected -2 to 2"),
        ({"frequency_penalty": "x"}, "frequency_penalty is 'x', expected -2 to 2"),
        ({"logit_bias": 5}, "logit_bias is 5, expected a mapping of token ids to biases"),
        ({"logit_bias": [1, 2]}, "expected a mapping of token ids to biases"),
        ({"logit_bias": {"a": 1}}, "a token of logit_bias is 'a', expected a token id"),
        ({"logit_bias": {-1: 1}}, "a token of logit_bias is -1, expected a token id"),
        ({"logit_bias": {1: 101}}, "the bias of token 1 is 101, expected -100 to 100"),
        ({"logit_bias": {1: float("nan")}}, "the bias of token 1 is nan"),
        ({"logit_bias": {1: None}}, "the bias of token 1 is None"),
        ({"min_tokens": -1}, "min_tokens is -1, expected 0 to max_tokens = 16"),
        ({"min_tokens": 17}, "min_tokens is 17, expected 0 to max_tokens = 16"),
        ({"seed": 2**63}, "expected a whole number of 64 bits"),
        ({"seed": -(2**63) - 1}, "expected a whole number of 64 bits"),
    ],
)
def test_parameters_are_checked(options, message):
    with pytest.raises(RequestError, match=message):
        SamplingParams(**options)


def test_a_bias_for_an_unknown_token_is_refused_and_the_others_go_on():
    built = engine()
    good = built.submit(PROMPT, greedy(logit_bias={30: 1}), LETTERS)
    with pytest.raises(RequestError, match="logit_bias has token 31, outside the vocabulary of 31"):
        built.submit(PROMPT, greedy(logit_bias={31: 1}), LETTERS)
    drain(built)
    assert len(good.output) == 12
