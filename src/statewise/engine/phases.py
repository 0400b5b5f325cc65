"""NVTX ranges around the phases of a step, for Nsight Systems."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch

# phase(name) as a context. Names: schedule, move, prefill, decode, sample, collect.
Phases = Callable[[str], AbstractContextManager[None]]
_NOTHING = nullcontext()


def phases(enabled: bool) -> Phases:
    """Ranges that are marked, or that cost nothing. enabled: needs a CUDA build of PyTorch."""
    return torch.cuda.nvtx.range if enabled else unmarked


def unmarked(_: str) -> AbstractContextManager[None]:
    """No range."""
    return _NOTHING
