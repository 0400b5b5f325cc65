"""The engine: a step is schedule, run, sample, collect. It speaks tokens; `LLM` adds folders, text and prompts."""

import math
import secrets
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from statewise.cache.host import to_device
from statewise.config import EngineConfig
from statewise.engine import fixed
from statewise.engine.counters import Counters
from statewise.engine.fetch import Fetched
from statewise.engine.integrity import check_trackers, check_unwritten
from statewise.engine.phases import phases
from statewise.engine.plan import Plan
from statewise.engine.prompt_scores import PromptScores
from statewise.engine.request import Phase, Request, SamplingParams, expect_possible, token_ids
from statewise.engine.runner import Output, Runner
from statewise.engine.sampler import Sampler, as_top, token_logprobs
from statewise.engine.sampling_batch import is_plain
from statewise.engine.scheduler import Scheduler
from statewise.engine.step import Step
from statewise.engine.text import Decoder, TextStream
from statewise.errors import ArgumentError, EngineError, RequestError
from statewise.models.hybrid import HybridModel, widened


@dataclass(frozen=True)
class _Launched:
    """A step on its way."""

    requests: list[Request]  # that get a token
    asking: list[int]  # which of them get log probabilities
    fetched: Fetched  # tokens, whether their logits were numbers; what `token_logprobs` found
    scores: list[PromptScores]


