"""Times decode of a whole model through the engine, as a user sees it: from a step's tokens to the next step's.

Both modes share the weights. Where both pools fit, their windows of steps take turns, so that a clock that drifts
drifts for both.
"""

import gc
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from statewise.bench.decode_weights import model_over
from statewise.bench.rates import wait
from statewise.config import EngineConfig, ModelConfig
from statewise.engine import fixed
from statewise.engine.core import Engine
from statewise.engine.plan import Plan, make_plan
from statewise.engine.request import Request, SamplingParams
from statewise.errors import StatewiseError

OURS, PLAIN = "statewise", "statewise plain"
# Steps after the last prefill that are not timed.
WARM_STEPS = 16
# Windows that a run is split into, about; each is a multiple of the interval, so that each holds as many writes.
WINDOWS = 4
# The part of the free memory that caches may take: activations, logits and attention's copies need the rest.
CACHE_SHARE = 0.85
# More than any budget: the plan then allocates what the requests of the benchmark need, no more.
_NO_BUDGET = 2**62


@dataclass(frozen=True)
class Timing:
    """What one contender took at one batch, in seconds.

    first_token: from the arrival of all prompts to each one's first token.  steps: between the tokens of one step and
    those of the next, all rows decoding.  host_gap: the share of the time in which the device waits; None: not known.
    """

    first_token: tuple[float, ...]
    steps: tuple[float, ...]
    host_gap: float | None = None

    @property
    def mean(self) -> float:
        """Seconds a step."""
        return statistics.fmean(self.steps)


def percentile(values: Sequence[float], share: float) -> float:
    """The least value that at least ``share`` of the values do not exceed (the nearest rank)."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


class Letters:
    """Stands in for a tokenizer: a letter a token. Decoding text is not what is timed."""

    def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
        """As many letters as tokens."""
        return "a" * len(ids)


@dataclass(frozen=True)
class Load:
    """What is asked of every contender: ``batch`` prompts of ``context`` tokens, then ``tokens`` steps of all rows."""

    batch: int
    context: int
    tokens: int

    def prompts(self, vocab_size: int) -> list[tuple[int, ...]]:
        """Random tokens, the same for every contender."""
        generator = torch.Generator().manual_seed(self.batch)
        drawn = torch.randint(0, vocab_size, (self.batch, self.context), generator=generator)
        return [tuple(row) for row in drawn.tolist()]

    def windows(self, interval: int) -> list[int]:
        """Steps of each window that is timed; in all ``tokens``."""
        size = max(1, round(self.tokens / WINDOWS / interval)) * interval
        return [min(size, self.tokens - start) for start in range(0, self.tokens, size)]

    def new_tokens(self, max_batched_tokens: int, interval: int, extra: int = 0, piece: int | None = None) -> int:
        """Tokens that the first request gets at most, since it decodes while the others are still prefilled.

        piece: tokens of a prompt's pieces, where a step runs whole ones, at most one of each prompt.
        """
        budget = max(1, max_batched_tokens - self.batch + 1)
        ramp = math.ceil(self.batch * self.context / budget)
        if piece is not None:
            together = max(1, budget // min(piece, self.context))
            ramp = math.ceil(self.context / piece) * math.ceil(self.batch / together)
        return 2 + ramp + WARM_STEPS + self.tokens + len(self.windows(interval)) + extra


def exact_configs(base: EngineConfig, load: Load, extra: int = 0) -> dict[str, EngineConfig]:
    """Both modes of ``base``, with slots for just this batch and room for just the tokens that it will have.

    extra: steps that follow those that are timed.  Raises ConfigError where the batch does not go with ``base``.
    """
    piece = fixed.longest_piece(torch.device(base.device)) if base.deterministic else None
    length = load.context + load.new_tokens(base.max_batched_tokens, base.checkpoint_interval, extra, piece)
    ours = replace(base, max_batch=load.batch, state_slots=load.batch, max_context=length, memory=_NO_BUDGET)
    return {OURS: ours, PLAIN: replace(ours, checkpoint_interval=1)}


def fitted(model: ModelConfig, config: EngineConfig) -> tuple[EngineConfig, Plan]:
    """The configuration and its plan, the budget being what the plan needs."""
    config = replace(config, memory=make_plan(model, config).cache_bytes)
    return config, make_plan(model, config)


def build_engine(weights: dict[str, Tensor], model: ModelConfig, config: EngineConfig) -> Engine:
    """An engine over shared weights, its kernels compiled first."""
    config, plan = fitted(model, config)
    plan.ops.warm_up()
    return Engine(model_over(weights, model, plan.ops), plan, config)


class Run:
    """One batch of requests on one engine."""

    def __init__(self, engine: Engine, load: Load):
        assert engine.config.max_context is not None  # `exact_config` sets it
        self.engine, self.load, self.device = engine, load, torch.device(engine.config.device)
        self.prompts = load.prompts(engine.vocab_size)
        self.params = SamplingParams(
            temperature=0, max_tokens=engine.config.max_context - load.context, ignore_eos=True
        )
        self.requests: list[Request] = []

    def warm_up(self) -> None:
        """Run each kind of step once: a prefill of whole prompts, then decode with all rows."""
        short = max(1, min(self.load.context, self.engine.config.max_batched_tokens // self.load.batch))
        params = replace(self.params, max_tokens=3)
        for prompts in (self.prompts[:1], [prompt[:short] for prompt in self.prompts]):
            for index, prompt in enumerate(prompts):
                self.engine.submit(prompt, params, Letters(), index)
            while self.engine.has_work:
                self.engine.step()

    def prefill(self) -> tuple[float, ...]:
        """Submit all prompts at once. Returns the seconds until each one's first token."""
        wait(self.device)
        begin, first = time.perf_counter(), dict[Request, float]()
        self.requests = [
            self.engine.submit(prompt, self.params, Letters(), index) for index, prompt in enumerate(self.prompts)
        ]
        while len(first) < len(self.requests):
            sampled = self.engine.step()
            now = time.perf_counter() - begin
            for request in sampled:
                _expect_good(request)
                first.setdefault(request, now)
        return tuple(first[request] for request in self.requests)

    def run_on(self, count: int) -> None:
        """Further steps, whatever they hold."""
        for _ in range(count):
            self.engine.step()

    def steps(self, count: int) -> list[float]:
        """Seconds of ``count`` steps of all rows, after one that is not timed: it may have been run ahead of time."""
        wait(self.device)
        self.engine.step()
        times, last = [], time.perf_counter()
        for _ in range(count):
            self._step()
            now = time.perf_counter()
            times.append(now - last)
            last = now
        return times

    def _step(self) -> None:
        sampled = self.engine.step()
        if len(sampled) != self.load.batch:
            for request in sampled:
                _expect_good(request)
            raise StatewiseError(
                f"a step gave {len(sampled)} tokens, expected {self.load.batch}: it is not steady decode"
            )

    def end(self) -> None:
        """Abort all requests, so that the engine can take others."""
        for request in self.requests:
            self.engine.abort(request)


