"""Runs one step on the device. The only owner of the trackers; the only place with both requests and tensors."""

from dataclasses import dataclass

import torch
from torch import Tensor

from statewise.cache.mamba import MambaPool
from statewise.cache.paged_kv import PagedKV
from statewise.cache.window import flushes
from statewise.engine.plan import COUNTERS, Plan
from statewise.engine.request import PromptLogprob, Request
from statewise.engine.sampler import prompt_logprobs
from statewise.engine.scheduler import Step
from statewise.layers.batch import Batch, Row, make_batch
from statewise.models.hybrid import Caches, HybridModel
from statewise.ops.mixer_step.scratch import Scratch

# The seed of the first step's stochastic rounding; each step adds one. Fixed, so that a run repeats itself.
FIRST_RAND_SEED = 0
# Prompt tokens whose log probabilities are computed at once: 512 rows of 131,072 logits are 256 MiB in float32.
SCORED_AT_ONCE = 512


@dataclass(frozen=True)
class Counters:
    """What has been done since the start. A state write counts once, all layers together."""

    steps: int
    prefill_tokens: int
    prefill_writes: int  # states written by prefill chunks
    decode_rows: int  # decode tokens run
    state_writes: int  # states written by decode rows
    replayed_rows: int  # ring rows read by decode rows
    kv_read_tokens: int  # tokens whose keys and values decode rows read
    preemptions: int
    state_bytes_moved: int  # by decode rows: states, rings, windows, trackers
    kv_bytes_moved: int  # by decode rows


class Runner:
    """Model, caches, trackers and the seed of stochastic rounding on one device."""

    def __init__(self, model: HybridModel, plan: Plan, device: torch.device, poison: bool):
        self.model, self.plan, self.device = model, plan, device
        self._rand_seed = None
        if plan.stochastic_rounding:
            self._rand_seed = torch.full((1,), FIRST_RAND_SEED, dtype=torch.int64, device=device)
        self.caches = Caches(
            MambaPool(plan.mamba, plan.slots, device, poison, self._rand_seed),
            PagedKV(plan.kv, plan.blocks, device, poison),
            Scratch.allocate(plan.slots, *plan.scratch_dims, device) if plan.has_scratch else None,
        )
        self._steps = self._prefill_tokens = self._prefill_writes = self._decode_rows = self._kv_read = 0
        # On the device, so that counting never waits for it: states written, ring rows replayed.
        self._counts = torch.zeros(COUNTERS, dtype=torch.int64, device=device)

    def run(self, step: Step) -> Tensor:
        """Run a step. Returns the logits of the rows that get a token, (n, V): decode rows, then ended prefills."""
        self.caches.mamba.forget(step.freed_slots)
        self.caches.kv.forget(step.freed_blocks)
        decode = [_row(request, 1) for request in step.decode]
        prefill = [_row(request, count) for request, count in step.prefill]
        batch = make_batch(decode, prefill, self.plan.kv.block_size, self.device)
        with torch.inference_mode():
            hidden = self.model.hidden(batch, self.caches)
            logits = self.model.logits(hidden[batch.logit_rows])
            self._advance(batch)
            self._score_prompts(step, hidden)
        self._steps += 1
        self._prefill_tokens += sum(count for _, count in step.prefill)
        self._prefill_writes += len(prefill)
        self._decode_rows += len(decode)
        self._kv_read += sum(row.start + 1 for row in decode)
        return logits

    def _score_prompts(self, step: Step, hidden: Tensor) -> None:
        """Extend ``prompt_logprobs`` of the requests that ask for it. hidden: (L, hidden_size), of this step's rows."""
        rows: list[int] = []
        scored: list[tuple[Request, int]] = []  # request and the position of the token
        first = len(step.decode)
        for request, count in step.prefill:
            known = request.prompt_logprobs
            if request.params.prompt_logprobs is not None:
                if not known:
                    known += [None] * min(len(request.prompt), max(1, request.params.prompt_logprobs_start))
                # After a preemption the first tokens run again, and are known already.
                tokens = range(
                    max(len(known), request.computed + 1),
                    min(len(request.prompt), request.computed + count + 1),
                )
                rows += [first + token - 1 - request.computed for token in tokens]
                scored += [(request, token) for token in tokens]
            first += count
        for start in range(0, len(rows), SCORED_AT_ONCE):
            some = scored[start : start + SCORED_AT_ONCE]
            most = max(request.params.prompt_logprobs or 0 for request, _ in some)
            logits = self.model.logits(hidden[rows[start : start + SCORED_AT_ONCE]])
            found = prompt_logprobs(logits, [request.prompt[token] for request, token in some], most)
            for (request, _), one in zip(some, found, strict=True):
                top = one.top.first(request.params.prompt_logprobs or 0)
                request.prompt_logprobs.append(PromptLogprob(one.logprob, top))

    def _advance(self, batch: Batch) -> None:
        """Move the trackers and the seed, once a step for all layers. A prefilled slot has nothing pending."""
        pool, own, window = self.caches.mamba, batch.decode_slots, self.plan.mamba.checkpoint_interval
        pending = pool.pending[own]
        self._counts += torch.stack([torch.as_tensor(flushes(pending, 1, window)).sum(), pending.sum()])
        self.model.ops.advance_trackers(
            pool.ring_start,
            pool.pending,
            own,
            tokens=1,
            accepted=1,
            window=window,
            ring_rows=self.plan.mamba.ring_rows,
        )
        pool.ring_start[batch.prefill_slots] = 0
        pool.pending[batch.prefill_slots] = 0
        if self.model.ops.reads_dead_rows:
            pool.clear_rings(batch.prefill_slots)
        if self._rand_seed is not None:
            self._rand_seed += 1

    def counters(self, preemptions: int) -> Counters:
        """Everything counted so far; reads the device."""
        writes, replayed = self._counts.tolist()
        kv = self.plan.kv
        return Counters(
            steps=self._steps,
            prefill_tokens=self._prefill_tokens,
            prefill_writes=self._prefill_writes,
            decode_rows=self._decode_rows,
            state_writes=writes,
            replayed_rows=replayed,
            kv_read_tokens=self._kv_read,
            preemptions=preemptions,
            state_bytes_moved=self.plan.mamba.bytes_moved(
                steps=self._decode_rows, state_writes=writes, replayed=replayed
            ),
            kv_bytes_moved=(self._kv_read + self._decode_rows) * kv.bytes_per_token,
        )


def _row(request: Request, count: int) -> Row:
    assert request.slot is not None
    tokens = request.tokens(request.computed, count)
    last = request.computed + count == request.known
    return Row(tokens, request.computed, request.slot, request.blocks, wants_logits=last)
