"""What lm-evaluation-harness asks of a model, in the engine's terms. Knows nothing of its classes.

Its model class is `statewise.integrations.lm_eval`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any, TypeVar

from statewise.engine.llm import LLM
from statewise.engine.request import SamplingParams
from statewise.errors import RequestError

MAX_TOKENS_NAMES = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")  # the first given wins
_OWN = ("max_tokens", "temperature", "stop", "logprobs", "prompt_logprobs", "prompt_logprobs_start")
N = TypeVar("N", int, float)
_PASSED_ON = tuple(item.name for item in fields(SamplingParams) if item.name not in _OWN)


def sampling_of(asked: Mapping[str, Any], max_tokens: int) -> SamplingParams:
    """What a task's `generation_kwargs` mean. max_tokens: if they name none.

    As in the harness, `do_sample: false` is greedy whatever the temperature, and without `do_sample` the temperature
    decides, 0 if there is none. Raises RequestError for what the engine does not have, rather than leave it out, and
    for a value that is none of its option's.
    """
    left = {name: value for name, value in asked.items() if value is not None}
    limits = [_number(name, left.pop(name), int) for name in MAX_TOKENS_NAMES if name in left]
    until = left.pop("until", ())
    if not isinstance(until, str | list | tuple):
        raise RequestError(f"until is {until!r}, expected a string or a list of strings")
    stop = tuple(text for text in ((until,) if isinstance(until, str) else until) if text)
    do_sample, temperature = left.pop("do_sample", None), left.pop("temperature", None)
    if not isinstance(do_sample, bool | None):
        raise RequestError(f"do_sample is {do_sample!r}, expected true or false")
    if do_sample is False or (do_sample is None and temperature is None):
        temperature = 0.0
    passed = {name: left.pop(name) for name in _PASSED_ON if name in left}
    if left:
        known = (*MAX_TOKENS_NAMES, "until", "do_sample", "temperature", *_PASSED_ON)
        raise RequestError(f"generation option {', '.join(left)} is not supported; supported are {', '.join(known)}")
    return SamplingParams(
        max_tokens=limits[0] if limits else max_tokens,
        temperature=1.0 if temperature is None else _number("temperature", temperature, float),
        stop=stop,
        **passed,
    )


def _number(name: str, value: Any, kind: type[N]) -> N:
    """Text that says a number is one, as in the harness; nothing is rounded. Raises RequestError."""
    try:
        number = kind(value)
        if isinstance(value, str) or number == value:
            return number
    except (TypeError, ValueError, OverflowError):
        pass
    raise RequestError(f"{name} is {value!r}, expected a {'whole ' if kind is int else ''}number")


def continuations(llm: LLM, pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> Iterator[tuple[int, float, bool]]:
    """How likely each continuation is after its context, as results come: index, log probability, is it greedy.

    pairs: token ids of contexts, at least one each, and of their continuations. "Greedy" is a continuation whose every
    token is the likeliest. An empty continuation has log probability 0. A context that is too long loses its first
    tokens.  Raises RequestError for a continuation that does not fit at all.
    """
    limit = llm.plan.max_context
    prompts: list[Sequence[int]] = []
    params: list[SamplingParams] = []
    for context, continuation in pairs:
        if not context:
            raise RequestError("a context is empty, expected at least one token")
        room = len(context) if limit is None else limit - 1 - len(continuation)  # one token is generated
        if room < 1:
            raise RequestError(f"a continuation has {len(continuation)} tokens, but there is room for {limit}")
        kept = context[-room:]
        prompts.append([*kept, *continuation])
        params.append(SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=1, prompt_logprobs_start=len(kept)))
    for piece in llm.stream(prompts, params):
        if piece.output is None:
            continue
        if piece.output.error is not None:
            raise piece.output.error
        count = len(pairs[piece.index][1])
        tokens = piece.output.prompt_token_ids
        scored = piece.output.prompt_logprobs[len(tokens) - count :]
        known = [one for one in scored if one is not None]
        assert len(known) == count
        wanted = tokens[len(tokens) - count :]
        is_greedy = all(one.top.token_ids[0] == token for one, token in zip(known, wanted, strict=True))
        yield piece.index, sum(one.logprob for one in known), is_greedy


def completions(
    llm: LLM, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams], warn: Callable[[str], None]
) -> Iterator[tuple[int, str]]:
    """Generated text as it ends: index, text. A prompt that leaves too little room loses its first tokens.

    warn: told of it.  Raises RequestError where the answer alone does not fit, or the prompt is empty.
    """
    limit = llm.plan.max_context
    cut: list[Sequence[int]] = []
    for prompt, wanted in zip(prompts, params, strict=True):
        room = len(prompt) if limit is None else limit - wanted.max_tokens
        if room < 1 and prompt:
            raise RequestError(
                f"max_tokens is {wanted.max_tokens}, but a request has room for {limit}, prompt included"
            )
        if len(prompt) > room:
            warn(f"a prompt of {len(prompt)} tokens is cut to its last {room}: {wanted.max_tokens} are for the answer")
        cut.append(prompt[-room:])
    for piece in llm.stream(cut, params):
        if piece.output is not None:
            if piece.output.error is not None:
                raise piece.output.error
            yield piece.index, piece.output.text


def windows(tokens: Sequence[int], prefix: int, most: int | None) -> list[tuple[list[int], list[int]]]:
    """Context and continuation of each window in which a document is scored: every token once.

    The first window's context is ``prefix``; each later one has as much context as fits.  most: tokens in a window,
    both together, at least 2; None: no limit.
    """
    if not tokens:
        return []
    known, step = list(tokens), len(tokens) if most is None else most - 1
    cut = [([prefix], known[:step])]
    for start in range(step, len(known), step):
        end = min(start + step, len(known))
        cut.append((known[end - step - 1 : start], known[start:end]))
    return cut
