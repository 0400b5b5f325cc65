"""What is verified: one mixer, its dtypes and interval, and the ops that run it; the shapes of released models.

The numbers are those of the models' ``config.json`` on Hugging Face.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch

from statewise.cache.spec import MambaSpec
from statewise.config import MambaConfig
from statewise.errors import ConfigError
from statewise.ops.backend import Needs, Ops
from statewise.ops.common import NO_LIMIT

# name -> heads, head dim, groups, state size
MODELS = {
    "nemotron-h-8b": (128, 64, 8, 128),  # nvidia/Nemotron-H-8B-Base-8K
    "nemotron-3-super-120b": (128, 64, 8, 128),  # nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16
    "codestral-mamba-7b": (128, 64, 8, 128),  # mistralai/Mamba-Codestral-7B-v0.1
    "nemotron-nano-9b-v2": (128, 80, 8, 128),  # nvidia/NVIDIA-Nemotron-Nano-9B-v2
    "nemotron-3-nano-30b": (64, 64, 8, 128),  # nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16
    "granite-4-h-small": (128, 64, 1, 128),  # ibm-granite/granite-4.0-h-small
    "granite-4-h-tiny": (48, 64, 1, 128),  # ibm-granite/granite-4.0-h-tiny, and -h-1b
    "granite-4-h-350m": (48, 32, 1, 128),  # ibm-granite/granite-4.0-h-350m
    "falcon-h1-34b": (32, 128, 2, 256),  # tiiuae/Falcon-H1-34B-Instruct
    "falcon-h1-7b": (24, 128, 1, 256),  # tiiuae/Falcon-H1-7B-Instruct
    "falcon-h1-1.5b": (48, 64, 1, 256),  # tiiuae/Falcon-H1-1.5B-Instruct
}
# One model of each kind; the names of the others with the same mixer are printed beside it.
DEFAULT = (
    "nemotron-h-8b",
    "nemotron-nano-9b-v2",
    "nemotron-3-nano-30b",
    "granite-4-h-small",
    "falcon-h1-34b",
    "falcon-h1-7b",
)
# For a look at the tool itself where there is no GPU.
TINY = {"tiny": (4, 32, 2, 16)}


@dataclass(frozen=True, kw_only=True)
class Target:
    """A mixer, how it is run, and by which ops (None: not resolved yet)."""

    name: str
    mamba: MambaConfig
    dtype: torch.dtype  # of the activations
    state_dtype: torch.dtype
    window: int
    device: torch.device
    eps: float = 1e-5
    ops: Ops | None = None

    @property
    def shape(self) -> str:
        """H,P,G,N, as ``--shape`` takes it."""
        m = self.mamba
        return f"{m.heads},{m.head_dim},{m.groups},{m.state_size}"

    @property
    def is_float32(self) -> bool:
        """Whether nothing is in 16 bits: errors then have a bound of their own."""
        return self.dtype == self.state_dtype == torch.float32

    @property
    def tested(self) -> Ops:
        """The ops under test."""
        assert self.ops is not None, "resolved by the command"
        return self.ops

    def spec(self, window: int | None = None, is_double: bool = False) -> MambaSpec:
        """The caches of one layer. window: another one than the target's. is_double: all of it in float64."""
        m = self.mamba
        return MambaSpec(
            layers=1,
            heads=m.heads,
            head_dim=m.head_dim,
            groups=m.groups,
            state_size=m.state_size,
            conv_width=m.conv_width,
            checkpoint_interval=self.window if window is None else window,
            state_dtype=torch.float64 if is_double else self.state_dtype,
            activation_dtype=torch.float64 if is_double else self.dtype,
        )

    def needs(self, max_batch: int) -> Needs:
        """What a backend is asked to run."""
        return Needs(
            mamba=self.mamba,
            dtype=self.dtype,
            state_dtype=self.state_dtype,
            checkpoint_interval=self.window,
            max_batch=max_batch,
        )

    def with_ops(self, ops: Ops) -> "Target":
        """The same, run by ``ops``."""
        return replace(self, ops=ops)


def mixer(heads: int, head_dim: int, groups: int, state_size: int) -> MambaConfig:
    """A mixer as every released model has it otherwise: convolution of width 4 with a bias, dt not clamped."""
    return MambaConfig(
        heads=heads,
        head_dim=head_dim,
        state_size=state_size,
        groups=groups,
        conv_width=4,
        dt_limit=NO_LIMIT,
        proj_bias=False,
        conv_bias=True,
    )


def read_shape(text: str) -> tuple[str, MambaConfig]:
    """A name of MODELS or H,P,G,N. Returns the names of all models of that shape, and the mixer.

    Raises ConfigError for anything else.
    """
    known = MODELS | TINY
    if text in known:
        same = [name for name, numbers in known.items() if numbers == known[text] and name != text]
        return ", ".join([text, *same]), mixer(*known[text])
    return f"shape {text}", mixer(*_numbers(text, known))


def _numbers(text: str, known: Iterable[str]) -> tuple[int, int, int, int]:
    parts = text.split(",")
    numbers = [int(part) for part in parts if part.strip().isdecimal()]
    if len(parts) != 4 or len(numbers) != 4 or math.prod(numbers) == 0:
        raise ConfigError(f"shape is {text!r}, expected HEADS,HEAD_DIM,GROUPS,STATE_SIZE or one of {', '.join(known)}")
    heads, head_dim, groups, state_size = numbers
    if heads % groups:
        raise ConfigError(f"shape is {text!r}: {heads} heads do not divide into {groups} groups")
    return heads, head_dim, groups, state_size
