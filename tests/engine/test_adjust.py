"""Biases, bans and penalties: by the definition, from counts that belong to one request alone."""

import dataclasses
import math

import pytest
import torch

from statewise.engine.request import SamplingParams
from statewise.engine.sampler import Sampler, adjust
from statewise.engine.sampling_batch import make_sampling_batch, random_numbers
from tests.engine.rows import CPU, LOGITS, request


def adjusted(logits, each, poison=True):
    """The logits of requests, each new in its slot, as they are before a token is chosen."""
    built = Sampler(8, logits.shape[-1], CPU, poison)
    built.counts.begin(each)
    return adjust(logits, make_sampling_batch(each, random_numbers(each), logits.shape[-1], CPU), built.counts)


@pytest.mark.parametrize("poison", [False, True])
def test_penalties_by_the_definition(poison):
    """vLLM's: repetition divides or multiplies over prompt and output; the other two count the output alone."""
    logits = torch.tensor([[2.0, -2.0, 1.0, 0.5, -1.0]]).repeat(4, 1)
    each = [
        request(slot=5, prompt=[0, 1], output=[1, 2, 2], repetition_penalty=2.0),
        request(slot=2, prompt=[0, 1], output=[1, 2, 2], presence_penalty=0.5),
        request(slot=7, prompt=[0, 1], output=[1, 2, 2], frequency_penalty=-0.25),
        request(slot=0, prompt=[3], output=[4], repetition_penalty=0.5, presence_penalty=1, frequency_penalty=2),
    ]
    expected = [
        [1.0, -4.0, 0.5, 0.5, -1.0],
        [2.0, -2.5, 0.5, 0.5, -1.0],
        [2.0, -1.75, 1.5, 0.5, -1.0],
        [2.0, -2.0, 1.0, 1.0, -3.5],
    ]
    torch.testing.assert_close(adjusted(logits, each, poison), torch.tensor(expected))
    assert torch.equal(adjusted(logits[:1], each[:1], poison), adjusted(logits, each, poison)[:1])


def test_counts_follow_the_output_and_a_new_owner_starts_anew():
    built = Sampler(2, 5, CPU, poison=True)
    first = request(slot=1, prompt=[0, 0, 3], temperature=0, presence_penalty=1.5)
    seen = []
    for new in (1, 0, 0, 0):
        seen.append(int(built.sample(LOGITS[None], [first], new)[0, 0]))
        first.output.append(seen[-1])
    assert seen == [1, 4, 2, 1]  # 2, 2, 1, then 0.5 of token 1 before 0 of token 0
    assert built.counts.table[1].tolist() == [1, 4, 2, 1, 2]
    second = request(slot=1, prompt=[2], output=[4, 4], temperature=0, frequency_penalty=1.5)
    assert built.sample(LOGITS[None], [second], 1)[0].tolist() == [1]
    assert built.counts.table[1].tolist() == [0, 2, 1, 0, 4]


def test_a_request_without_penalties_touches_no_counts():
    built = Sampler(2, 5, CPU, poison=True)
    before = built.counts.table.clone()
    built.sample(LOGITS[None], [request(slot=1)], 1)
    assert torch.equal(built.counts.table, before)
    built.counts.table.zero_()
    built.counts.forget([1])
    assert torch.equal(built.counts.table[1], before[1])
    assert not built.counts.table[0].any()


def test_biases():
    each = [request(), request(logit_bias={0: 5.5, 4: -100}), request(logit_bias=((3, 1),))]
    expected = LOGITS.repeat(3, 1)
    expected[1, 0], expected[1, 4], expected[2, 3] = 5.5, -98, 0
    torch.testing.assert_close(adjusted(LOGITS.repeat(3, 1), each), expected)


def test_nothing_to_adjust_copies_nothing():
    logits = LOGITS.repeat(2, 1)
    assert adjusted(logits, [request(), request(min_tokens=0, logit_bias={}, ends_at=[1])]) is logits


def test_tokens_that_end_a_request_are_banned_before_min_tokens():
    each = [request(output=[0] * n, min_tokens=2, ends_at=[1, 4, 77], temperature=0) for n in range(4)]
    got = adjusted(LOGITS.repeat(4, 1), each)
    assert got.isinf().tolist() == [[False, True, False, False, True]] * 2 + [[False] * 5] * 2
    assert Sampler(1, 5, CPU).sample(LOGITS.repeat(4, 1), each, 0)[0].tolist() == [2, 2, 1, 1]


def test_biases_and_bans_come_before_penalties():
    """A bias of 3 makes -1 a 2, which a penalty of 2 halves; a ban stays one, whatever favours the token."""
    options = {"repetition_penalty": 2.0, "logit_bias": {3: 3.0, 1: 100.0}, "min_tokens": 5}
    [row] = adjusted(LOGITS[None], [request(prompt=[3], output=[1], ends_at=[1], **options)]).tolist()
    assert row == [0.0, -math.inf, 1.0, 1.0, 2.0]


def test_a_row_of_which_nothing_is_left_is_not_good():
    one = request(min_tokens=1, ends_at=range(5), temperature=0)
    assert Sampler(1, 5, CPU).sample(LOGITS[None], [one], 0)[1].tolist() == [0]


def test_parameters_hash_and_compare_with_biases():
    first, second = SamplingParams(logit_bias={1: 2}), SamplingParams(logit_bias={1: 3})
    assert first != second
    assert {first, SamplingParams(logit_bias={1: 2}), second} == {first, second}
    assert dataclasses.replace(first, seed=1).logit_bias == {1: 2}