class Engine:
    """Continuous batching over one model. Not thread-safe: one caller submits, steps and aborts."""

    def __init__(self, model: HybridModel, plan: Plan, config: EngineConfig):
        """Allocates what ``plan`` says. model: on the device of ``config``, its weights loaded."""
        self.plan, self.config = plan, config
        self.eos = frozenset(model.config.eos_token_ids)
        self.vocab_size = model.config.vocab_size
        host = config.swap_bytes if config.preempt == "swap" else 0
        budget, slot, device = config.max_batched_tokens, plan.mamba.bytes_per_slot, torch.device(config.device)
        piece = None
        if config.deterministic:  # a token that ran twice would run in other shapes
            host, piece = sys.maxsize, fixed.longest_piece(device)
        self.scheduler = Scheduler(plan.slots, plan.blocks, plan.kv, budget, host, slot, piece)
        self._phase = phases(config.nvtx)
        self.runner = Runner(model, plan, device, config.poison, self._phase)
        self.sampler = Sampler(plan.slots, self.vocab_size, device, config.poison)
        self.is_async = device.type == "cuda" if config.async_scheduling is None else config.async_scheduling
        self._launched: _Launched | None = None  # whose tokens have not been taken in
        self._failure: str | None = None

    @property
    def has_failed(self) -> bool:
        """Whether a step has failed: it runs no more."""
        return self._failure is not None

    @property
    def has_work(self) -> bool:
        """Whether any request waits or runs."""
        return self.scheduler.has_work

    @property
    def counters(self) -> Counters:
        """What has been done since the start."""
        return self.runner.counters(self.scheduler.counts)

    def submit(
        self, prompt: Sequence[int], params: SamplingParams, decoder: Decoder, index: int = 0, *, keep: bool = False
    ) -> Request:
        """Queue a request. Raises RequestError for what can never run; nothing is queued then.

        keep: its caches stay when it has ended by itself, for `extend`, until `release` or until others need the room.
        Raises EngineError once a step has failed.
        """
        return self._queue(token_ids(prompt), params, decoder, index, keep)

    def extend(
        self, request: Request, tokens: Sequence[int], params: SamplingParams, decoder: Decoder, index: int = 0
    ) -> Request:
        """Queue a request that goes on where ``request``, submitted with ``keep``, has ended; it is kept in its turn.

        Its prompt is the whole text so far (prompt, output) and then ``tokens``. Only those run, and of the output what
        has not, after the pending rows of the slot have been folded into its state; all of it, if the caches are there
        no more: others needed the room, or ``request`` did not end by itself.

        Raises RequestError if ``request`` was not to be kept, still runs, ended with an error, or has been extended or
        released; if ``tokens`` is empty; for prompt_logprobs, since what has run is not scored; and as `submit`.
        """
        if not request.keep:
            raise RequestError(f"{request} is not kept, or has been extended or released before")
        if request.phase is not Phase.FINISHED or request.finish_reason == "error":
            raise RequestError(f"{request} has not ended well, expected one that has")
        if not (new := token_ids(tokens, "tokens")):
            raise RequestError("tokens is empty, expected at least one to go on with")
        return self._queue((*request.prompt, *request.output, *new), params, decoder, index, True, source=request)

    def release(self, request: Request) -> None:
        """Give up the caches of an ended request that are kept for `extend`. No effect if there are none."""
        request.keep = False
        self.scheduler.release(request)

    def _queue(
        self,
        prompt: tuple[int, ...],
        params: SamplingParams,
        decoder: Decoder,
        index: int,
        keep: bool,
        source: Request | None = None,
    ) -> Request:
        self._expect_whole()
        if keep and self.config.deterministic:
            raise RequestError("keep is given with deterministic: where chunks begin would depend on other requests")
        limit = self.plan.max_context
        expect_possible(prompt, params, self.vocab_size, limit)
        if source is not None and params.prompt_logprobs is not None:
            raise RequestError("prompt_logprobs is given for a prompt that has run in part")
        seed = secrets.randbits(63) if params.seed is None else params.seed
        text = TextStream(decoder, params.stop, params.min_tokens)
        ends_at = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else self.eos)
        most = params.max_tokens if limit is None else min(params.max_tokens, limit - len(prompt))
        request = Request(index, prompt, params, seed, text, ends_at, most, keep=keep, source=source)
        if source is not None:
            source.keep = False
        self.scheduler.add(request)
        return request

    def abort(self, request: Request) -> None:
        """End a request at once, with what it has generated. No effect on one that has finished."""
        if request.phase is not Phase.FINISHED:
            self._finish(request, "abort")

    def step(self) -> list[Request]:
        """Launch one step, and take in the tokens of one. Returns the requests that got a token or ended.

        With asynchronous scheduling these are the tokens of the step before, while the one launched still runs; the
        list may be empty though there is work. A request that ends by a token that has just come in takes part in
        one step too many: its token is dropped, and its slot and blocks go to nobody before that step has run.

        Raises EngineError if anything fails on the way: the requests at work are lost, and the engine with them. After
        Ctrl-C they are lost too, and KeyboardInterrupt goes on.
        """
        with self._whole_or_failed():
            before, self._launched = self._launched, self._launch()
            if not self.is_async:
                before, self._launched = self._launched, None
            with self._phase("collect"):
                done = self._take_in(before) if before is not None else []
            if self.config.poison:
                self.check_integrity()
        return done

    def permute_slots(self, order: Sequence[int]) -> None:
        """Between two steps, move whatever is in slot i to slot ``order[i]``. order: a permutation of all slots.

        No request notices. Raises EngineError as `step` does.
        """
        if sorted(order) != list(range(self.plan.slots)):
            raise ArgumentError(f"order is {list(order)!r:.60}, expected a permutation of {self.plan.slots} slots")
        with self._whole_or_failed():
            changes = self.scheduler.take_changes()
            self.sampler.counts.forget(changes.freed_slots)
            self.runner.make(changes)
            self.runner.permute(order, [self.sampler.counts.table])
            self.scheduler.permute(order)

    def check_integrity(self) -> None:
        """Raise IntegrityError unless the books balance and, as far as poison shows it, the device agrees with them."""
        self.scheduler.check_integrity()
        caches = self.runner.caches
        check_trackers(caches.mamba, self.scheduler)
        if self.config.poison:
            check_unwritten(caches.mamba, caches.kv, self.sampler.counts, self.scheduler)

    @contextmanager
    def _whole_or_failed(self) -> Iterator[None]:
        """What fails within may have left the pools half changed: the engine fails with it."""
        self._expect_whole()
        try:
            yield
        except BaseException as error:
            self._fail(error)
            if isinstance(error, Exception):
                raise EngineError(str(self._failure)) from error
            raise

    def _expect_whole(self) -> None:
        if self._failure is not None:
            raise EngineError(f"the engine has failed: {self._failure}")

    def _launch(self) -> "_Launched | None":
        """Schedule a step and start it. None: nothing can run before more tokens have come in, or at all."""
        with self._phase("schedule"):
            step = self.scheduler.schedule()
        with self._phase("move"):
            self.sampler.counts.forget(step.changes.freed_slots)
            self.runner.make(step.changes, step.swapped_in)
        if not step.decode and not step.prefill:
            return None
        output, requests = self.runner.run(step), step.sampled
        with self._phase("sample"):
            launched = self._sample(step, output, requests)
        self.scheduler.advance(step)
        return launched

    def _sample(self, step: Step, output: Output, requests: list[Request]) -> _Launched:
        """Choose the tokens of a step that has been launched, and start them on their way to the host."""
        chosen = output.likeliest
        self.sampler.counts.begin([request for request in step.swapped_in if request.params.has_penalties])
        if not all(map(is_plain, requests)):
            chosen = self.sampler.sample(widened(output.logits), requests, len(requests) - len(step.decode))
            self.runner.put(output, chosen[0])
        asking = [i for i, request in enumerate(requests) if request.params.logprobs]
        most = max((requests[i].params.logprobs for i in asking), default=0)
        scores: tuple[Tensor, ...] = ()
        if asking:
            rows = to_device(asking, torch.int64, chosen.device)
            scores = token_logprobs(widened(output.logits[rows]), chosen[0][rows], most)
        return _Launched(requests, asking, Fetched(chosen, *scores), output.scores)

    def _take_in(self, launched: "_Launched") -> list[Request]:
        """Give each request its token, and end those that are done."""
        for scores in launched.scores:
            scores.deliver()
        (tokens, are_good), *found = launched.fetched.get()
        own = dict(zip(launched.asking, found[0].tolist(), strict=True)) if found else {}
        tops = dict(zip(launched.asking, as_top(*found[1:]), strict=True)) if found else {}
        running = []
        for i, (request, token, is_good) in enumerate(
            zip(launched.requests, tokens.tolist(), are_good.tolist(), strict=True)
        ):
            if request.phase is Phase.FINISHED:
                continue  # this was the step too many
            running.append(request)
            request.error = _not_numbers(request, is_good)
            if request.error is not None:
                self._finish(request, "error")
                continue
            request.output.append(token)
            if request.params.logprobs:
                request.logprobs.append(tops[i].first(request.params.logprobs).including(token, own[i]))
            reason = self._push(request, token)
            if reason:
                self._finish(request, reason)
        return running

    def _fail(self, error: BaseException) -> None:
        """Nothing is known of the pools any more: no step runs again. Every request at work ends with the reason."""
        self._launched = None
        self._failure = f"{type(error).__name__}: {error}"
        lost = self.scheduler.take_all()
        for request in lost:
            request.phase, request.finish_reason = Phase.FINISHED, "error"
            request.error = RequestError(f"lost, since the engine failed: {self._failure}")
        names = ", ".join(str(request.index) for request in lost[:20])
        more = f" and {len(lost) - 20} more" if len(lost) > 20 else ""
        count = "1 request is" if len(lost) == 1 else f"{len(lost)} requests are"
        self._failure = f"a step failed, {count} lost ({names}{more}): {self._failure}"

    def _push(self, request: Request, token: int) -> str | None:
        """Extend the text by ``token``. Returns why the request ends with it, or None."""
        if token in request.ends_at:
            return "stop"
        request.text.push(token)
        if request.text.stopped:
            return "stop"
        return "length" if len(request.output) >= request.most_output else None

    def _finish(self, request: Request, reason: str) -> None:
        self.scheduler.finish(request, keep=request.keep and reason in ("stop", "length"))
        self.runner.swap.drop(request)
        request.finish_reason = reason
        request.text.finish()
        if request.text.stopped and reason == "length":
            request.finish_reason = "stop"


def _not_numbers(request: Request, is_good: int) -> RequestError | None:
    """What is wrong with the logits of a request. is_good: whether those of its next token are numbers."""
    if not request.output:  # its prompt has just ended
        for i, scored in enumerate(request.prompt_logprobs):
            if scored is not None and math.isnan(scored.logprob):
                return RequestError(f"the logits before prompt token {i} are not numbers")
    if is_good:
        return None
    early = len(request.output) < request.params.min_tokens
    ruled_out = ", or min_tokens rules out all that are possible" if early else ""
    return RequestError(f"the logits of output token {len(request.output)} are not numbers{ruled_out}")
