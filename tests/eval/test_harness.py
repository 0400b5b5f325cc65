"""What lm-evaluation-harness asks for, without it: log-likelihoods, windows, generation options."""

import importlib.util

import pytest

from statewise.engine.llm import LLM
from statewise.engine.request import SamplingParams
from statewise.errors import RequestError
from statewise.eval.harness import completions, continuations, sampling_of, windows

DOUBLE = {"dtype": "float64", "state_dtype": "float64"}


@pytest.fixture(scope="module")
def llm(demo_folder):
    return LLM(demo_folder, quiet=True, max_context=60, max_batched_tokens=32, max_batch=4, **DOUBLE)


@pytest.fixture(scope="module")
def logprobs(llm):
    """Log probability of each token of a text after those before it, one request a token, by decoding."""

    def of(tokens, start):
        total, greedy = 0.0, True
        for at in range(start, len(tokens)):
            [output] = llm.generate([tokens[:at]], SamplingParams(max_tokens=1, temperature=0, logprobs=264))
            [top] = output.logprobs
            total += top.logprobs[top.token_ids.index(tokens[at])]
            greedy &= top.token_ids[0] == tokens[at]
        return total, greedy

    return of


def test_continuations_are_as_likely_as_decoding_says(llm, logprobs):
    [greedy] = llm.generate([[5, 6, 7]], SamplingParams(max_tokens=6, temperature=0, ignore_eos=True))
    pairs = [
        ([5, 6, 7], list(greedy.token_ids)),
        ([5, 6, 7], [*greedy.token_ids[:3], (greedy.token_ids[3] + 1) % 250]),
        ([1], [2]),
        (list(range(30)), list(range(40, 60))),
        ([9, 9], []),
    ]
    found = {index: rest for index, *rest in continuations(llm, pairs)}
    for index, (context, continuation) in enumerate(pairs):
        expected = logprobs([*context, *continuation], len(context))
        assert found[index] == [pytest.approx(expected[0], abs=1e-8), expected[1]]
    assert [found[i][1] for i in range(5)] == [True, False, found[2][1], False, True]


def test_a_context_that_is_too_long_loses_its_beginning(llm):
    long = [i % 250 for i in range(100)]
    found = {index: rest for index, *rest in continuations(llm, [(long, [1, 2, 3]), (long[-56:], [1, 2, 3])])}
    assert found[0] == [pytest.approx(found[1][0], abs=1e-12), found[1][1]]  # rows of one batch may round apart
    with pytest.raises(RequestError, match="a continuation has 59 tokens, but there is room for 60"):
        list(continuations(llm, [([1], long[:59])]))
    with pytest.raises(RequestError, match="a context is empty"):
        list(continuations(llm, [([], [1])]))


def test_completions_and_prompts_that_are_too_long(llm):
    told = []
    params = SamplingParams(max_tokens=10, temperature=0, ignore_eos=True)
    long = [i % 250 for i in range(90)]
    found = dict(completions(llm, [long, [1, 2], long[-50:]], [params] * 3, told.append))
    assert found[0] == found[2]
    assert [len(told), "90 tokens is cut to its last 50" in told[0]] == [1, True]
    with pytest.raises(RequestError, match="max_tokens is 60, but a request has room for 60"):
        list(completions(llm, [[1]], [SamplingParams(max_tokens=60)], told.append))
    with pytest.raises(RequestError, match="the prompt is empty"):
        list(completions(llm, [[]], [params], told.append))


@pytest.mark.parametrize("most", [2, 3, 5, 11, 12, 100, None])
@pytest.mark.parametrize("count", [0, 1, 2, 10, 11, 23])
def test_windows_score_every_token_once(most, count):
    tokens = list(range(100, 100 + count))
    cut = windows(tokens, 7, most)
    assert [token for _, continuation in cut for token in continuation] == tokens
    whole = [7, *tokens]
    for context, continuation in cut:
        end = whole.index(continuation[-1]) + 1
        assert context
        assert [*context, *continuation] == whole[end - len(context) - len(continuation) : end]
        assert most is None or len(context) + len(continuation) <= most
    if most is not None:  # all but the first are full
        assert all(len(context) + len(continuation) == most for context, continuation in cut[1:])


@pytest.mark.skipif(not importlib.util.find_spec("lm_eval"), reason="lm_eval is not installed: statewise[eval]")
@pytest.mark.filterwarnings("ignore")
def test_windows_are_those_of_lm_eval():
    from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

    for most in (2, 3, 7, 50):
        for count in (0, 1, 6, 7, 8, 30):
            theirs = get_rolling_token_windows(list(range(count)), 99, most - 1, 1)
            assert windows(list(range(count)), 99, most) == [make_disjoint_window(pair) for pair in theirs]


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({}, {"temperature": 0, "max_tokens": 256}),
        ({"until": ["a", ""], "do_sample": False, "temperature": 0.9}, {"temperature": 0, "stop": ("a",)}),
        ({"until": "\n\n", "max_gen_toks": 8, "max_tokens": 9}, {"stop": ("\n\n",), "max_tokens": 8, "temperature": 0}),
        ({"temperature": 0.5, "max_new_tokens": "7"}, {"temperature": 0.5, "max_tokens": 7}),
        ({"do_sample": True}, {"temperature": 1.0}),
        ({"do_sample": True, "temperature": 0.2, "top_p": 0.9, "top_k": None}, {"temperature": 0.2, "top_p": 0.9}),
        ({"until": None, "seed": 3}, {"seed": 3, "temperature": 0}),
    ],
)
def test_generation_options(asked, expected):
    params = sampling_of(asked, 256)
    assert params == SamplingParams(**({"max_tokens": 256} | expected))


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"max_gen_toks": "x"}, "max_gen_toks is 'x', expected a whole number"),
        ({"max_tokens": 1.5}, r"max_tokens is 1\.5, expected a whole number"),
        ({"max_tokens": float("inf")}, "max_tokens is inf, expected a whole number"),
        ({"max_tokens": [3]}, r"max_tokens is \[3\], expected a whole number"),
        ({"temperature": "warm"}, "temperature is 'warm', expected a number"),
        ({"do_sample": 0}, "do_sample is 0, expected true or false"),
        ({"do_sample": "false"}, "do_sample is 'false', expected true or false"),
        ({"until": 5}, "until is 5, expected a string or a list of strings"),
    ],
)
def test_generation_options_with_values_that_are_none(asked, message):
    with pytest.raises(RequestError, match=message):
        sampling_of(asked, 256)


def test_generation_options_that_are_not_there():
    with pytest.raises(RequestError, match="generation option num_beams, foo is not supported; supported are max_gen"):
        sampling_of({"num_beams": 4, "foo": 1}, 256)
