"""The engine: a step is schedule, run, sample, collect. It speaks tokens; `LLM` adds folders, text and prompts."""

import math
import secrets
from collections.abc import Sequence

import torch
from torch import Tensor

from statewise.config import EngineConfig
from statewise.engine.plan import Plan
from statewise.engine.request import Phase, Request, SamplingParams
from statewise.engine.runner import Counters, Runner
from statewise.engine.sampler import Sampler, top_logprobs
from statewise.engine.sampling_batch import to_device
from statewise.engine.scheduler import Scheduler
from statewise.engine.text import Decoder, TextStream
from statewise.errors import RequestError
from statewise.models.hybrid import HybridModel


class Engine:
    """Continuous batching over one model. Not thread-safe: one caller submits, steps and aborts."""

    def __init__(self, model: HybridModel, plan: Plan, config: EngineConfig):
        """Allocates what ``plan`` says. model: on the device of ``config``, its weights loaded."""
        self.plan, self.config = plan, config
        self.eos = frozenset(model.config.eos_token_ids)
        self.vocab_size = model.config.vocab_size
        self.scheduler = Scheduler(plan.slots, plan.blocks, plan.kv, config.max_batched_tokens)
        device = torch.device(config.device)
        self.runner = Runner(model, plan, device, config.poison)
        self.sampler = Sampler(plan.slots, self.vocab_size, device, config.poison)

    @property
    def has_work(self) -> bool:
        """Whether any request waits or runs."""
        return self.scheduler.has_work

    @property
    def counters(self) -> Counters:
        """What has been done since the start."""
        return self.runner.counters(self.scheduler.preemptions)

    def submit(self, prompt: Sequence[int], params: SamplingParams, decoder: Decoder, index: int = 0) -> Request:
        """Queue a request. Raises RequestError for a prompt that can never run; nothing is queued then."""
        limit = self.plan.max_context
        if not prompt:
            raise RequestError("the prompt is empty, expected at least one token")
        if limit is not None and len(prompt) >= limit:
            raise RequestError(
                f"the prompt has {len(prompt)} tokens, but a request has room for {limit}, one of them generated"
            )
        if not 0 <= min(prompt) <= max(prompt) < self.vocab_size:
            raise RequestError(f"the prompt has a token outside the vocabulary of {self.vocab_size}")
        for token in params.logit_bias or ():
            if token >= self.vocab_size:
                raise RequestError(f"logit_bias has token {token}, outside the vocabulary of {self.vocab_size}")
        seed = secrets.randbits(63) if params.seed is None else params.seed
        text = TextStream(decoder, params.stop, params.min_tokens)
        ends_at = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else self.eos)
        request = Request(index, tuple(prompt), params, seed, text, ends_at)
        self.scheduler.add(request)
        return request

    def abort(self, request: Request) -> None:
        """End a request at once, with what it has generated. No effect on one that has finished."""
        if request.phase is not Phase.FINISHED:
            self._finish(request, "abort")

    def step(self) -> list[Request]:
        """Run one step. Returns the requests that got a token or ended."""
        step = self.scheduler.schedule()
        if not step.decode and not step.prefill:
            return []
        self.sampler.counts.forget(step.freed_slots)
        logits = self.runner.run(step)
        sampled = self.scheduler.advance(step)
        if sampled:
            self._collect(sampled, logits, new=len(sampled) - len(step.decode))
        if self.config.poison:
            self.scheduler.check_integrity()
        return sampled

    def _collect(self, requests: list[Request], logits: Tensor, new: int) -> None:
        """Give each request its token, and end those that are done. logits: (requests, V).  new: see `Sampler`."""
        chosen = self.sampler.sample(logits, requests, new)
        asking = [i for i, request in enumerate(requests) if request.params.logprobs]
        most = max((requests[i].params.logprobs for i in asking), default=0)
        scored = logits[to_device(asking, torch.int64, logits.device)] if asking else logits[:0]
        top = dict(zip(asking, top_logprobs(scored, most), strict=True))
        for i, (request, token, is_good) in enumerate(zip(requests, *chosen.tolist(), strict=True)):
            request.error = _not_numbers(request, is_good)
            if request.error is not None:
                self._finish(request, "error")
                continue
            request.output.append(token)
            if request.params.logprobs:
                request.logprobs.append(top[i].first(request.params.logprobs))
            reason = self._push(request, token)
            if reason:
                self._finish(request, reason)

    def _push(self, request: Request, token: int) -> str | None:
        """Extend the text by ``token``. Returns why the request ends with it, or None."""
        params = request.params
        if token in request.ends_at:
            return "stop"
        request.text.push(token)
        if request.text.stopped:
            return "stop"
        full = self.plan.max_context is not None and request.known >= self.plan.max_context
        return "length" if full or len(request.output) >= params.max_tokens else None

    def _finish(self, request: Request, reason: str) -> None:
        self.scheduler.finish(request)
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
