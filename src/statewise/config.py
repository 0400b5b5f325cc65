"""What the user asks for (`EngineConfig`) and what a checkpoint is (`ModelConfig`), frozen and checked on creation."""

import difflib
import re
from dataclasses import dataclass, field, fields
from fractions import Fraction
from typing import Any, TypeGuard

import torch

from statewise.errors import ConfigError

MAX_CHECKPOINT_INTERVAL = 64
STATE_DTYPES = ("float32", "float16", "bfloat16", "float64")
ROUNDED_DTYPES = ("float16", "bfloat16")
PREEMPT = ("recompute", "swap")
SWAP_MEMORY = "4GiB"
DTYPES = ("auto", "float32", "bfloat16", "float16", "float64")
_UNITS = {
    "": 1,
    "b": 1,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
}


@dataclass(frozen=True, kw_only=True)
class MambaConfig:
    """One Mamba-2 mixer. Names as in the design: H heads of P channels, N states, G groups, width K."""

    heads: int
    head_dim: int
    state_size: int
    groups: int
    conv_width: int
    dt_limit: tuple[float, float]
    proj_bias: bool
    conv_bias: bool
    norm: bool = True  # the gated RMS norm in front of the output projection; False: the gate alone

    @property
    def inner_size(self) -> int:
        """Channels of x and z, H * P."""
        return self.heads * self.head_dim

    @property
    def conv_channels(self) -> int:
        """Channels of the convolution: x, B and C side by side."""
        return self.inner_size + 2 * self.groups * self.state_size


@dataclass(frozen=True, kw_only=True)
class RopeConfig:
    """Rotary position embedding of the first ``rotary_dim`` channels of a head."""

    rotary_dim: int  # even
    theta: float  # channel pair i turns by theta ** (-2 i / rotary_dim) radians a position


@dataclass(frozen=True, kw_only=True)
class AttentionConfig:
    """One attention layer."""

    heads: int
    kv_heads: int
    head_dim: int
    scale: float | None = None  # of the scores; None: 1 / sqrt(head_dim)
    rope: RopeConfig | None = None  # None: no position encoding


@dataclass(frozen=True, kw_only=True)
class MLPConfig:
    """One MLP: up projection, activation, down projection."""

    inner_size: int
    bias: bool
    gated: bool = False  # SiLU(gate) * up, of an up projection twice as wide; else the squared ReLU


@dataclass(frozen=True, kw_only=True)
class SigmoidRouter:
    """The router of DeepSeek-V3: sigmoids of the scores; with a learned bias they choose, without it they weigh."""

    groups: int  # of experts, equally many side by side
    chosen_groups: int  # those with the largest sums of their two best; experts come from these alone
    normalised: bool  # whether a token's weights add up to `scale`
    scale: float


@dataclass(frozen=True, kw_only=True)
class MoEConfig:
    """One mixture of experts: a router sends each token to some of many MLPs, and adds them up by its weights."""

    experts: int
    chosen: int  # experts of a token
    inner_size: int  # of one expert
    gated: bool  # as in MLPConfig; experts have no biases
    shared: MLPConfig | None  # an MLP that every token takes besides
    sigmoid: SigmoidRouter | None = None  # None: the weights are a softmax over the scores of the chosen


