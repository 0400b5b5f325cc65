"""The judgement of a comparison: where answers part, by how much, and whether rounding explains it."""

from dataclasses import replace

import pytest

from statewise import EngineConfig, RequestOutput
from statewise.demo.questions import word_problems
from statewise.engine.request import TopLogprobs
from statewise.eval.compare import drift, first_difference, run_mode


def output(tokens, tops, index=7):
    """An answer. tops: per position the two likeliest tokens and their log probabilities."""
    logprobs = tuple(TopLogprobs(ids, values) for ids, values in tops)
    return RequestOutput(index, (1,), tuple(tokens), "", "length", logprobs=logprobs)


SURE = ((5, 6), (-0.1, -4.0))
PLAIN = output([5, 3, 9], [SURE, ((3, 4), (-0.7, -0.7004)), ((9, 8), (-0.1, -3.0))])


def test_equal_answers():
    assert first_difference(PLAIN, PLAIN, 1e-3) is None
    assert drift(PLAIN, PLAIN) == 0


def test_a_near_tie_is_two_equals_in_the_other_order():
    other = output([5, 4, 1], [((5, 6), (-0.1001, -4.0)), ((4, 3), (-0.7, -0.7002)), SURE])
    found = first_difference(PLAIN, other, 1e-3)
    assert (found.question, found.position, found.plain_token, found.token) == (7, 1, 3, 4)
    assert found.gap == pytest.approx(4e-4)
    assert found.near_tie
    assert drift(PLAIN, other) == pytest.approx(1e-4)


@pytest.mark.parametrize(
    "tops",
    [
        ((4, 3), (-0.2, -1.7)),  # the other run is sure of what the plain run finds even
        ((4, 2), (-0.7, -0.7002)),  # another pair of tokens in front
    ],
)
def test_anything_else_is_an_error(tops):
    assert not first_difference(PLAIN, output([5, 4, 1], [SURE, tops, SURE]), 1e-3).near_tie


def test_a_wide_gap_is_an_error():
    other = output([6, 3, 9], [((6, 5), (-0.1, -4.0)), *[SURE] * 2])
    found = first_difference(PLAIN, other, 1e-3)
    assert not found.near_tie
    assert found.gap == pytest.approx(3.9)


def test_an_answer_that_ends_early_is_an_error():
    found = first_difference(PLAIN, output([5, 3], [SURE, ((3, 4), (-0.7, -0.7004))]), 1e-3)
    assert (found.position, found.plain_token, found.token, found.gap, found.near_tie) == (2, 9, None, None, False)


def test_three_equals_in_front_are_a_near_tie():
    plain = output([3], [((3, 4, 5), (-1.1, -1.1, -1.1002))])
    other = output([5], [((5, 4, 3), (-1.1, -1.1, -1.1001))])
    found = first_difference(plain, other, 1e-3)
    assert found.near_tie
    assert found.gap == pytest.approx(2e-4)


def test_modes_are_judged_against_the_plain_run(demo_folder):
    prompts = [question.prompt for question in word_problems(5)]
    plain = run_mode(demo_folder, EngineConfig(checkpoint_interval=1, max_batch=5), prompts, 20)
    assert (plain.name, plain.identical, plain.errors, plain.served, plain.largest_drift) == ("plain", 5, 0, 5, 0)
    other = run_mode(demo_folder, EngineConfig(checkpoint_interval=4, max_batch=2), prompts, 20, plain)
    assert (other.name, other.identical, other.errors) == ("checkpointed", 5, 0)
    assert 0 < other.largest_drift < 1e-4
    assert other.counters.state_writes == other.predicted_state_writes
    assert plain.tokens == other.tokens
    assert plain.as_predicted
    assert not replace(other, predicted_state_writes=0).as_predicted
