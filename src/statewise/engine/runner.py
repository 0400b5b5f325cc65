"""Runs one step on the device. The only owner of the trackers; the only place with both requests and tensors."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace

import torch
from torch import Tensor

from statewise.cache.host import to_device
from statewise.cache.mamba import MambaPool
from statewise.cache.paged_kv import PagedKV
from statewise.engine import fixed, graphs, warm_up
from statewise.engine.buffers import DecodeBuffers
from statewise.engine.counters import Counters, Preempted
from statewise.engine.graphs import DecodeGraphs
from statewise.engine.phases import Phases, unmarked
from statewise.engine.plan import COUNTERS, Plan
from statewise.engine.prompt_scores import PromptScores, score_prompts
from statewise.engine.request import Request
from statewise.engine.sampler import choose
from statewise.engine.step import Changes, Step
from statewise.engine.swap import SwapSpace
from statewise.errors import MemoryBudgetError
from statewise.layers.batch import Row, joined, make_batch
from statewise.models.hybrid import Caches, HybridModel
from statewise.ops import move_slots
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

    def kept(self) -> "Output":
        """A copy that no later pass overwrites."""
        return replace(self, logits=self.logits.clone(), likeliest=self.likeliest.clone(), places=self.places.clone())


def concatenated(outputs: Sequence[Output]) -> Output:
    """The rows of several passes, one after the other."""
    return Output(
        torch.cat([output.logits for output in outputs]),
        torch.cat([output.likeliest for output in outputs], 1),
        torch.cat([output.places for output in outputs]),
        [score for output in outputs for score in output.scores],
    )


class Runner:
    """Model, caches, trackers and the seed of stochastic rounding on one device."""

    def __init__(self, model: HybridModel, plan: Plan, device: torch.device, poison: bool, phase: Phases = unmarked):
        """On a GPU it captures the decode steps of ``plan.graph_sizes``; elsewhere those steps are padded alone."""
        self.model, self.plan, self.device, self.poison, self._phase = model, plan, device, poison, phase
        self._rand_seed = None
        if plan.stochastic_rounding:
            self._rand_seed = torch.full((1,), FIRST_RAND_SEED, dtype=torch.int64, device=device)
        self.caches = Caches(
            MambaPool(plan.mamba, plan.slots, device, poison, self._rand_seed),
            PagedKV(plan.kv, plan.blocks, device, poison),
            Scratch.allocate(plan.pass_rows, *plan.scratch_dims, device) if plan.has_scratch else None,
            AttentionScratch.allocate(plan.pass_rows, *plan.attention_scratch_dims, device)
            if plan.has_attention_scratch
            else None,
        )
        self.swap = SwapSpace(self.caches.mamba, self.caches.kv)
        sizes = (plan.slots, plan.pass_rows, plan.table, plan.kv.block_size, plan.vocab_size)
        self._buffers = DecodeBuffers(*sizes, plan.dtype, device)
        self._steps = self._prefill_tokens = self._prefill_writes = self._decode_rows = self._kv_read = 0
        self._padded = self._graph_steps = self._replays = 0
        # On the device, so that counting never waits for it: states written, ring rows replayed.
        self._counts = torch.zeros(COUNTERS, dtype=torch.int64, device=device)
        self._graphs = None
        if device.type == "cuda":
            self.warm_up()
            self._graphs = self._capture() if plan.graph_sizes else None
            if self._rand_seed is not None:
                self._rand_seed.fill_(FIRST_RAND_SEED)
        self.make(Changes(freed_slots=list(range(plan.slots))))

    @torch.inference_mode()
    def make(self, changes: Changes, swapped_in: Sequence[Request] = ()) -> None:
        """What goes before a step: save what is swapped out, forget what is freed, restore what comes back."""
        self.swap.save(changes.swapped_out)
        self.caches.mamba.forget(changes.freed_slots)
        self.caches.kv.forget(changes.freed_blocks)
        if self.poison:
            self._spoil(changes.freed_slots)
        if swapped_in:
            self.swap.restore(swapped_in)
            slots = to_device([request.slot for request in swapped_in], torch.int64, self.device)
            newest = [request.output[-1] if request.output else 0 for request in swapped_in]
            self._buffers.newest[slots] = to_device(newest, torch.int64, self.device)

    @torch.inference_mode()
    def permute(self, order: Sequence[int], others: Sequence[Tensor] = ()) -> None:
        """Move what is in slot i to slot ``order[i]``. others: (S, ...), what belongs to the slots elsewhere."""
        tensors, dims = self.caches.mamba.tensors()
        tensors += [self._buffers.newest[: self.plan.slots], *others]
        slots = to_device(range(self.plan.slots), torch.int64, self.device)
        move_slots(
            tensors,
            slots,
            to_device(order, torch.int64, self.device),
            slot_dims=[*dims, *[0] * (1 + len(others))],
            backend="triton" if self.plan.has_scratch else "torch",
        )

    def run(self, step: Step) -> Output:
        """Launch a step, and do not wait for it. What `make` does has been done."""
        replays = self._replays
        with torch.inference_mode(), self._phase("prefill" if step.prefill else "decode"):
            output = self._launch(step)
        self._steps += 1
        self._graph_steps += self._replays > replays
        self._prefill_tokens += sum(count for _, count in step.prefill)
        self._prefill_writes += len(step.prefill)
        self._decode_rows += len(step.decode)
        self._kv_read += sum(request.computed + 1 for request in step.decode) if self.plan.kv.layers else 0
        return output

    def _launch(self, step: Step) -> Output:
        if (rows := self.plan.fixed_rows) is not None:
            outputs = [self._decode_step(some).kept() for some in fixed.passes(step.decode, rows)]
            outputs += [
                self._mixed(Step(prefill=[piece]), *fixed.fillers(piece[1], rows, self.plan.kv)).kept()
                for piece in step.prefill
            ]
            return concatenated(outputs)
        return self._mixed(step) if step.prefill else self._decode_step(step.decode)

    def put(self, output: Output, tokens: Tensor) -> None:
        """Let the next step run ``tokens``, (n,), and not the likeliest."""
        self._buffers.newest[output.places] = tokens

    def _decode_step(self, requests: Sequence[Request]) -> Output:
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
            self._replays += 1
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

    def _mixed(self, step: Step, *fillers: Row) -> Output:
        """A step with prefill rows."""
        self._fold([request for request, _ in step.prefill if request.behind])
        rows = [_row(request, count) for request, count in step.prefill]
        batch = make_batch([], [*rows, *fillers], self.plan.kv.block_size, self.device)
        if step.decode:
            table = self._buffers.fill(step.decode, len(step.decode))
            batch = joined(self._buffers.batch(len(step.decode), table)[0], batch)
        hidden = self.model.hidden(batch, self.caches)
        logits, slots = self.model.head(hidden[batch.logit_rows]), batch.logit_slots
        likeliest = self._choose(logits, slots)
        self._advance(batch.decode_slots)
        self._reset(batch.prefill_slots[: len(rows)])
        return Output(logits, likeliest, slots, score_prompts(self.model, step, hidden))

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Compile all that steps launch, by rows without a slot: they leave nothing behind.

        Raises MemoryBudgetError if a step as long as steps may be does not fit beside weights and caches.
        """
        plan = self.plan
        for count, length in warm_up.prompts(plan.step_tokens, plan.max_context, plan.mamba.heads):
            try:
                self._mixed(Step(), *[fixed.row_without_slot(length, plan.kv)] * count)
            except torch.OutOfMemoryError as error:
                raise MemoryBudgetError(
                    f"a step of {count * length} tokens needs more memory than weights and caches leave: "
                    f"lower memory, or max_batched_tokens, which is {plan.step_tokens}"
                ) from error
        if not plan.graph_sizes:  # else the captures do it
            for size in graphs.sizes(plan.pass_rows):
                self._buffers.fill([], size)
                self._decode(size, plan.table)

    def _capture(self) -> DecodeGraphs[Tensor]:
        with torch.inference_mode():
            self._buffers.fill([], self.plan.pass_rows)
            torch.cuda.synchronize(self.device)
            return DecodeGraphs(lambda size: self._decode(size, self.plan.table), self.plan.graph_sizes)

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

    def _fold(self, requests: Sequence[Request]) -> None:
        """Let the states of slots that have decoded hold all of their rows: prefill reads nothing else."""
        if requests and self.plan.mamba.checkpoint_interval > 1:
            slots = to_device([request.slot for request in requests], torch.int64, self.device)
            self.model.fold(self.caches.mamba, slots)

    def _reset(self, slots: Tensor) -> None:
        """A prefilled slot has nothing pending."""
        pool = self.caches.mamba
        pool.ring_start.index_fill_(0, slots, 0)
        pool.pending.index_fill_(0, slots, 0)
        if self.model.ops.reads_dead_rows:
            pool.clear_rings(slots)

    def _spoil(self, freed_slots: Sequence[int]) -> None:
        """Fill scratch, pads and what the last step has left with nonsense."""
        self._buffers.spoil(freed_slots)
        for scratch in (self.caches.scratch, self.caches.attention_scratch):
            for tensor in scratch or ():
                tensor.fill_(torch.nan)

    def counters(self, preempted: Preempted) -> Counters:
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
            **asdict(preempted),
            state_bytes_read=mamba.bytes_read(self._decode_rows, replayed),
            state_bytes_written=mamba.bytes_written(self._decode_rows, writes),
            kv_bytes_moved=(self._kv_read + self._decode_rows) * kv.bytes_per_token,
        )


def _row(request: Request, count: int) -> Row:
    """A chunk of ``count`` tokens of a prefill."""
    assert request.slot is not None
    tokens, last = request.tokens(request.computed, count), request.computed + count == request.known
    return Row(tokens, request.computed, request.slot, request.blocks, wants_logits=last)
