"""CUDA graphs of whole decode steps: at which sizes, what they take, and the capture."""

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import torch

from statewise.config import EngineConfig, ModelConfig
from statewise.errors import ConfigError
from statewise.ops.backend import Ops

Result = TypeVar("Result")


def sizes(most: int) -> tuple[int, ...]:
    """Ascending sizes up to ``most``: a step is padded by less than a third, and by no more than 64 rows."""
    found = [1, 2, 4]
    while found[-1] < most:
        found.append(found[-1] + max(4, min(64, 1 << max(0, found[-1].bit_length() - 2))))
    return (*(size for size in found if size < most), most)


def obstacle(config: EngineConfig, ops: Ops) -> str | None:
    """Why no decode step is captured as a CUDA graph, or None. Raises ConfigError if that is asked for."""
    device, why = torch.device(config.device), None
    if device.type != "cuda":
        why = f"the device is {device.type}"
    elif not ops.capturable:
        why = f"the {ops.name} backend waits for the host"
    if config.cuda_graphs and why:
        raise ConfigError(f"cuda_graphs is on, but {why}")
    return "none: turned off" if config.cuda_graphs is False else why and f"none: {why}"


def activation_bytes(model: ModelConfig, dtype: torch.dtype) -> int:
    """About what a row's way through the layers allocates at once: the residual twice, norms, and the widest layer."""
    mamba, widths = model.mamba, [0]
    if model.mlp is not None:
        widths.append((4 if model.mlp.gated else 3) * model.mlp.inner_size)
    if model.moe is not None:  # rows of the chosen, what they become, and the gather back
        moe = model.moe
        widths.append(moe.chosen * (3 * model.hidden_size + (4 if moe.gated else 3) * moe.inner_size))
    if model.attention is not None:
        widths.append(2 * (model.attention.heads + 2 * model.attention.kv_heads) * model.attention.head_dim)
    widths.append(2 * mamba.inner_size + mamba.conv_channels + mamba.heads)
    residual = torch.float32.itemsize if model.residual_in_fp32 else dtype.itemsize
    return 2 * model.hidden_size * (residual + dtype.itemsize) + max(widths) * dtype.itemsize


class DecodeGraphs(Generic[Result]):
    """``run(size)`` captured at each size. A replay does what ``run`` does, and returns what it returned.

    What ``run`` returns must lie in memory of its own: all graphs share one pool for what they allocate, so a replay
    may overwrite what another graph has left there.
    """

    def __init__(self, run: Callable[[int], Result], sizes: Sequence[int]):
        """Captures at once. ``run`` must allow being run for nothing: it is, twice a size."""
        self.sizes = tuple(sorted(sizes))
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self._results: dict[int, Result] = {}
        pool = torch.cuda.graph_pool_handle()
        for size in reversed(self.sizes):  # the largest first: the others fit in what it leaves
            with torch.cuda.stream(torch.cuda.Stream()):
                run(size)  # compiles, and chooses the libraries' algorithms
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool):
                self._results[size] = run(size)
            self._graphs[size] = graph

    def replay(self, size: int) -> Result:
        """Run the step of one of ``sizes``."""
        self._graphs[size].replay()
        return self._results[size]
