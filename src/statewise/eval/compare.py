"""The plain step against checkpointed decoding on the same prompts: are the answers the same, and what moved?

Nothing is printed here; `statewise.cli.compare` renders it.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from statewise.cache.window import predicted_writes
from statewise.config import EngineConfig
from statewise.engine.counters import Counters
from statewise.engine.llm import LLM, RequestOutput
from statewise.engine.request import SamplingParams, TopLogprobs
from statewise.eval.run import special_stops

# Two logits closer than this may change places by rounding alone. A bound on the error of a logit of a few units after
# a deep model, not on the rounding of one number: some thousand roundings of float32, some ten of a 16-bit type.
NEAR_TIE = {"float64": 1e-9, "float32": 1e-3, "float16": 0.05, "bfloat16": 0.25}


LOGPROBS = 5  # more than two equals may be in front


@dataclass(frozen=True)
class Difference:
    """Where an answer first leaves the plain one.

    gap: between the logits of the two tokens in the plain run; None where one answer ends and the other goes on, or
    where the other token is not among the plain run's likeliest. A token is None where its answer has ended.
    """

    question: int
    position: int
    plain_token: int | None
    token: int | None
    gap: float | None
    near_tie: bool


@dataclass(frozen=True)
class Mode:
    """One run over all questions."""

    name: str
    checkpoint_interval: int
    outputs: list[RequestOutput]
    counters: Counters
    predicted_state_writes: int
    seconds: float
    differences: list[Difference]
    largest_drift: float  # of the chosen token's log probability, over positions that follow the same tokens as plain

    @property
    def tokens(self) -> int:
        """Tokens generated."""
        return sum(len(output.token_ids) for output in self.outputs)

    @property
    def served(self) -> int:
        """Questions that were answered."""
        return sum(output.error is None for output in self.outputs)

    @property
    def identical(self) -> int:
        """Answers equal to the plain run's."""
        return self.served - len(self.differences)

    @property
    def errors(self) -> int:
        """Differences that rounding does not explain."""
        return sum(not difference.near_tie for difference in self.differences)

    @property
    def as_predicted(self) -> bool:
        """Whether the engine wrote exactly the states that the rule predicts."""
        return self.counters.state_writes == self.predicted_state_writes

    @property
    def state_bytes_per_token(self) -> float:
        """Bytes of states, rings, windows and trackers that a decode step reads and writes, a row."""
        return self.counters.state_bytes_moved / max(1, self.counters.decode_rows)


def run_mode(
    model: str | Path,
    config: EngineConfig,
    prompts: Sequence[str],
    max_tokens: int,
    plain: Mode | None = None,
    on_finish: Callable[[RequestOutput], None] | None = None,
    stop: Sequence[str] = (),
) -> Mode:
    """Answer every prompt greedily with ``config``, and compare with ``plain`` (None: this is the plain run itself)."""
    llm = LLM(model, config, quiet=True)
    params = SamplingParams(
        temperature=0,
        max_tokens=max_tokens,
        stop=tuple(stop),
        stop_token_ids=special_stops(llm.tokenizer, stop),
        logprobs=LOGPROBS,
    )
    start = time.perf_counter()
    outputs = llm.generate(list(prompts), params, on_finish)
    seconds = time.perf_counter() - start
    interval = config.checkpoint_interval
    reference = plain.outputs if plain else outputs
    coarsest = max((config.state_dtype, str(llm.plan.dtype).removeprefix("torch.")), key=lambda d: NEAR_TIE[d])
    pairs = list(zip(reference, outputs, strict=True))
    found = [first_difference(*pair, NEAR_TIE[coarsest]) for pair in pairs]
    return Mode(
        name="plain" if interval == 1 else "checkpointed",
        checkpoint_interval=interval,
        outputs=outputs,
        counters=llm.counters,
        predicted_state_writes=sum(predicted_writes(n, interval) for o in outputs for n in o.decode_runs),
        seconds=seconds,
        differences=[difference for difference in found if difference],
        largest_drift=max((drift(*pair) for pair in pairs), default=0.0),
    )


def first_difference(plain: RequestOutput, other: RequestOutput, near_tie: float) -> Difference | None:
    """Where ``other`` leaves ``plain``, or None. Both with LOGPROBS log probabilities a position.

    It is a near-tie if each run holds the other's token for nearly as good as its own, by less than ``near_tie``: the
    runs agree on everything but the order of equals.
    """
    position = common_prefix(plain, other)
    ours, theirs = (output.token_ids[position : position + 1] for output in (plain, other))
    if not ours and not theirs:
        return None
    if not ours or not theirs:  # one ended where the other went on
        ended = [tokens[0] if tokens else None for tokens in (ours, theirs)]
        return Difference(plain.index, position, ended[0], ended[1], None, False)
    gap = _behind(plain.logprobs[position], theirs[0])
    gap_there = _behind(other.logprobs[position], ours[0])
    tie = gap is not None and gap_there is not None and max(gap, gap_there) < near_tie
    return Difference(plain.index, position, ours[0], theirs[0], gap, tie)


def _behind(top: TopLogprobs, token: int) -> float | None:
    """How far ``token`` is behind the likeliest; None if it is not among those reported."""
    return top.logprobs[0] - top.logprobs[top.token_ids.index(token)] if token in top.token_ids else None


def common_prefix(plain: RequestOutput, other: RequestOutput) -> int:
    """How many tokens the two begin with alike."""
    pairs = zip(plain.token_ids, other.token_ids, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(plain.token_ids), len(other.token_ids)))


def drift(plain: RequestOutput, other: RequestOutput) -> float:
    """The largest difference of a chosen token's log probability while both follow the same tokens."""
    agreed = range(common_prefix(plain, other))
    return max((abs(plain.logprobs[i].logprobs[0] - other.logprobs[i].logprobs[0]) for i in agreed), default=0.0)
