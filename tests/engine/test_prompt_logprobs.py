"""Log probabilities of prompt tokens: those of one forward pass, whatever chunks, preemptions and company there are."""

import copy
import math

import pytest
import torch

from statewise.engine import prompt_scores
from statewise.engine.llm import LLM
from statewise.engine.request import SamplingParams
from statewise.errors import RequestError
from statewise.layers.batch import Row, make_batch
from tests.engine.harness import LETTERS, MODEL, drain, engine, greedy, random_prompts, run
from tests.models.tiny import CPU, caches, tiny_config

PROMPT = random_prompts(1, seed=7, longest=20)[0]


def expected(prompt):
    """Log probabilities of all tokens at every position, (len(prompt), V), from one prefill."""
    rows = [Row(prompt, 0, 0, list(range(10)), wants_all_logits=True)]
    return MODEL(make_batch([], rows, 4, CPU), caches(tiny_config(), 1)).log_softmax(-1)


def check(request, top=2, start=1):
    """The request has the log probabilities that one prefill gives, from token `start` on."""
    found, logprobs = request.prompt_logprobs, expected(list(request.prompt))
    assert len(found) == len(request.prompt)
    assert found[: max(1, start)] == [None] * min(len(found), max(1, start))
    for i in range(max(1, start), len(found)):
        assert found[i].logprob == pytest.approx(float(logprobs[i - 1, request.prompt[i]]), abs=1e-9)
        values, ids = logprobs[i - 1].topk(top)
        assert found[i].top.token_ids == tuple(ids.tolist())
        assert found[i].top.logprobs == pytest.approx(values.tolist(), abs=1e-9)


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 64])
@pytest.mark.parametrize("at_once", [1, 4, 512])
def test_any_chunks(chunk, at_once, monkeypatch):
    monkeypatch.setattr(prompt_scores, "SCORED_AT_ONCE", at_once)
    built = engine(max_batch=1, max_batched_tokens=chunk)
    [request] = run(built, [PROMPT], [greedy(max_tokens=3, prompt_logprobs=2)])
    check(request)
    assert request.output == run(engine(), [PROMPT], [greedy(max_tokens=3)])[0].output


def test_company_and_preemption():
    """Some ask for it, with different counts and starts, some do not; memory is scarce, so requests are preempted."""
    prompts = random_prompts(12, seed=3)
    asked = [{"prompt_logprobs": 1 + i % 3, "prompt_logprobs_start": i} if i % 4 else {} for i in range(12)]
    built = engine(max_batch=5, max_batched_tokens=9, blocks=9, checkpoint_interval=4)
    params = [greedy(max_tokens=14, **each) for each in asked]
    for request, each in zip(run(built, prompts, params), asked, strict=True):
        if each:
            check(request, each["prompt_logprobs"], each["prompt_logprobs_start"])
        else:
            assert request.prompt_logprobs == []
    assert built.counters.preemptions > 0


@pytest.mark.parametrize("preempt", ["recompute", "swap"])
@pytest.mark.parametrize("is_async", [False, True])
def test_a_prefill_that_is_preempted_half_way_keeps_what_is_known(is_async, preempt):
    """With asynchronous scheduling while what its first chunk found is still on its way: that comes twice then."""
    built = engine(max_batch=2, max_batched_tokens=4, async_scheduling=is_async, preempt=preempt)
    request = built.submit(PROMPT, greedy(max_tokens=2, prompt_logprobs=2), LETTERS)
    built.step()
    known = list(request.prompt_logprobs)
    assert (1 if is_async else 2) <= len(known) < len(PROMPT)
    built.scheduler.preempt(request)
    drain(built)
    assert request.prompt_logprobs[: len(known)] == known
    check(request)


def test_a_prompt_of_one_token_has_none():
    [request] = run(engine(), [[5]], [greedy(max_tokens=2, prompt_logprobs=0)])
    assert request.prompt_logprobs == [None]


def test_without_likeliest_tokens():
    [request] = run(engine(), [PROMPT], [greedy(max_tokens=1, prompt_logprobs=0, prompt_logprobs_start=99)])
    assert request.prompt_logprobs == [None] * len(PROMPT)
    [request] = run(engine(), [PROMPT], [greedy(max_tokens=1, prompt_logprobs=0)])
    assert all(each.top.token_ids == () for each in request.prompt_logprobs[1:])


def test_logits_that_are_not_numbers_end_the_request():
    model = copy.deepcopy(MODEL)
    model.embeddings.weight[7] = math.nan
    requests = run(
        engine(model=model), [[1, 7, 2], [1, 2, 3]], [greedy(max_tokens=1, prompt_logprobs=1) for _ in range(2)]
    )
    assert "the logits before prompt token" in str(requests[0].error)
    assert requests[1].error is None


@pytest.mark.parametrize("value", [-1, 1.5, True])
def test_out_of_range(value):
    with pytest.raises(RequestError, match="expected 0 or more"):
        SamplingParams(prompt_logprobs=value)
    with pytest.raises(RequestError, match="expected 0 or more"):
        SamplingParams(prompt_logprobs_start=value)


def test_generate_returns_them(demo_folder):
    llm = LLM(demo_folder, quiet=True)
    asked, plain = llm.generate(
        ["One and one", "One"], [SamplingParams(max_tokens=1, prompt_logprobs=1), SamplingParams()]
    )
    assert len(asked.prompt_logprobs) == len(asked.prompt_token_ids)
    assert asked.prompt_logprobs[0] is None
    assert torch.tensor([each.logprob for each in asked.prompt_logprobs[1:]]).le(0).all()
    assert plain.prompt_logprobs == ()
