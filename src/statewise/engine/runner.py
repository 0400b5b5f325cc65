"""Runs one step on the device. The only owner of the trackers; the only place with both requests and tensors."""

from bisect import bisect_left
from dataclasses import dataclass, field

import torch
from torch import Tensor

from statewise.cache.mamba import MambaPool
from statewise.cache.paged_kv import PagedKV
from statewise.engine.buffers import DecodeBuffers
from statewise.engine.counters import Counters
from statewise.engine.graphs import DecodeGraphs
from statewise.engine.plan import COUNTERS, Plan
from statewise.engine.prompt_scores import PromptScores, score_prompts
from statewise.engine.request import Request
from statewise.engine.sampler import choose
from statewise.engine.scheduler import Step
from statewise.layers.batch import Row, joined, make_batch
from statewise.models.hybrid import Caches, HybridModel
from statewise.ops.mixer_step.scratch import Scratch
from statewise.ops.paged_attention.scratch import Scratch as AttentionScratch

# The seed of the first step's stochastic rounding; each step adds one. Fixed, so that a run repeats itself.
FIRST_RAND_SEED = 0


@dataclass(frozen=True)
class Output:
    """What a step leaves on the device, of n rows that get a token: decode rows, then ended prefills."""

    logits: Tensor  # (n, V), dtype of the weights; overwritten by the next step
    likeliest: Tensor  # (2, n), as `Sampler.sample` returns it if every row is greedy
    places: Tensor  # (n,), where the next step looks for their tokens
    scores: list[PromptScores] = field(default_factory=list)  # of prompt tokens that ran


