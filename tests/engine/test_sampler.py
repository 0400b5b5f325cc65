"""Sampling: the right tokens with the right probabilities, each row by itself."""

import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from statewise.engine import sampler
from statewise.engine.sampler import Sampler, as_top, choose, top_logprobs
from statewise.engine.sampling_batch import make_sampling_batch, random_numbers, uniforms
from tests.engine.rows import CPU, LOGITS, request

SPREAD = [(i + 0.5) / 2000 for i in range(2000)]


def drawn(logits, requests, numbers):
    """Tokens for given random numbers."""
    return choose(logits, make_sampling_batch(requests, numbers, logits.shape[-1], CPU).draws)[0]


def shares(**options):
    """How often each token is chosen over an even spread of random numbers."""
    tokens = drawn(LOGITS.expand(2000, 5), [request(**options)] * 2000, SPREAD)
    return torch.bincount(tokens, minlength=5) / 2000


def test_greedy_takes_the_first_of_equals():
    assert drawn(LOGITS[None], [request(temperature=0)], [0.99]).tolist() == [1]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_temperature(temperature):
    expected = (LOGITS / temperature).softmax(-1)
    torch.testing.assert_close(shares(temperature=temperature), expected, rtol=0, atol=1e-3)


def test_top_k_keeps_the_likeliest():
    got = shares(top_k=3)
    assert (got > 0).tolist() == [False, True, True, False, True]
    torch.testing.assert_close(got[[1, 2, 4]], LOGITS[[1, 2, 4]].softmax(-1), rtol=0, atol=1e-3)
    assert shares(top_k=1).tolist() == [0, 1, 0, 0, 0]


@pytest.mark.parametrize("top_k", [5, 6, 2**70])
def test_a_cut_that_cuts_nothing_changes_no_token(top_k):
    expected = drawn(LOGITS.expand(2000, 5), [request()] * 2000, SPREAD)
    assert drawn(LOGITS.expand(2000, 5), [request(top_k=top_k)] * 2000, SPREAD).tolist() == expected.tolist()


def test_top_p_keeps_the_smallest_set_that_reaches_it():
    probs = LOGITS.softmax(-1)
    assert (shares(top_p=float(probs[1]) * 1.5) > 0).tolist() == [False, True, False, False, True]
    assert (shares(top_p=1e-6) > 0).tolist() == [False, True, False, False, False]
    torch.testing.assert_close(shares(top_p=1.0), probs, rtol=0, atol=1e-3)


def test_min_p_is_relative_to_the_likeliest():
    assert (shares(min_p=0.3) > 0).tolist() == [False, True, True, False, True]
    assert (shares(min_p=1.0) > 0).tolist() == [False, True, False, False, True]


def test_top_p_counts_what_top_k_has_left():
    """Two equal tokens are left with half the mass each, 0.39 of all: half needs one of them, more than half both."""
    for top_p, both in ((0.45, False), (0.5, False), (0.501, True)):
        assert (shares(top_k=2, top_p=top_p) > 0).tolist() == [False, True, False, False, both]


def test_top_k_counts_what_min_p_has_left_and_top_p_too():
    """min_p leaves three tokens of 0.42, 0.42 and 0.16: top_p 0.8 needs two; of all five it would need three."""
    assert (shares(min_p=0.3, top_p=0.8) > 0).tolist() == [False, True, False, False, True]
    assert (shares(top_p=0.8) > 0).tolist() == [False, True, True, False, True]


def test_extreme_numbers_stay_inside_the_kept_tokens():
    for number in (0.0, 1 - 2.0**-53):
        for options in ({"top_k": 2}, {"min_p": 0.9}, {"temperature": 0.01}):
            [token] = drawn(LOGITS[None], [request(**options)], [number]).tolist()
            assert token in (1, 4)


@pytest.mark.parametrize("temperature", [1e-5, 1.0, 1e300])
def test_logits_of_any_size_and_impossible_tokens(temperature):
    logits = torch.tensor([[-torch.inf, 3e38, -3e38, -torch.inf], [-1e30, -torch.inf, -1e30, -1e30]])
    for number in (0.0, 0.5, 1 - 2.0**-53):
        first, second = drawn(logits, [request(temperature=temperature)] * 2, [number] * 2).tolist()
        assert first in (1, 2)
        assert second in (0, 2, 3)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.data())
