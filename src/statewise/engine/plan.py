"""The memory plan: how many requests and tokens the budget holds. Pure arithmetic; needs no weights and no device."""

import math
from dataclasses import dataclass

import torch

from statewise.cache.spec import KVSpec, MambaSpec
from statewise.config import EngineConfig, ModelConfig, format_bytes
from statewise.errors import ConfigError, MemoryBudgetError
from statewise.models.hybrid import HybridModel
from statewise.ops.backend import Needs, Ops, resolve


@dataclass(frozen=True)
class Plan:
    """What will be allocated, and why. Bytes planned are bytes allocated."""

    mamba: MambaSpec
    kv: KVSpec
    slots: int
    blocks: int
    max_context: int | None  # tokens of one request; None: no limit
    dtype: torch.dtype
    stochastic_rounding: bool  # of the states that decode steps write
    weight_bytes: int
    ops: Ops
    backend_reason: str
    wanted_slots: int
    wanted_context: int | None

    @property
    def backend(self) -> str:
        """The backend that runs."""
        return self.ops.name

    @property
    def slot_bytes(self) -> int:
        """Bytes of all slots."""
        return self.slots * self.mamba.bytes_per_slot

    @property
    def block_bytes(self) -> int:
        """Bytes of all KV blocks."""
        return self.blocks * self.kv.bytes_per_block

    def rows(self) -> list[tuple[str, str]]:
        """The plan for people: (name, value)."""
        mamba, kv, interval = self.mamba, self.kv, self.mamba.checkpoint_interval
        writes = "every token (the plain step)" if interval == 1 else f"once in {interval} tokens"
        writes += ", rounded stochastically" if self.stochastic_rounding else ""
        fewer = f", fewer than max_batch {self.wanted_slots}: the budget" if self.slots < self.wanted_slots else ""
        rows = [
            ("weights", f"{format_bytes(self.weight_bytes)} in {_name(self.dtype)}"),
            ("slots", f"{self.slots} x {format_bytes(mamba.bytes_per_slot)} = {format_bytes(self.slot_bytes)}{fewer}"),
            ("state", f"{format_bytes(mamba.state_bytes)} a request in {_name(mamba.state_dtype)}, written {writes}"),
        ]
        if kv.layers:
            each = f"{self.blocks} x {format_bytes(kv.bytes_per_block)} = {format_bytes(self.block_bytes)}"
            rows.append(("KV blocks", f"{each}, {kv.block_size} tokens each"))
        limit = "no limit" if self.max_context is None else f"{self.max_context} tokens a request"
        if self.max_context is not None and self.wanted_context and self.max_context < self.wanted_context:
            limit += f", fewer than {self.wanted_context}: the budget"
        return [*rows, ("context", limit), ("backend", self.backend_reason)]

    def lines(self) -> list[str]:
        """The rows as lines of text."""
        return [f"{name:10}{value}" for name, value in self.rows()]


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def make_plan(model: ModelConfig, config: EngineConfig) -> Plan:
    """Split the budget between slots and KV blocks.

    A request is taken to need its slot and the blocks of ``typical_length`` tokens; as many as fit, at most max_batch,
    get a slot, and the rest of the budget goes to blocks, up to what max_batch requests of full length can use.
    Raises MemoryBudgetError if one slot with one block does not fit, BackendError for a backend that cannot run.
    """
    dtype = _dtype(model, config)
    mamba, kv = _mamba_spec(model, config, dtype), _kv_spec(model, config, dtype)
    budget = config.memory_bytes
    least = mamba.bytes_per_slot + kv.blocks_for(1) * kv.bytes_per_block
    if budget < least:
        raise MemoryBudgetError(
            f"memory is {config.memory} ({budget} bytes), but one request needs at least {least} bytes "
            f"({format_bytes(least)}): a slot of {mamba.bytes_per_slot} and {kv.blocks_for(1)} KV block"
        )
    if config.max_context and model.max_context and config.max_context > model.max_context:
        raise ConfigError(f"max_context is {config.max_context}, but the model's own limit is {model.max_context}")
    longest = config.max_context or model.max_context
    wanted = longest
    typical = min(config.typical_length, longest or config.typical_length)
    per_request = mamba.bytes_per_slot + kv.blocks_for(typical) * kv.bytes_per_block
    slots = max(1, min(config.max_batch, budget // per_request))
    blocks = 0
    if kv.layers:
        usable = slots * kv.blocks_for(longest) if longest else math.inf
        blocks = int(min((budget - slots * mamba.bytes_per_slot) // kv.bytes_per_block, usable))
        longest = min(longest or blocks * kv.block_size, blocks * kv.block_size)
    ops, reason = resolve(config.backend, device_of(config), needs_of(model, config))
    with torch.device("meta"):
        weights = HybridModel(model, ops)
    return Plan(
        mamba=mamba,
        kv=kv,
        slots=slots,
        blocks=blocks,
        max_context=longest,
        dtype=dtype,
        stochastic_rounding=config.stochastic_rounding,
        weight_bytes=sum(p.numel() for p in weights.parameters()) * dtype.itemsize,
        ops=ops,
        backend_reason=reason,
        wanted_slots=config.max_batch,
        wanted_context=wanted,
    )


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
    """The device that the options name. Raises ConfigError for one that is neither cpu nor cuda."""
    try:
        device = torch.device(config.device)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise ConfigError(f"device is {config.device!r}, expected cpu or cuda")
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