class Runner:
    """Model, caches, trackers and the seed of stochastic rounding on one device."""

    def __init__(self, model: HybridModel, plan: Plan, device: torch.device, poison: bool):
        """On a GPU it captures the decode steps of ``plan.graph_sizes``; elsewhere those steps are padded alone."""
        self.model, self.plan, self.device = model, plan, device
        self._rand_seed = None
        if plan.stochastic_rounding:
            self._rand_seed = torch.full((1,), FIRST_RAND_SEED, dtype=torch.int64, device=device)
        self.caches = Caches(
            MambaPool(plan.mamba, plan.slots, device, poison, self._rand_seed),
            PagedKV(plan.kv, plan.blocks, device, poison),
            Scratch.allocate(plan.slots, *plan.scratch_dims, device) if plan.has_scratch else None,
            AttentionScratch.allocate(plan.slots, *plan.attention_scratch_dims, device)
            if plan.has_attention_scratch
            else None,
        )
        self._buffers = DecodeBuffers(plan.slots, plan.table, plan.kv.block_size, plan.vocab_size, plan.dtype, device)
        self._steps = self._prefill_tokens = self._prefill_writes = self._decode_rows = self._kv_read = 0
        self._padded = self._graph_steps = 0
        # On the device, so that counting never waits for it: states written, ring rows replayed.
        self._counts = torch.zeros(COUNTERS, dtype=torch.int64, device=device)
        self._graphs = self._capture() if plan.graph_sizes and device.type == "cuda" else None

    def run(self, step: Step) -> Output:
        """Launch a step, and do not wait for it."""
        self.caches.mamba.forget(step.freed_slots)
        self.caches.kv.forget(step.freed_blocks)
        with torch.inference_mode():
            output = self._mixed(step) if step.prefill else self._decode_step(step.decode)
        self._steps += 1
        self._prefill_tokens += sum(count for _, count in step.prefill)
        self._prefill_writes += len(step.prefill)
        self._decode_rows += len(step.decode)
        self._kv_read += sum(request.computed + 1 for request in step.decode) if self.plan.kv.layers else 0
        return output

    def put(self, output: Output, tokens: Tensor) -> None:
        """Let the next step run ``tokens``, (n,), and not the likeliest."""
        self._buffers.newest[output.places] = tokens

    def _decode_step(self, requests: list[Request]) -> Output:
        """A step of nothing but decode rows, padded to a size that was captured if there is one."""
        count = size = len(requests)
        place = bisect_left(self.plan.graph_sizes, count)
        if place < len(self.plan.graph_sizes):
            size = self.plan.graph_sizes[place]
            self._padded += size - count
        table = self._buffers.fill(requests, size)
        if self._graphs is None or place == len(self.plan.graph_sizes):
            places = self._decode(size, table)
        else:
            places = self._graphs.replay(size)
            self._graph_steps += 1
        return Output(self._buffers.logits[:count], self._buffers.likeliest[:, :count], places[:count])

    def _decode(self, size: int, table: int) -> Tensor:
        """The rows that the inputs hold; leaves logits and likeliest tokens in their places. Waits for nothing."""
        batch, places = self._buffers.batch(size, table)
        hidden = self.model.hidden(batch, self.caches)
        self._choose(self.model.head(hidden, out=self._buffers.logits[:size]), places)
        self._advance(batch.decode_slots)
        return places

    def _choose(self, logits: Tensor, places: Tensor) -> Tensor:
        """The likeliest token of each row; the next step runs it unless `put` says otherwise."""
        tokens, is_good = choose(logits, None)
        likeliest = self._buffers.likeliest[:, : len(tokens)]
        likeliest[0], likeliest[1] = tokens, is_good
        self._buffers.newest[places] = tokens
        return likeliest

    def _mixed(self, step: Step) -> Output:
        """A step with prefill rows."""
        rows = [_row(request, count) for request, count in step.prefill]
        batch = make_batch([], rows, self.plan.kv.block_size, self.device)
        if step.decode:
            table = self._buffers.fill(step.decode, len(step.decode))
            batch = joined(self._buffers.batch(len(step.decode), table)[0], batch)
        hidden = self.model.hidden(batch, self.caches)
        logits, slots = self.model.head(hidden[batch.logit_rows]), batch.logit_slots
        likeliest = self._choose(logits, slots)
        self._advance(batch.decode_slots)
        self._reset(batch.prefill_slots)
        return Output(logits, likeliest, slots, score_prompts(self.model, step, hidden))

    def _capture(self) -> DecodeGraphs[Tensor]:
        with torch.inference_mode():
            self._buffers.fill([], self.plan.slots)
            torch.cuda.synchronize(self.device)
            graphs = DecodeGraphs(lambda size: self._decode(size, self.plan.table), self.plan.graph_sizes)
            if self._rand_seed is not None:
                self._rand_seed.fill_(FIRST_RAND_SEED)
        return graphs

    def _advance(self, slots: Tensor) -> None:
        """Move the trackers of decode rows and the seed, once a step for all layers."""
        pool = self.caches.mamba
        self.model.ops.advance_trackers(
            pool.ring_start,
            pool.pending,
            slots,
            tokens=1,
            accepted=1,
            window=self.plan.mamba.checkpoint_interval,
            ring_rows=self.plan.mamba.ring_rows,
            counts=self._counts,
        )
        if self._rand_seed is not None:
            self._rand_seed += 1

    def _reset(self, slots: Tensor) -> None:
        """A prefilled slot has nothing pending."""
        pool = self.caches.mamba
        pool.ring_start.index_fill_(0, slots, 0)
        pool.pending.index_fill_(0, slots, 0)
        if self.model.ops.reads_dead_rows:
            pool.clear_rings(slots)

    def counters(self, preemptions: int) -> Counters:
        """Everything counted so far; reads the device."""
        writes, replayed = self._counts.tolist()
        mamba, kv = self.plan.mamba, self.plan.kv
        return Counters(
            steps=self._steps,
            prefill_tokens=self._prefill_tokens,
            prefill_writes=self._prefill_writes,
            decode_rows=self._decode_rows,
            padded_rows=self._padded,
            graph_steps=self._graph_steps,
            state_writes=writes,
            replayed_rows=replayed,
            kv_read_tokens=self._kv_read,
            preemptions=preemptions,
            state_bytes_moved=mamba.bytes_moved(steps=self._decode_rows, state_writes=writes, replayed=replayed),
            kv_bytes_moved=(self._kv_read + self._decode_rows) * kv.bytes_per_token,
        )


def _row(request: Request, count: int) -> Row:
    """A chunk of ``count`` tokens of a prefill."""
    assert request.slot is not None
    tokens, last = request.tokens(request.computed, count), request.computed + count == request.known
    return Row(tokens, request.computed, request.slot, request.blocks, wants_logits=last)
