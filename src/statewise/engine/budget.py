"""How many bytes the caches may take, and how many state slots and KV blocks they are. Pure arithmetic.

Only a budget that is a share of a GPU's memory looks at the GPU.
"""

from dataclasses import dataclass

import torch

from statewise.cache.spec import KVSpec
from statewise.config import EngineConfig, format_bytes, parse_memory
from statewise.errors import ConfigError, MemoryBudgetError


@dataclass(frozen=True)
class Budget:
    """Bytes for the caches, and where the number comes from, for people."""

    count: int
    origin: str


@dataclass(frozen=True)
class Costs:
    """Bytes of all that is allocated."""

    slot: int  # a state slot, with the rows of scratch and of token counts that go with it
    block: int  # a KV block
    fixed: int  # whatever there is once

    def of(self, slots: int, blocks: int) -> int:
        """Bytes of so many slots and blocks."""
        return self.fixed + slots * self.slot + blocks * self.block


def budget_of(config: EngineConfig, device: torch.device, weight_bytes: int) -> Budget:
    """The bytes that ``memory`` leaves for the caches. Of a share, the weights take their part first.

    Raises ConfigError for a share of a device that has no memory of its own or is not here, MemoryBudgetError if the
    weights alone need more.
    """
    memory = parse_memory(config.memory)
    if isinstance(memory, int):
        return Budget(memory, f"memory is {config.memory} ({memory} bytes)")
    share = f"memory is {config.memory}, a share of a GPU's free memory"
    if device.type == "cpu":
        raise ConfigError(f"{share}, but the device is cpu; expected bytes or a size like 8GiB")
    if not torch.cuda.is_available():
        raise ConfigError(f"{share}, but torch sees no GPU here; expected bytes or a size like 80GiB")
    free = free_memory(device)
    left = int(memory * free) - weight_bytes
    origin = f"memory is {config.memory} of the {format_bytes(free)} that are free, less the weights"
    if left < 1:
        raise MemoryBudgetError(f"{origin}, which alone take {format_bytes(weight_bytes)}")
    return Budget(left, f"{origin} ({left} bytes)")


def free_memory(device: torch.device) -> int:
    """Bytes of a GPU that this process could get: those that nobody has, and those that PyTorch holds unused."""
    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


def split(config: EngineConfig, budget: Budget, costs: Costs, kv: KVSpec, longest: int | None) -> tuple[int, int]:
    """State slots and KV blocks. What the user has fixed is as it is; the rest of the budget goes to the other.

    With neither fixed, a request is taken to need its slot and the blocks of ``typical_length`` tokens; as many as fit,
    at most max_batch, get a slot. Blocks are no more than all slots can use with requests of ``longest`` tokens.
    Raises MemoryBudgetError if that does not fit, with at least one slot and one block.
    """
    if config.kv_blocks is not None and not kv.layers:
        raise ConfigError(f"kv_blocks is {config.kv_blocks}, but the model has no attention layers")
    _expect_room(config, budget, costs, kv)
    typical = kv.blocks_for(min(config.typical_length, longest or config.typical_length))
    if config.state_slots is not None:
        slots = config.state_slots
    elif config.kv_blocks is not None:
        slots = min(config.max_batch, (budget.count - costs.of(0, config.kv_blocks)) // costs.slot)
    else:
        slots = min(config.max_batch, max(1, (budget.count - costs.fixed) // (costs.slot + typical * costs.block)))
    if config.kv_blocks is not None or not kv.layers:
        return slots, config.kv_blocks or 0
    blocks = (budget.count - costs.of(slots, 0)) // costs.block
    return slots, min(blocks, slots * kv.blocks_for(longest)) if longest else blocks


def _expect_room(config: EngineConfig, budget: Budget, costs: Costs, kv: KVSpec) -> None:
    slots, blocks = config.state_slots or 1, config.kv_blocks or kv.blocks_for(1)
    least = costs.of(slots, blocks)
    if budget.count < least:
        fixed = config.state_slots is not None or config.kv_blocks is not None
        raise MemoryBudgetError(
            f"{budget.origin}, but {'what is asked for' if fixed else 'one request'} needs at least {least} bytes "
            f"({format_bytes(least)}): {slots} x {costs.slot} bytes of slots, {blocks} x {costs.block} of KV blocks"
        )
