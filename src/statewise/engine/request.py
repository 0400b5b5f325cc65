"""A request and what it asks for. No tensors: the scheduler and the runner both read it, each writes its own part."""

import enum
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from statewise.config import is_int, option
from statewise.engine.text import TextStream
from statewise.errors import RequestError

# The largest bias of a logit, up or down: OpenAI's range.
MOST_BIAS = 100.0
# Within float32, with room for the logits.
_REPETITION = (1e-30, 1e30)


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How the tokens of one request are chosen and when it ends. Names, defaults and ranges as in vLLM.

    Raises RequestError for a value out of range.
    """

    max_tokens: int = option(16, "most tokens to generate; fewer where the context ends")
    min_tokens: int = option(0, "tokens to generate before an end of text, a stop token or a stop string may come")
    temperature: float = option(1.0, "0 is greedy")
    top_k: int = option(0, "keep the k likeliest tokens; 0 keeps all")
    top_p: float = option(1.0, "keep the likeliest tokens that together reach this probability")
    min_p: float = option(0.0, "keep tokens at least this likely, relative to the likeliest")
    repetition_penalty: float = option(
        1.0, "above 1: tokens of the prompt and of the output become less likely; below 1: more likely"
    )
    presence_penalty: float = option(0.0, "taken off the logit of each token that is in the output, -2 to 2")
    frequency_penalty: float = option(0.0, "the same for each time that it is in the output, -2 to 2")
    logit_bias: Mapping[int, float] | None = option(None, "added to the logits of tokens, -100 to 100", hashed=False)
    seed: int | None = option(None, "the same seed draws the same, whatever runs beside it; default: a fresh one")
    stop: tuple[str, ...] = option((), "end before the first of these strings; it is not part of the text")
    stop_token_ids: tuple[int, ...] = option((), "end at one of these tokens, besides the model's own end of text")
    ignore_eos: bool = option(False, "go on past the model's end of text")
    logprobs: int = option(
        0,
        "report so many of the likeliest tokens at each position, and the token itself, with log probabilities",
    )
    prompt_logprobs: int | None = option(
        None, "report the log probability of each prompt token, and so many of the likeliest tokens in its place"
    )
    prompt_logprobs_start: int = option(0, "the first prompt token to report it for")

    def __post_init__(self) -> None:
        for name in ("stop", "stop_token_ids"):
            object.__setattr__(self, name, _listed(name, getattr(self, name)))
        if not isinstance(self.ignore_eos, bool):
            raise RequestError(f"ignore_eos is {self.ignore_eos!r}, expected True or False")
        _expect_number("max_tokens", self.max_tokens, int, 1, math.inf, "at least 1")
        _expect_number("min_tokens", self.min_tokens, int, 0, self.max_tokens, f"0 to max_tokens = {self.max_tokens}")
        _expect_number("temperature", self.temperature, float, 0, sys.float_info.max, "0 (greedy) or more")
        _expect_number("top_k", self.top_k, int, 0, math.inf, "0 (all) or more")
        _expect_number("top_p", self.top_p, float, sys.float_info.min, 1, "above 0, at most 1")
        _expect_number("min_p", self.min_p, float, 0, 1, "0 to 1")
        _expect_number("logprobs", self.logprobs, int, 0, math.inf, "0 or more")
        _expect_number("prompt_logprobs_start", self.prompt_logprobs_start, int, 0, math.inf, "0 or more")
        if self.prompt_logprobs is not None:
            _expect_number("prompt_logprobs", self.prompt_logprobs, int, 0, math.inf, "0 or more")
        _expect_number("repetition_penalty", self.repetition_penalty, float, *_REPETITION, "above 0, 1e-30 to 1e30")
        for name in ("presence_penalty", "frequency_penalty"):
            _expect_number(name, getattr(self, name), float, -2, 2, "-2 to 2")
        if self.logit_bias is not None:
            object.__setattr__(self, "logit_bias", _biases(self.logit_bias))
        if self.seed is not None:
            _expect_number("seed", self.seed, int, -(2**63), 2**63 - 1, "a whole number of 64 bits")
        for token in self.stop_token_ids:
            _expect_number("stop_token_ids", token, int, 0, math.inf, "token ids")
        if not all(isinstance(text, str) and text for text in self.stop):
            raise RequestError(f"stop is {self.stop!r}, expected strings that are not empty")

    @property
    def has_penalties(self) -> bool:
        """Whether its logits depend on the tokens so far."""
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1, 0, 0)


def _listed(name: str, given: object) -> tuple[object, ...]:
    """One or several, or None for none."""
    if isinstance(given, str | int):
        return (given,)
    if given is not None and not isinstance(given, Iterable):
        raise RequestError(f"{name} is {given!r:.60}, expected one or several")
    return tuple(given or ())


def _biases(given: object) -> dict[int, float]:
    """A checked copy of a mapping of token ids to biases, or of pairs of them."""
    try:
        biases = dict(cast("Iterable[tuple[int, float]]", given))
    except (TypeError, ValueError):
        raise RequestError(f"logit_bias is {given!r:.60}, expected a mapping of token ids to biases") from None
    for token, bias in biases.items():
        _expect_number("a token of logit_bias", token, int, 0, math.inf, "a token id")
        name = f"the bias of token {token}"
        _expect_number(name, bias, float, -MOST_BIAS, MOST_BIAS, f"{-MOST_BIAS:g} to {MOST_BIAS:g}")
    return biases


def _expect_number(name: str, value: object, kind: type, least: float, most: float, expected: str) -> None:
    """Raise RequestError unless ``value`` is a number of ``kind`` (a whole number will do for float) in range."""
    kinds = (int, float) if kind is float else (int,)
    if not isinstance(value, kinds) or isinstance(value, bool) or not least <= value <= most:
        raise RequestError(f"{name} is {value!r}, expected {expected}")


def token_ids(given: object, name: str = "the prompt", expected: str = "a sequence of token ids") -> tuple[int, ...]:
    """What is given, as a tuple. Raises RequestError unless it is a sequence of whole numbers."""
    if not isinstance(given, Sequence) or not all(map(is_int, given)):
        raise RequestError(f"{name} is {given!r:.60}, expected {expected}")
    return tuple(given)


def expect_possible(prompt: Sequence[int], params: object, vocab_size: int, limit: int | None) -> None:
    """Raise RequestError for a prompt that can never run. limit: tokens that a request has room for; None: any."""
    if not isinstance(params, SamplingParams):
        raise RequestError(f"params is {params!r:.60}, expected SamplingParams")
    if not prompt:
        raise RequestError("the prompt is empty, expected at least one token")
    if limit is not None and len(prompt) >= limit:
        raise RequestError(
            f"the prompt has {len(prompt)} tokens, but a request has room for {limit}, one of them generated"
        )
    if not 0 <= min(prompt) <= max(prompt) < vocab_size:
        raise RequestError(f"the prompt has a token outside the vocabulary of {vocab_size}")
    for token in params.logit_bias or ():
        if token >= vocab_size:
            raise RequestError(f"logit_bias has token {token}, outside the vocabulary of {vocab_size}")


class Phase(enum.Enum):
    """Where a request stands. A row is a decode row because its request is in DECODE, not because it is short."""

    WAITING = enum.auto()  # owns neither slot nor block; also after a preemption
    PREFILL = enum.auto()  # owns a slot; some of its known tokens have not run
    DECODE = enum.auto()  # owns a slot; all but its newest token have run
    FINISHED = enum.auto()  # owns nothing, unless it is kept


@dataclass(frozen=True)
class TopLogprobs:
    """The likeliest tokens at one position, likeliest first, and their log probabilities.

    Of an output token: and behind them that token, if it is none of them.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]

    def first(self, count: int) -> "TopLogprobs":
        """The ``count`` likeliest of them."""
        return TopLogprobs(self.token_ids[:count], self.logprobs[:count])

    def including(self, token: int, logprob: float) -> "TopLogprobs":
        """With this one behind them, unless it is among them."""
        if token in self.token_ids:
            return self
        return TopLogprobs((*self.token_ids, token), (*self.logprobs, logprob))


