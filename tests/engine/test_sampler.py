"""Sampling: the right tokens with the right probabilities, each row by itself."""

import pytest
import torch

from statewise.engine.request import SamplingParams
from statewise.engine.sampler import sample, top_logprobs, uniform

LOGITS = torch.tensor([0.0, 2.0, 1.0, -1.0, 2.0])
SPREAD = [(i + 0.5) / 2000 for i in range(2000)]


def shares(**options):
    """How often each token is chosen over an even spread of uniforms."""
    params = SamplingParams(**options)
    tokens = sample(LOGITS.expand(2000, 5), [params] * 2000, SPREAD)
    return torch.bincount(tokens, minlength=5) / 2000


def test_greedy_takes_the_first_of_equals():
    assert sample(LOGITS[None], [SamplingParams(temperature=0)], [0.99]).tolist() == [1]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_temperature(temperature):
    expected = (LOGITS / temperature).softmax(-1)
    torch.testing.assert_close(shares(temperature=temperature), expected, rtol=0, atol=1e-3)


def test_top_k_keeps_the_likeliest():
    got = shares(top_k=3)
    assert (got > 0).tolist() == [False, True, True, False, True]
    torch.testing.assert_close(got[[1, 2, 4]], LOGITS[[1, 2, 4]].softmax(-1), rtol=0, atol=1e-3)
    assert shares(top_k=1).tolist() == [0, 1, 0, 0, 0]


def test_top_p_keeps_the_smallest_set_that_reaches_it():
    probs = LOGITS.softmax(-1)
    assert (shares(top_p=float(probs[1]) * 1.5) > 0).tolist() == [False, True, False, False, True]
    assert (shares(top_p=1e-6) > 0).tolist() == [False, True, False, False, False]
    torch.testing.assert_close(shares(top_p=1.0), probs, rtol=0, atol=1e-3)


def test_min_p_is_relative_to_the_likeliest():
    assert (shares(min_p=0.3) > 0).tolist() == [False, True, True, False, True]
    assert (shares(min_p=1.0) > 0).tolist() == [False, True, False, False, True]


def test_top_p_counts_what_top_k_has_left():
    """Of two equal tokens half the mass each: 0.6 needs both, whatever the mass of those that top_k cut."""
    assert (shares(top_k=2, top_p=0.6) > 0).tolist() == [False, True, False, False, True]


def test_extreme_uniforms_stay_inside_the_kept_tokens():
    for u in (0.0, 1 - 1e-16):
        [token] = sample(LOGITS[None], [SamplingParams(top_k=2)], [u]).tolist()
        assert token in (1, 4)


def test_a_row_does_not_depend_on_its_batch():
    g = torch.Generator().manual_seed(0)
    logits = torch.randn(16, 50, generator=g)
    params = [SamplingParams(temperature=0.1 * i, top_k=i, top_p=1 - 0.03 * i, min_p=0.01 * i) for i in range(16)]
    uniforms = [uniform(i, 3) for i in range(16)]
    together = sample(logits, params, uniforms)
    apart = [int(sample(logits[i : i + 1], params[i : i + 1], uniforms[i : i + 1])) for i in range(16)]
    assert together.tolist() == apart


def test_uniforms_are_even_and_depend_on_seed_and_position():
    values = torch.tensor([uniform(seed, position) for seed in range(40) for position in range(50)])
    assert values.min() >= 0
    assert values.max() < 1
    assert values.mean() == pytest.approx(0.5, abs=0.02)
    assert len(values.unique()) == 2000
    assert uniform(7, 1) == uniform(7, 1)


def test_top_logprobs():
    [top] = top_logprobs(LOGITS[None], 3)
    assert top.token_ids[2] == 2
    assert top.logprobs[0] == pytest.approx(float(LOGITS.log_softmax(-1)[1]))
    assert len(top_logprobs(LOGITS[None], 99)[0].token_ids) == 5
