"""How a request ends: stop tokens and strings, lengths, aborts, and requests that cannot be served."""

import copy

import pytest
import torch

from statewise.engine.request import Phase, SamplingParams
from statewise.errors import RequestError
from tests.engine.harness import LETTERS, MODEL, drain, engine, greedy, random_prompts, run

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


@pytest.fixture(scope="module")
def text():
    [request] = run(engine(), [PROMPT], [greedy(max_tokens=30)])
    return request.text.text


def test_max_tokens(text):
    [request] = run(engine(), [PROMPT], [greedy(max_tokens=5)])
    assert (request.text.text, request.finish_reason) == (text[:5], "length")


def test_a_stop_string_ends_before_itself(text):
    stop = text[6:9]
    at = text.index(stop)
    [request] = run(engine(), [PROMPT], [greedy(max_tokens=30, stop=("never", stop))])
    assert (request.text.text, request.finish_reason) == (text[:at], "stop")
    assert len(request.output) == at + len(stop)


def test_a_stop_token_and_the_end_of_text(text):
    last = "abcdefghijklmnopqrstuvwxyz01234".index(text[4])
    at = text.index(text[4])
    for built, params in (
        (engine(), greedy(max_tokens=30, stop_token_ids=(last,))),
        (engine(eos=(last,)), greedy(max_tokens=30, ignore_eos=False)),
    ):
        [request] = run(built, [PROMPT], [params])
        assert (request.text.text, request.finish_reason) == (text[:at], "stop")
        assert request.output[-1] == last
    [request] = run(engine(eos=(last,)), [PROMPT], [greedy(max_tokens=30)])
    assert request.text.text == text


def test_the_end_of_the_context():
    [request] = run(engine(max_context=12), [PROMPT], [greedy(max_tokens=30)])
    assert (len(request.output), request.finish_reason) == (4, "length")


def test_abort_at_every_moment():
    for moment in range(8):
        built = engine(max_batched_tokens=8, slots=1)
        requests = [built.submit(p, greedy(), LETTERS, i) for i, p in enumerate(random_prompts(3, seed=2))]
        for _ in range(moment):
            built.step()
        for request in requests:
            built.abort(request)
            built.abort(request)
        assert {r.finish_reason for r in requests} <= {"abort", "length"}
        drain(built)


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([], "the prompt is empty"),
        ([1] * 80, "the prompt has 80 tokens, but a request has room for 80, one of them generated"),
        ([1, 31], "a token outside the vocabulary of 31"),
        ([-1], "a token outside the vocabulary of 31"),
        ([1.5], r"the prompt is \[1.5\], expected a sequence of token ids"),
        ([True], r"the prompt is \[True\], expected a sequence of token ids"),
        ([None], "expected a sequence of token ids"),
        ("ab", "the prompt is 'ab', expected a sequence of token ids"),
        (5, "the prompt is 5, expected a sequence of token ids"),
        (torch.tensor([1, 2]), "expected a sequence of token ids"),
    ],
)
def test_a_prompt_that_can_never_run_is_refused_and_the_others_go_on(prompt, message):
    built = engine()
    good = built.submit(PROMPT, greedy(), LETTERS)
    with pytest.raises(RequestError, match=message):
        built.submit(prompt, greedy(), LETTERS)
    drain(built)
    assert good.finish_reason == "length"


@pytest.mark.parametrize(
    ("params", "decoder", "message"),
    [
        (None, LETTERS, "params is None, expected SamplingParams"),
        ({"max_tokens": 3}, LETTERS, "expected SamplingParams"),
        (greedy(), None, "decoder is None, expected one with a method decode"),
    ],
)
def test_what_would_fail_in_a_step_is_refused_before_it(params, decoder, message):
    built = engine()
    good = built.submit(PROMPT, greedy(), LETTERS, keep=True)
    with pytest.raises(RequestError, match=message):
        built.submit(PROMPT, params, decoder)
    while built.has_work:
        built.step()
    with pytest.raises(RequestError, match=message):
        built.extend(good, PROMPT, params, decoder)
    built.release(good)
    drain(built)


def test_memory_bounds_the_context():
    """9 blocks of 4 tokens: the context is what the blocks hold, not what the model allows."""
    built = engine(blocks=9)
    with pytest.raises(RequestError, match="the prompt has 36 tokens, but a request has room for 36"):
        built.submit([1] * 36, greedy(), LETTERS)
    [request] = run(built, [[1] * 35], [greedy()])
    assert (len(request.output), request.finish_reason) == (1, "length")


@pytest.mark.parametrize("temperature", [0, 1e-320, 1.0])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_logits_that_are_not_numbers_end_one_request_alone(temperature, value):
    """A row whose embedding is NaN: its request ends with an error, its neighbours as if it were not there."""
    params = greedy(temperature=temperature, seed=3)
    [expected] = run(engine(), [PROMPT], [params])
    model = copy.deepcopy(MODEL)
    poisoned = min(set(range(31)) - set(expected.output) - set(PROMPT))
    model.embeddings.weight[poisoned] = value
    bad, good = run(engine(model=model), [[1, poisoned, 2], PROMPT], [params, params])
    assert bad.finish_reason == "error"
    assert str(bad.error) == "the logits of output token 0 are not numbers"
    assert good.output == expected.output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_tokens": 0}, "max_tokens is 0, expected at least 1"),
        ({"temperature": -1}, "temperature is -1, expected 0"),
        ({"top_p": 0}, "top_p is 0, expected above 0, at most 1"),
        ({"min_p": 2}, "min_p is 2, expected 0 to 1"),
        ({"top_k": -3}, "top_k is -3"),
        ({"logprobs": -1}, "logprobs is -1"),
        ({"stop": ("",)}, "expected strings that are not empty"),
        ({"stop": [1]}, "expected strings that are not empty"),
        ({"temperature": "x"}, "temperature is 'x', expected 0"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"max_tokens": 1.5}, "max_tokens is 1.5, expected at least 1"),
        ({"max_tokens": True}, "max_tokens is True"),
        ({"seed": "x"}, "seed is 'x', expected a whole number"),
        ({"stop_token_ids": ["a"]}, "stop_token_ids is 'a', expected token ids"),
        ({"stop_token_ids": 3.5}, "stop_token_ids is 3.5, expected one or several"),
        ({"stop": 3.5}, "stop is 3.5, expected one or several"),
        ({"ignore_eos": "false"}, "ignore_eos is 'false', expected True or False"),
    ],
)
def test_sampling_parameters_are_checked(options, message):
    with pytest.raises(RequestError, match=message):
        SamplingParams(**options)


def test_logprobs_are_those_of_the_raw_logits():
    [request] = run(engine(), [PROMPT], [greedy(max_tokens=6, logprobs=31)])
    assert len(request.logprobs) == 6
    for token, top in zip(request.output, request.logprobs, strict=True):
        assert top.token_ids[0] == token
        assert torch.tensor(top.logprobs).exp().sum() == pytest.approx(1, abs=1e-6)
        assert list(top.logprobs) == sorted(top.logprobs, reverse=True)
    assert request.phase is Phase.FINISHED