def _expect_good(request: Request) -> None:
    if request.error is not None:
        raise StatewiseError(f"{request} failed: {request.error}")


def measure_run(
    runs: Mapping[str, Run], windows: Sequence[int], look: Callable[[Run], float | None] | None = None
) -> dict[str, Timing]:
    """Prefill each, then let their windows take turns. look: afterwards, for the gap."""
    first: dict[str, tuple[float, ...]] = {}
    for name, run in runs.items():
        run.warm_up()
        first[name] = run.prefill()
        run.run_on(WARM_STEPS)
    steps: dict[str, list[float]] = {name: [] for name in runs}
    for count in windows:
        for name, run in runs.items():
            steps[name] += run.steps(count)
    gaps = {name: look(run) if look else None for name, run in runs.items()}
    for run in runs.values():
        run.end()
    return {name: Timing(first[name], tuple(steps[name]), gaps[name]) for name in runs}


def measure_modes(
    weights: dict[str, Tensor],
    model: ModelConfig,
    configs: Mapping[str, EngineConfig],
    load: Load,
    available: int,
    look: Callable[[Run], float | None] | None = None,
) -> tuple[dict[str, Timing], bool]:
    """Every mode's timing, and whether their steps took turns: only where the caches of all fit at once.

    available: bytes that the caches may take.  Raises torch.OutOfMemoryError where one mode alone does not fit.
    """
    plans = {name: make_plan(model, config) for name, config in configs.items()}
    together = sum(plan.cache_bytes for plan in plans.values()) <= available
    windows = load.windows(max(config.checkpoint_interval for config in configs.values()))
    groups = [list(configs)] if together else [[name] for name in configs]
    timings: dict[str, Timing] = {}
    for group in groups:
        with emptied(torch.device(configs[group[0]].device)):
            runs = {}
            for name in group:
                runs[name] = Run(build_engine(weights, model, configs[name]), load)
            timings |= measure_run(runs, windows, look)
            del runs
    return timings, together


@contextmanager
def emptied(device: torch.device) -> Iterator[None]:
    """Give back, afterwards, the memory of whatever was made within and is no longer held."""
    try:
        yield
    finally:
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
