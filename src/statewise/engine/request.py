"""A request and what it asks for. No tensors: the scheduler and the runner both read it, each writes its own part."""

import enum
import math
from dataclasses import dataclass, field

from statewise.config import option
from statewise.engine.text import TextStream
from statewise.errors import RequestError


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How the tokens of one request are chosen and when it ends. Names and defaults as in vLLM.

    Raises RequestError for a value out of range.
    """

    max_tokens: int = option(16, "most tokens to generate; fewer where the context ends")
    temperature: float = option(1.0, "0 is greedy")
    top_k: int = option(0, "keep the k likeliest tokens; 0 keeps all")
    top_p: float = option(1.0, "keep the likeliest tokens that together reach this probability")
    min_p: float = option(0.0, "keep tokens at least this likely, relative to the likeliest")
    seed: int | None = option(
        None, "the same seed gives the same tokens, whatever runs beside it; default: a fresh one"
    )
    stop: tuple[str, ...] = option((), "end before the first of these strings; it is not part of the text")
    stop_token_ids: tuple[int, ...] = option((), "end at one of these tokens, besides the model's own end of text")
    ignore_eos: bool = option(False, "go on past the model's end of text")
    logprobs: int = option(
        0, "how many of the likeliest tokens to report at each position, with their log probabilities"
    )

    def __post_init__(self) -> None:
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        object.__setattr__(self, "stop", tuple(self.stop))
        _expect("max_tokens", self.max_tokens, self.max_tokens >= 1, "at least 1")
        _expect("temperature", self.temperature, 0 <= self.temperature < math.inf, "0 (greedy) or more")
        _expect("top_k", self.top_k, self.top_k >= 0, "0 (all) or more")
        _expect("top_p", self.top_p, 0 < self.top_p <= 1, "above 0, at most 1")
        _expect("min_p", self.min_p, 0 <= self.min_p <= 1, "0 to 1")
        _expect("logprobs", self.logprobs, self.logprobs >= 0, "0 or more")
        _expect("stop", self.stop, all(self.stop), "strings that are not empty")


def _expect(name: str, value: object, good: bool, expected: str) -> None:
    if not good:
        raise RequestError(f"{name} is {value!r}, expected {expected}")


class Phase(enum.Enum):
    """Where a request stands. A row is a decode row because its request is in DECODE, not because it is short."""

    WAITING = enum.auto()  # owns nothing; also after a preemption
    PREFILL = enum.auto()  # owns a slot; some of its known tokens have not run
    DECODE = enum.auto()  # owns a slot; all but its newest token have run
    FINISHED = enum.auto()  # owns nothing


@dataclass(frozen=True)
class TopLogprobs:
    """The likeliest tokens at one position, likeliest first, and their log probabilities."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]

    def first(self, count: int) -> "TopLogprobs":
        """The ``count`` likeliest of them."""
        return TopLogprobs(self.token_ids[:count], self.logprobs[:count])


@dataclass(eq=False)
class Request:
    """One prompt on its way. ``slot``, ``blocks``, ``phase`` and ``computed`` are the scheduler's."""

    index: int
    prompt: tuple[int, ...]
    params: SamplingParams
    seed: int
    text: TextStream
    output: list[int] = field(default_factory=list)
    logprobs: list[TopLogprobs] = field(default_factory=list)
    phase: Phase = Phase.WAITING
    computed: int = 0  # tokens whose effect is in the slot
    slot: int | None = None
    blocks: list[int] = field(default_factory=list)
    decode_runs: list[int] = field(default_factory=list)  # decode steps since each admission
    finish_reason: str | None = None  # "stop", "length", "abort" or "error"
    error: RequestError | None = None

    @property
    def known(self) -> int:
        """Tokens of the prompt and of the output so far."""
        return len(self.prompt) + len(self.output)

    @property
    def preemptions(self) -> int:
        """How often its state was thrown away, to be computed again."""
        return max(0, len(self.decode_runs) - (self.phase is not Phase.WAITING))

    def tokens(self, start: int, count: int) -> list[int]:
        """The known tokens at positions start to start + count."""
        cut = len(self.prompt)
        head = self.prompt[start : start + count]
        return [*head, *self.output[max(0, start - cut) : max(0, start + count - cut)]]

    def __repr__(self) -> str:
        return f"request {self.index}"