def test_against_the_definition_in_floating_point(seed, data):
    """A draw is the first token, in the order of the vocabulary, at which the kept probabilities pass the number."""
    g = torch.Generator().manual_seed(seed)
    logits = torch.randn(1, 40, generator=g, dtype=torch.float64) * 3
    top_k, top_p = data.draw(st.integers(0, 45)), data.draw(st.floats(0.01, 1))
    min_p, temperature = data.draw(st.floats(0, 0.5)), data.draw(st.floats(0.2, 5))
    number = data.draw(st.floats(0, 1, exclude_max=True))
    probs = (logits[0] / temperature).softmax(-1)
    kept = [t for t in sorted(range(40), key=lambda t: -probs[t]) if probs[t] >= min_p * probs.max()][: top_k or 40]
    mass, chosen = sum(float(probs[t]) for t in kept), []
    for token in kept:
        if sum(float(probs[t]) for t in chosen) < top_p * mass:
            chosen.append(token)
    total, passed = sum(float(probs[t]) for t in chosen), 0.0
    options = {"top_k": top_k, "top_p": top_p, "min_p": min_p, "temperature": temperature}
    [token] = drawn(logits, [request(**options)], [number]).tolist()
    assert token in chosen
    passed = sum(float(probs[t]) for t in sorted(chosen) if t < token) / total
    assert passed - 1e-9 <= number <= passed + float(probs[token]) / total + 1e-9


def mixed(count=24, vocab_size=50, seed=0):
    """Rows of every kind: logits and requests, each in its own slot, with something in its output."""
    g = torch.Generator().manual_seed(seed)
    logits = torch.randn(count, vocab_size, generator=g) * 2
    words = torch.randint(0, vocab_size, (count, 12), generator=g).tolist()
    requests = [
        request(
            slot=count - 1 - i,
            prompt=words[i][:6],
            output=words[i][6:],
            seed=i * 7919 - 50,
            ends_at=(words[i][0],),
            temperature=0 if i % 3 == 0 else 0.3 * i,
            top_k=i if i % 4 == 1 else 0,
            top_p=0.6 if i % 4 == 2 else 1,
            min_p=0.02 * (i % 5),
            repetition_penalty=1 + 0.1 * (i % 2),
            presence_penalty=0.5 * (i % 7 == 2),
            frequency_penalty=-0.5 * (i % 7 == 3),
            logit_bias={words[i][1]: 2.0, words[i][2]: -3.0} if i % 5 == 0 else None,
            min_tokens=9 if i % 4 == 0 else 0,
        )
        for i in range(count)
    ]
    return logits, requests


@pytest.mark.parametrize("at_once", [1, 120, 2**23])
@pytest.mark.parametrize("poison", [False, True])
def test_a_row_does_not_depend_on_its_batch_its_place_or_its_slot(at_once, poison, monkeypatch):
    monkeypatch.setattr(sampler, "LOGITS_AT_ONCE", at_once)
    logits, requests = mixed()
    given_logits = logits.clone()
    together = Sampler(24, 50, CPU, poison).sample(logits, requests, 24)
    assert torch.equal(logits, given_logits)
    assert together[1].all()
    order = torch.randperm(24, generator=torch.Generator().manual_seed(1)).tolist()
    shuffled = Sampler(24, 50, CPU, poison).sample(logits[order], [requests[i] for i in order], 24)
    assert shuffled[0].tolist() == [int(together[0, i]) for i in order]
    for i, one in enumerate(requests):
        one.slot = 0
        assert Sampler(1, 50, CPU, poison).sample(logits[i : i + 1], [one], 1)[0].tolist() == [int(together[0, i])]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_a_row_does_not_depend_on_its_batch_and_nothing_waits():
    logits, requests = mixed(count=60, vocab_size=131072)
    logits, device = logits.cuda(), torch.device("cuda")
    crowd, single = Sampler(60, 131072, device), Sampler(60, 131072, device)
    crowd.sample(logits, requests, 60)  # allocates, compiles and pins what later calls have
    torch.cuda.synchronize()
    with warnings.catch_warnings(action="ignore"):  # it warns that it does not see every wait
        torch.cuda.set_sync_debug_mode("error")
    try:
        together = crowd.sample(logits, requests, 60)
        apart = [single.sample(logits[i : i + 1], [one], 1) for i, one in enumerate(requests)]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert together.tolist() == torch.cat(apart, -1).tolist()
    on_cpu = Sampler(60, 131072, CPU).sample(logits.cpu(), requests, 60)
    assert together.tolist() == on_cpu.tolist()


