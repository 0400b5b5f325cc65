"""CUDA graphs of whole decode steps, at a few sizes."""

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import torch

Result = TypeVar("Result")


def sizes(most: int) -> tuple[int, ...]:
    """Ascending sizes up to ``most``: a step is padded by less than a third, and by no more than 64 rows."""
    found = [1, 2, 4]
    while found[-1] < most:
        found.append(found[-1] + max(4, min(64, 1 << max(0, found[-1].bit_length() - 2))))
    return (*(size for size in found if size < most), most)


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
