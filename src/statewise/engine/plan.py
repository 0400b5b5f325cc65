"""The memory plan: how many requests and tokens the budget holds. Needs no weights, and no device to plan for one."""

from dataclasses import dataclass, replace

import torch

from statewise.cache.spec import KVSpec, MambaSpec
from statewise.config import EngineConfig, ModelConfig, format_bytes
from statewise.engine import fixed, graphs
from statewise.engine.budget import Costs, budget_of, split
from statewise.engine.buffers import DecodeBuffers
from statewise.engine.token_counts import TokenCounts
from statewise.errors import ConfigError
from statewise.layers.moe import with_product
from statewise.models.hybrid import HybridModel
from statewise.ops.backend import Needs, Ops, resolve
from statewise.ops.mixer_step.scratch import Scratch
from statewise.ops.paged_attention.scratch import Scratch as AttentionScratch

# What the runner counts on the device, in int64: states written, ring rows replayed.
COUNTERS = 2
ScratchDims = tuple[int, int, int, int, int, torch.dtype]


@dataclass(frozen=True)
class Plan:
    """What will be allocated, and why. Bytes planned are bytes allocated."""

    mamba: MambaSpec
    kv: KVSpec
    slots: int
    blocks: int
    max_context: int | None  # tokens of one request; None: no limit
    step_tokens: int  # at most, decode rows and prompts together
    vocab_size: int
    dtype: torch.dtype
    stochastic_rounding: bool  # of the states that decode steps write
    weight_bytes: int
    ops: Ops
    backend_reason: str
    budget: int  # bytes that all caches may take
    wanted_slots: int
    wanted_context: int | None
    attention_heads: int = 0  # query heads
    graph_sizes: tuple[int, ...] = ()  # decode steps are padded to these, and captured where there is a GPU
    graph_reason: str = "none"  # for people: which, or why none
    graph_row_bytes: int = 0  # of what a captured step allocates, a row; an estimate
    product_reason: str | None = None  # which product experts take, and why; None: no experts
    fixed_rows: int | None = None  # of every decode pass, as `statewise.engine.fixed` says; None: as many as there are

    @property
    def backend(self) -> str:
        """The backend that runs."""
        return self.ops.name

    @property
    def slot_bytes(self) -> int:
        """Bytes of the states of all slots, with their rings, windows and trackers."""
        return self.slots * self.mamba.bytes_per_slot

    @property
    def block_bytes(self) -> int:
        """Bytes of all KV blocks."""
        return self.blocks * self.kv.bytes_per_block

    @property
    def scratch_dims(self) -> ScratchDims:
        """All that `Scratch` asks for but the rows."""
        mamba = self.mamba
        return (
            mamba.heads,
            mamba.head_dim,
            mamba.groups,
            mamba.state_size,
            mamba.checkpoint_interval,
            mamba.activation_dtype,
        )

    @property
    def attention_scratch_dims(self) -> tuple[int, int, int]:
        """All that the scratch of attention asks for but the rows: query heads, their size, tokens of a row."""
        return self.attention_heads, self.kv.head_dim, self.table * self.kv.block_size

    @property
    def has_scratch(self) -> bool:
        """Whether the backend works in scratch of ours, for as many decode rows as there are slots."""
        return self.ops.name == "triton"

    @property
    def has_attention_scratch(self) -> bool:
        """The same of attention layers."""
        return self.ops.capturable and self.kv.layers > 0

    @property
    def table(self) -> int:
        """The most KV blocks of one request, before the pool sets a limit."""
        if self.wanted_context is not None:
            return self.kv.blocks_for(self.wanted_context)
        return self.budget // self.kv.bytes_per_block if self.kv.layers else 0

    @property
    def pass_rows(self) -> int:
        """The most rows of a decode pass, pads among them."""
        return self.fixed_rows or self.slots

    @property
    def costs(self) -> Costs:
        """Bytes of a slot with all that goes with it, of a block, and of what there is once."""
        row = Scratch.size(1, *self.scratch_dims) if self.has_scratch else 0
        row += AttentionScratch.size(1, *self.attention_scratch_dims) if self.has_attention_scratch else 0
        row += self.graph_row_bytes + self._buffer_bytes(0, 1) - self._buffer_bytes(0, 0)
        slot = self.mamba.bytes_per_slot + TokenCounts.bytes_per_slot(self.vocab_size)
        slot += self._buffer_bytes(1, 0) - self._buffer_bytes(0, 0)
        fixed = self._buffer_bytes(0, 0) + (COUNTERS + self.stochastic_rounding) * torch.int64.itemsize
        if self.fixed_rows is not None:
            return Costs(slot, self.kv.bytes_per_block, fixed + self.fixed_rows * row)
        return Costs(slot + row, self.kv.bytes_per_block, fixed)

    def _buffer_bytes(self, slots: int, rows: int) -> int:
        return DecodeBuffers.size(slots, rows, self.table, self.vocab_size, self.dtype)

    @property
    def cache_bytes(self) -> int:
        """Bytes of everything but the weights that is allocated at the start."""
        return self.costs.of(self.slots, self.blocks)

    def at_once(self, tokens: int) -> tuple[int, str]:
        """How many requests of so many tokens run at once, and what keeps it from being more."""
        if self.max_context is not None and tokens > self.max_context:
            return 0, f"context of {self.max_context}"
        by_blocks = self.blocks // self.kv.blocks_for(tokens) if self.kv.layers else self.slots
        if by_blocks < self.slots:
            return by_blocks, "KV blocks"
        return self.slots, "max_batch" if self.slots == self.wanted_slots else "state slots"

    def most_at_once(self, tokens: int) -> int:
        """How many it would be with any max_batch and the budget split for just that length."""
        costs = self.costs
        return (self.budget - costs.fixed) // (costs.slot + self.kv.blocks_for(tokens) * costs.block)

    def rows(self) -> list[tuple[str, str]]:
        """The plan for people: (name, value)."""
        mamba, kv, interval = self.mamba, self.kv, self.mamba.checkpoint_interval
        writes = "every token (the plain step)" if interval == 1 else f"once in {interval} tokens"
        writes += ", rounded stochastically" if self.stochastic_rounding else ""
        beside = self.cache_bytes - self.slot_bytes - self.block_bytes
        rows = [
            ("weights", f"{format_bytes(self.weight_bytes)} in {_name(self.dtype)}"),
            ("slots", f"{self.slots} x {format_bytes(mamba.bytes_per_slot)} = {format_bytes(self.slot_bytes)}"),
            ("state", f"{format_bytes(mamba.state_bytes)} a request in {_name(mamba.state_dtype)}, written {writes}"),
        ]
        if kv.layers:
            each = f"{self.blocks} x {format_bytes(kv.bytes_per_block)} = {format_bytes(self.block_bytes)}"
            rows.append(("KV blocks", f"{each}, {kv.block_size} tokens each"))
        rows.append(
            ("beside", f"{format_bytes(beside)}: logits, token counts{', scratch' if self.has_scratch else ''}")
        )
        rows.append(("graphs", self.graph_reason))
        rows.append(("caches", f"{format_bytes(self.cache_bytes)} of {format_bytes(self.budget)}"))
        limit = "no limit" if self.max_context is None else f"{self.max_context} tokens a request"
        if self.max_context is not None and self.wanted_context and self.max_context < self.wanted_context:
            limit += f", fewer than {self.wanted_context}: the budget"
        rows += [("context", limit), ("backend", self.backend_reason)]
        if self.product_reason is not None:
            rows.append(("products", f"of experts: {self.product_reason}"))
        return [*rows, ("warning", self.warning)] if self.warning else rows

    @property
    def warning(self) -> str | None:
        """What the user may not have expected: fewer slots than max_batch."""
        if self.slots >= self.wanted_slots:
            return None
        return f"max_batch is {self.wanted_slots}, but there are {self.slots} slots: no more requests run at once"

    def lines(self) -> list[str]:
        """The rows as lines of text."""
        return [f"{name:10}{value}" for name, value in self.rows()]


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def make_plan(model: ModelConfig, config: EngineConfig) -> Plan:
    """Split the budget between slots and KV blocks, as `statewise.engine.budget` says.

    Raises MemoryBudgetError if one slot with one block does not fit, ConfigError for options that do not go with the
    model or the device, BackendError for a backend that cannot run.
    """
    dtype = _dtype(model, config)
    if config.deterministic:
        least = config.max_batch + fixed.longest_piece(device_of(config))
        if config.max_batched_tokens < least:
            raise ConfigError(
                f"max_batched_tokens is {config.max_batched_tokens}, but with deterministic a prompt runs in whole "
                f"pieces beside the decode rows; expected at least {least}"
            )
    mamba, kv = _mamba_spec(model, config, dtype), _kv_spec(model, config, dtype)
    if config.max_context and model.max_context and config.max_context > model.max_context:
        raise ConfigError(f"max_context is {config.max_context}, but the model's own limit is {model.max_context}")
    longest = config.max_context or model.max_context
    ops, reason = resolve(config.backend, device_of(config), needs_of(model, config))
    product = None
    if (moe := model.moe) is not None:
        sizes = (model.hidden_size, moe, dtype, device_of(config))
        ops, product = with_product(ops, *sizes, deterministic=config.deterministic)
    with torch.device("meta"):
        weights = HybridModel(model, ops)
    weight_bytes = sum(p.numel() for p in weights.parameters()) * dtype.itemsize
    budget = budget_of(config, device_of(config), weight_bytes)
    plan = Plan(
        mamba=mamba,
        kv=kv,
        slots=0,
        blocks=0,
        max_context=longest,
        step_tokens=config.max_batched_tokens,
        vocab_size=model.vocab_size,
        dtype=dtype,
        stochastic_rounding=config.stochastic_rounding,
        weight_bytes=weight_bytes,
        ops=ops,
        backend_reason=reason,
        product_reason=product,
        budget=budget.count,
        wanted_slots=config.max_batch,
        wanted_context=longest,
        attention_heads=model.attention.heads if model.attention else 0,
        fixed_rows=fixed.rows_of(ops.name, device_of(config)) if config.deterministic else None,
    )
    why_none = graphs.obstacle(config, ops)
    if why_none is None:
        plan = replace(plan, graph_row_bytes=graphs.activation_bytes(model, dtype))
    slots, blocks = split(config, budget, plan.costs, kv, longest)
    if kv.layers:
        longest = min(longest or blocks * kv.block_size, blocks * kv.block_size)
    captured = () if why_none else graphs.sizes(slots)
    if plan.fixed_rows is not None:
        captured = (plan.fixed_rows,)
    if why_none is None:
        about = format_bytes((plan.fixed_rows or slots) * plan.graph_row_bytes)
        why_none = f"{len(captured)} decode steps, of {captured[0]} to {captured[-1]} rows, about {about}"
    return replace(plan, slots=slots, blocks=blocks, max_context=longest, graph_sizes=captured, graph_reason=why_none)