@dataclass(frozen=True)
class Factor:
    """What some weights are multiplied by as they are loaded: the muP multipliers of Falcon-H1."""

    ending: str  # of the weights' names
    sections: tuple[tuple[int, float], ...]  # so many rows by so much, one section after the other


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A hybrid model: a pattern of layers and the size of each kind."""

    architecture: str
    vocab_size: int
    hidden_size: int
    pattern: tuple[str, ...]  # of "mamba", "attention", "mlp", "moe"; "mamba+attention": side by side
    mamba: MambaConfig
    attention: AttentionConfig | None
    mlp: MLPConfig | None
    moe: MoEConfig | None = None
    norm_eps: float
    residual_in_fp32: bool
    tie_embeddings: bool
    max_context: int | None  # tokens; None: no limit of its own
    dtype: torch.dtype  # of the checkpoint
    eos_token_ids: tuple[int, ...]
    embedding_multiplier: float = 1.0  # of the embeddings
    residual_multiplier: float = 1.0  # of what each block adds to the residual stream
    logits_divisor: float = 1.0
    factors: tuple[Factor, ...] = ()

    def count(self, kind: str, before: int | None = None) -> int:
        """How many layers are or have a ``kind``, of all or of those in front of layer ``before``."""
        return sum(kind in layer.split("+") for layer in self.pattern[:before])


def option(default: Any, meaning: str, hashed: bool = True) -> Any:
    """A dataclass field that also knows what it means: the command line builds its flag and its help from it."""
    return field(default=default, hash=None if hashed else False, metadata={"help": meaning})


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """How the engine runs. Every field is an option of `LLM` and of the command line."""

    checkpoint_interval: int = option(
        16, "tokens between two writes of a state, 1 to 64; 1 is the plain step, which writes at every token"
    )
    state_dtype: str = option("float32", "dtype of the SSM states: float32, float16, bfloat16, float64")
    stochastic_rounding: bool = option(
        False,
        "round float16 and bfloat16 states up or down at random when a decode step writes them, so that small updates "
        "are kept on average; a run with the same requests repeats itself",
    )
    dtype: str = option("auto", "dtype of weights and activations; auto: the checkpoint's on a GPU, float32 on a CPU")
    max_batch: int = option(64, "most requests running at once")
    max_batched_tokens: int = option(2048, "most tokens in one step, decode rows and prompt chunks together")
    memory: int | float | str = option(
        "1GiB",
        "budget of the caches (states, KV blocks and what belongs to them): bytes, a size like 512MiB or 80GiB, or a "
        "share of the GPU's free memory like 0.9 or 90%, of which the weights take their part",
    )
    typical_length: int = option(
        512, "tokens of a typical request: how the budget is split between state slots and KV blocks"
    )
    state_slots: int | None = option(
        None, "state slots, one for each running request; default: split by typical_length, at most max_batch"
    )
    kv_blocks: int | None = option(
        None, "blocks of the attention layers' cache; default: what the budget leaves beside the slots"
    )
    max_context: int | None = option(
        None,
        "most tokens of a request, prompt and answer; default: what the model and the budget allow",
    )
    kv_block_size: int = option(16, "tokens in one block of the attention layers' cache")
    backend: str = option("auto", "implementation of the ops: auto, triton, torch, flashinfer, reference")
    device: str = option("cpu", "cpu or cuda: the first GPU that CUDA_VISIBLE_DEVICES names")
    cuda_graphs: bool | None = option(
        None, "capture decode steps as CUDA graphs; default: on a GPU, where the backend allows it"
    )
    async_scheduling: bool | None = option(
        None, "plan the next step while one runs, and take in its tokens one step later; default: on a GPU"
    )
    preempt: str = option(
        "recompute",
        "what becomes of a request that makes room for an older one: recompute (its tokens run again) or swap (its "
        "state and KV blocks wait on the host)",
    )
    swap_memory: int | float | str = option(
        SWAP_MEMORY,
        "with preempt swap: most memory on the host for requests that are swapped out; what does not fit is recomputed",
    )
    deterministic: bool = option(
        False,
        "a request's tokens do not depend on what else runs, on the slots, the chunks or preemption: steps of fixed "
        "shapes, and preempted requests are swapped out, however many",
    )
    nvtx: bool = option(False, "mark the phases of each step for Nsight Systems")
    poison: bool = option(
        False, "debugging: fill unused and freed cache memory with NaN, check the pools after every step"
    )

    def __post_init__(self) -> None:
        for item in fields(self):
            if item.type in (bool, bool | None):
                _expect_switch(item.name, getattr(self, item.name), can_be_none=item.type is not bool)
        if not isinstance(self.device, str):
            raise ConfigError(f"device is {self.device!r}, expected cpu or cuda")
        _expect_range("checkpoint_interval", self.checkpoint_interval, 1, MAX_CHECKPOINT_INTERVAL)
        _expect_choice("state_dtype", self.state_dtype, STATE_DTYPES)
        _expect_choice("dtype", self.dtype, DTYPES)
        if self.stochastic_rounding and self.state_dtype not in ROUNDED_DTYPES:
            raise ConfigError(
                f"stochastic_rounding is on and state_dtype is {self.state_dtype}, "
                f"expected one of {', '.join(ROUNDED_DTYPES)}: nothing else is rounded"
            )
        _expect_range("max_batch", self.max_batch, 1)
        _expect_range("typical_length", self.typical_length, 1)
        _expect_range("kv_block_size", self.kv_block_size, 1)
        _expect_range("max_batched_tokens", self.max_batched_tokens, 1)
        if self.max_context is not None:
            _expect_range("max_context", self.max_context, 2)
        for name in ("state_slots", "kv_blocks"):
            if getattr(self, name) is not None:
                _expect_range(name, getattr(self, name), 1)
        if self.state_slots is not None and self.state_slots > self.max_batch:
            raise ConfigError(
                f"state_slots is {self.state_slots}, expected at most max_batch = {self.max_batch}: no more run at once"
            )
        if self.max_batched_tokens < self.max_batch:
            raise ConfigError(
                f"max_batched_tokens is {self.max_batched_tokens}, expected at least max_batch = {self.max_batch}"
            )
        parse_memory(self.memory)
        _expect_choice("preempt", self.preempt, PREEMPT)
        _ = self.swap_bytes
        if self.swap_memory != SWAP_MEMORY and (self.deterministic or self.preempt != "swap"):
            why = f"preempt is {self.preempt}: nothing is swapped out"
            if self.deterministic:
                why = "deterministic is on: no preempted request is recomputed"
            raise ConfigError(f"swap_memory is {self.swap_memory}, but {why}")
        if self.deterministic and self.stochastic_rounding:
            raise ConfigError("deterministic is on, and so is stochastic_rounding, which depends on the step")
        if self.nvtx and self.device.partition(":")[0] == "cpu":
            raise ConfigError("nvtx is on, but the device is cpu: Nsight Systems watches GPUs")

    @property
    def swap_bytes(self) -> int:
        """``swap_memory`` in bytes. Raises ConfigError for what is none."""
        count = parse_memory(self.swap_memory, "swap_memory")
        if isinstance(count, float):
            raise ConfigError(f"swap_memory is {self.swap_memory!r}, a share; expected bytes or a size like 4GiB")
        return count

    @classmethod
    def of(cls, **options: Any) -> "EngineConfig":
        """Build from options. Raises ConfigError for an unknown one, naming the nearest."""
        known = [f.name for f in fields(cls)]
        for name in options:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"; did you mean {near[0]}?" if near else f"; options are {', '.join(known)}"
                raise ConfigError(f"unknown option {name!r}{hint}")
        return cls(**options)


def parse_memory(size: int | float | str, name: str = "memory") -> int | float:
    """Bytes, an int, of 123, "123", "64KiB", "1.5 GiB", "2GB"; a share up to 1, a float, of 0.9, "0.9", "90%".

    A number up to 1 is a share if it has a point: 1 is a byte, 1.0 everything. Raises ConfigError for anything else,
    zero included.
    """
    match = re.fullmatch(r"\s*(\d{1,400}(?:\.\d{1,400})?)\s*([a-z]*|%)\s*", str(size).lower())
    if match is None or match[2] not in (*_UNITS, "%"):
        raise ConfigError(
            f"{name} is {size!r}, expected bytes or a size like 512MiB or 80GiB, or a share of the GPU like 0.9 or 90%"
        )
    number, unit = Fraction(match[1]), match[2]
    if unit == "%" or (unit == "" and "." in match[1] and number <= 1):
        share = number / 100 if unit == "%" else number
        if not 0 < share <= 1:
            raise ConfigError(f"{name} is {size!r}, expected a share above 0 and at most 100%")
        return float(share)
    count = int(number * _UNITS[unit])
    if count < 1:
        raise ConfigError(f"{name} is {size!r}, expected more than zero bytes")
    return count


def format_bytes(count: float) -> str:
    """A size for people: 512 B, 3.2 KiB, 1.50 GiB."""
    units = iter(("B", "KiB", "MiB", "GiB", "TiB"))
    unit = next(units)
    while count >= 1024 and unit != "TiB":
        count, unit = count / 1024, next(units)
    return f"{count:.3g} {unit}" if count < 100 else f"{count:.0f} {unit}"


def is_int(value: object) -> TypeGuard[int]:
    """Whether ``value`` is a whole number; True and False are none."""
    return isinstance(value, int) and not isinstance(value, bool)


def _expect_range(name: str, value: object, least: int, most: int | None = None) -> None:
    bounds = f"at least {least}" if most is None else f"{least} to {most}"
    if not is_int(value) or value < least or (most is not None and value > most):
        raise ConfigError(f"{name} is {value!r}, expected a whole number, {bounds}")


def _expect_switch(name: str, value: object, can_be_none: bool) -> None:
    """Text is none: "false" would be on."""
    if not isinstance(value, bool) and not (value is None and can_be_none):
        raise ConfigError(f"{name} is {value!r}, expected True or False{', or None' if can_be_none else ''}")


def _expect_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigError(f"{name} is {value!r}, expected one of {', '.join(choices)}")