def test_rows_that_are_not_numbers_spoil_no_other():
    logits, requests = mixed()
    expected = Sampler(24, 50, CPU).sample(logits, requests, 24)
    bad = logits.clone()
    bad[1::4] = torch.nan
    bad[2::4, 7] = torch.inf
    bad[3::4] = -torch.inf
    got = Sampler(24, 50, CPU).sample(bad, requests, 24)
    assert got[1].tolist() == [1, 0, 0, 0] * 6
    assert got[0, ::4].tolist() == expected[0, ::4].tolist()
    assert got[0].min() >= 0
    assert got[0].max() < 50


def test_only_rows_that_are_cut_are_sorted(monkeypatch):
    sorts, argsort = [], torch.Tensor.argsort

    def watched(tensor, *args, **options):
        sorts.append(tensor.shape[0])
        return argsort(tensor, *args, **options)

    monkeypatch.setattr(torch.Tensor, "argsort", watched)
    greedy, free, cut = request(temperature=0, top_p=0.5), request(), request(top_p=0.5)
    Sampler(1, 5, CPU).sample(LOGITS.expand(3, 5), [greedy, free, greedy], 0)
    assert sorts == []
    Sampler(1, 5, CPU).sample(LOGITS.expand(4, 5), [greedy, cut, free, cut], 0)
    assert sorts == [2]


def test_random_numbers_are_even_and_depend_on_all_bits_of_seed_and_position():
    seeds, positions = torch.arange(-20, 20).repeat_interleave(50), torch.arange(50).repeat(40)
    values = uniforms(seeds, positions)
    assert values.dtype == torch.float64
    assert values.min() >= 0
    assert values.max() < 1
    assert len(values.unique()) == 2000
    assert values.mean() == pytest.approx(0.5, abs=0.02)
    torch.testing.assert_close(values.sort().values, (torch.arange(2000).double() + 0.5) / 2000, rtol=0, atol=0.04)
    some = torch.tensor([0, 1, 2**32, -1, -(2**63), 2**63 - 1])
    assert len(uniforms(some, torch.zeros_like(some)).unique()) == 6
    assert uniforms(some, some.clamp(0, 9)).tolist() == [
        float(uniforms(one[None], one.clamp(0, 9)[None])) for one in some
    ]


def test_random_numbers_are_philox():
    """The words of Random123's known answers would do; here the four words of one counter, written out once more."""
    key, counter = [0x9ABCDEF0, 0x12345678], [41, 0, 0, 1]
    for _ in range(10):
        high0, low0 = divmod(counter[0] * 0xD2511F53, 2**32)
        high1, low1 = divmod(counter[2] * 0xCD9E8D57, 2**32)
        counter = [high1 ^ counter[1] ^ key[0], low1, high0 ^ counter[3] ^ key[1], low0]
        key = [(key[0] + 0x9E3779B9) % 2**32, (key[1] + 0xBB67AE85) % 2**32]
    expected = (counter[0] * 2**21 + counter[1] // 2**11) / 2**53
    assert float(uniforms(torch.tensor([0x123456789ABCDEF0]), torch.tensor([41]))) == expected


def test_a_seed_takes_a_number_for_each_output_token():
    requests = [request(seed=5, output=[1] * n, temperature=t) for n, t in ((0, 1.0), (1, 0), (2, 1.0))]
    expected = uniforms(torch.tensor([5, 5, 5]), torch.arange(3)).tolist()
    assert random_numbers(requests) == expected
    assert random_numbers(requests[1:2]) == [0.0]


def test_top_logprobs():
    [top] = as_top(*top_logprobs(LOGITS[None], 3))
    assert top.token_ids[2] == 2
    assert top.logprobs[0] == pytest.approx(float(LOGITS.log_softmax(-1)[1]))
    assert top_logprobs(LOGITS[None], 99)[1].shape == (1, 5)