def needs_of(model: ModelConfig, config: EngineConfig) -> Needs:
    """What the ops will be asked to run."""
    return Needs(
        mamba=model.mamba,
        dtype=_dtype(model, config),
        state_dtype=getattr(torch, config.state_dtype),
        checkpoint_interval=config.checkpoint_interval,
        max_batch=config.max_batch,
        stochastic_rounding=config.stochastic_rounding,
    )


def device_of(config: EngineConfig) -> torch.device:
    """The device that the options name. Raises ConfigError for one that is neither cpu nor the first GPU."""
    try:
        device = torch.device(config.device)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise ConfigError(f"device is {config.device!r}, expected cpu or cuda")
    if device.type == "cuda" and device.index:  # kernels and events go to the current device, which is the first
        raise ConfigError(f"device is {config.device!r}, expected cuda; CUDA_VISIBLE_DEVICES says which GPU that is")
    return device


def _dtype(model: ModelConfig, config: EngineConfig) -> torch.dtype:
    if config.dtype != "auto":
        return getattr(torch, config.dtype)
    return torch.float32 if device_of(config).type == "cpu" else model.dtype


def _mamba_spec(model: ModelConfig, config: EngineConfig, dtype: torch.dtype) -> MambaSpec:
    return MambaSpec(
        layers=model.count("mamba"),
        heads=model.mamba.heads,
        head_dim=model.mamba.head_dim,
        groups=model.mamba.groups,
        state_size=model.mamba.state_size,
        conv_width=model.mamba.conv_width,
        checkpoint_interval=config.checkpoint_interval,
        state_dtype=getattr(torch, config.state_dtype),
        activation_dtype=dtype,
    )


def _kv_spec(model: ModelConfig, config: EngineConfig, dtype: torch.dtype) -> KVSpec:
    attention = model.attention
    return KVSpec(
        layers=model.count("attention"),
        kv_heads=attention.kv_heads if attention else 1,
        head_dim=attention.head_dim if attention else 1,
        block_size=config.kv_block_size,
        dtype=dtype,
    )
