"""Where the time of a decode step goes: by kind of layer, and how long the device waits for the host.

Shares are of the time that the device works, in eager steps, since a graph does not say which layer a kernel is of. The
gap is that of the engine as it was timed, graphs and all; the profiler itself can only widen it.
"""

import time
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import Any

import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function

from statewise.bench.decode import Run
from statewise.config import MAX_CHECKPOINT_INTERVAL, EngineConfig
from statewise.errors import BackendError
from statewise.models.hybrid import HybridModel

_PREFIX = "statewise::"
REST = "head, sampling and the rest"
# Steps that are looked at for the gap.
GAP_STEPS = 16
# Microseconds. From the end of a kernel to the start of the next in a graph it is one or two.
SEAM = 10.0
# Tokens that a request needs for all that is looked at here: an interval of steps, or those of the gap.
EXTRA_TOKENS = MAX_CHECKPOINT_INTERVAL + 8
_GRAPHS = ("cuda_graphs", "async_scheduling")


def eager(config: EngineConfig) -> EngineConfig:
    """The same without what hides a step's layers."""
    off: dict[str, Any] = {item.name: False for item in fields(config) if item.name in _GRAPHS}
    return replace(config, **off)


def host_gap(run: Run) -> float | None:
    """The share of some steps in which the GPU waits for the host; None on a CPU, or if the profiler sees no kernel.

    That is where nothing runs for longer than `SEAM`: between two kernels of a graph there is always a moment.
    """
    if run.device.type != "cuda":
        return None
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as found:
        run.steps(GAP_STEPS)
    spans = [(e.time_range.start, e.time_range.end) for e in found.events() if e.device_type == DeviceType.CUDA]
    if not spans:
        return None
    return waits(spans, SEAM) / (max(end for _, end in spans) - min(start for start, _ in spans))


def waits(spans: list[tuple[float, float]], least: float) -> float:
    """The length of all stretches of at least ``least`` between the first and the last that no interval covers."""
    total, reached = 0.0, min(start for start, _ in spans)
    for start, end in sorted(spans):
        if start - reached >= least:
            total += start - reached
        reached = max(reached, end)
    return total


def shares(run: Run) -> dict[str, float]:
    """Shares of an eager step by kind of layer, norms and residual sums within; they add up to 1.

    On a GPU they are of the time in which any kernel runs, on a CPU of the wall clock. Raises BackendError if the
    profiler sees no kernel.
    """
    on_gpu = run.device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    run.warm_up()
    run.prefill()
    run.steps(1)
    with _ranges(run.engine.runner.model) as kinds, profile(activities=activities, acc_events=True) as found:
        begin = time.perf_counter()
        run.steps(run.engine.config.checkpoint_interval)
        wall = (time.perf_counter() - begin) * 1e6
    run.end()
    if not on_gpu:
        spent = dict.fromkeys(kinds, 0.0)
        for event in found.events():
            if event.name.startswith(_PREFIX):
                spent[event.name.removeprefix(_PREFIX)] += event.cpu_time_total
        return _as_shares(spent, wall)
    on_device = [event for event in found.events() if event.device_type == DeviceType.CUDA]
    ranges = [
        (event.time_range.start, event.time_range.end, event.name.removeprefix(_PREFIX))
        for event in on_device
        if event.name.startswith(_PREFIX)
    ]
    kernels = [(e.time_range.start, e.time_range.end) for e in on_device if not e.name.startswith(_PREFIX)]
    if not kernels or not ranges:
        raise BackendError("the profiler sees no kernel on this GPU")
    own = own_times(kernels)
    return _as_shares(attributed(ranges, own, kinds), sum(time_spent for _, time_spent in own))


def own_times(kernels: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Every kernel's start and what it adds to the time in which any runs. kernels: starts and ends, in any order.

    By programmatic dependent launch a kernel starts while the one in front still runs, and waits inside for its end.
    That wait is the other's time: a kernel counts from the latest end of those that started before it.
    """
    own, reached = [], float("-inf")
    for start, end in sorted(kernels):
        own.append((start, max(0.0, end - max(start, reached))))
        reached = max(reached, end)
    return own


def attributed(
    ranges: list[tuple[float, float, str]], own: list[tuple[float, float]], kinds: list[str]
) -> dict[str, float]:
    """The own times of kernels by the latest range that has begun where they start, if it has not ended.

    ranges: start, end, kind. Each is a layer's: from the start of its first kernel to the latest end of its kernels.
    own: starts and times, as of `own_times`.  By time and not by who launched it: the profiler does not know that of
    every kernel.

    Kernels of a stream start in their order, early or not. So a layer's first kernel may start before the range in
    front has ended, but its own range begins with it, and that is the latest. What belongs to no layer and starts early
    would count for the layer in front; the embedding's and the head's first kernels are PyTorch's, which do not.
    """
    ranges = sorted(ranges)
    starts = [start for start, _, _ in ranges]
    spent = dict.fromkeys(kinds, 0.0)
    for start, time_spent in own:
        place = bisect_right(starts, start) - 1
        if place >= 0 and start < ranges[place][1]:
            spent[ranges[place][2]] += time_spent
    return spent


def _as_shares(spent: dict[str, float], total: float) -> dict[str, float]:
    result = {kind: time_spent / total for kind, time_spent in spent.items()}
    return result | {REST: 1 - sum(result.values())}


@contextmanager
def _ranges(model: HybridModel) -> Iterator[list[str]]:
    """Mark every block with its kind while the context lasts. Yields the kinds."""
    open_ranges: list[record_function] = []
    handles = []

    def enter(block: torch.nn.Module, _: object) -> None:
        open_ranges.append(record_function(f"{_PREFIX}{block.kind}"))
        open_ranges[-1].__enter__()

    def leave(*_: object) -> None:
        open_ranges.pop().__exit__(None, None, None)

    for block in model.layers:
        handles += [block.register_forward_pre_hook(enter), block.register_forward_hook(leave)]
    try:
        yield list(dict.fromkeys(model.config.pattern))
    finally:
        for handle in handles:
            handle.remove()