@dataclass(frozen=True)
class PromptLogprob:
    """The log probability of a prompt token after those before it, and the likeliest tokens in its place."""

    logprob: float
    top: TopLogprobs


@dataclass(eq=False)
class Request:
    """One prompt on its way. ``slot``, ``blocks``, ``phase``, ``computed`` and ``sampled`` are the scheduler's."""

    index: int
    prompt: tuple[int, ...]
    params: SamplingParams
    seed: int  # 64 bits
    text: TextStream
    ends_at: frozenset[int] = frozenset()  # tokens that end it: the model's end of text and its own stop tokens
    most_output: int = sys.maxsize  # tokens after which it ends in any case
    sampled: int = 0  # output tokens chosen; the last of them may still be on the device
    output: list[int] = field(default_factory=list)  # those that have arrived
    logprobs: list[TopLogprobs] = field(default_factory=list)
    phase: Phase = Phase.WAITING
    computed: int = 0  # tokens whose effect is in the slot
    slot: int | None = None
    blocks: list[int] = field(default_factory=list)
    kept: Phase | None = None  # swapped out: its caches are on the host, and it goes on in this phase; the scheduler's
    decode_runs: list[int] = field(default_factory=list)  # decode steps since each admission that began with a prefill
    keep: bool = False  # once it has ended, its caches stay for a request that goes on from there
    source: "Request | None" = None  # the ended request from whose caches it goes on, until it is admitted
    behind: int = 0  # decode steps of its source since that one's prefill, until its own first chunk has run
    finish_reason: str | None = None  # "stop", "length", "abort" or "error"
    error: RequestError | None = None
    prompt_logprobs: list[PromptLogprob | None] = field(default_factory=list)  # of the first tokens; the runner's

    @property
    def known(self) -> int:
        """Tokens of the prompt and of the output so far, chosen ones that have not arrived among them."""
        return len(self.prompt) + self.sampled

    @property
    def arrived(self) -> int:
        """Tokens of the prompt and of the output that the host knows."""
        return len(self.prompt) + len(self.output)

    @property
    def is_full(self) -> bool:
        """Whether no token is to be added: it ends when the last one arrives."""
        return self.sampled >= self.most_output

    def tokens(self, start: int, count: int) -> list[int]:
        """The tokens at positions start to start + count, which have arrived."""
        cut = len(self.prompt)
        head = self.prompt[start : start + count]
        return [*head, *self.output[max(0, start - cut) : max(0, start + count - cut)]]

    def __repr__(self) -> str:
        return f"request {self.index}"
