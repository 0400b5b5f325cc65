"""What bounds a decode step of a whole model: the fewest bytes that it moves, and how fast this device moves them."""

import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from statewise.cache.window import predicted_replays
from statewise.config import ModelConfig, MoEConfig
from statewise.engine.plan import Plan

# Bytes a second that a kernel which only reads gets there; copies are slower.
READ_BANDWIDTH = {"H200": 4.4e12}
COPIED = {"cuda": 2**31, "cpu": 2**28}  # bytes of what is copied, well above any cache
EXPERTS = ".experts."  # in the names of their weights


@dataclass(frozen=True)
class Ceiling:
    """Bytes of one decode step, the mean over an interval in steady state: no step can move fewer."""

    weights: float
    states: float
    rings: float  # with the trackers
    windows: float  # of the convolutions
    kv: float

    @property
    def bytes(self) -> float:
        """All of them."""
        return self.weights + self.states + self.rings + self.windows + self.kv

    def milliseconds(self, bandwidth: float) -> float:
        """The least time of a step. bandwidth: bytes a second."""
        return self.bytes / bandwidth * 1e3


def ceiling(plan: Plan, weight_bytes: float, batch: int, context: int) -> Ceiling:
    """Weights once; of each row: its state read, and written once in W tokens, its ring, window, keys and values.

    weight_bytes: as `weights_read` counts them.  context: tokens whose keys and values a row reads, at the least.
    """
    mamba, interval = plan.mamba, plan.mamba.checkpoint_interval
    replayed = predicted_replays(2 * interval, interval) - predicted_replays(interval, interval)
    ring = replayed / interval * mamba.ring_row_bytes
    if mamba.ring_rows:
        ring += mamba.ring_row_bytes + mamba.tracker_bytes
    return Ceiling(
        weights=weight_bytes,
        states=batch * mamba.state_bytes * (1 + 1 / interval),
        rings=batch * ring,
        windows=batch * 2 * mamba.conv_window_bytes,
        kv=batch * (context + 1) * plan.kv.bytes_per_token,  # one of them is written
    )


def weights_read(weights: Mapping[str, Tensor], config: ModelConfig, batch: int) -> float:
    """Bytes that a step of ``batch`` rows reads.

    All, but of an embedding table that is no head only their rows, and of experts those that the rows are expected to
    choose: `experts_read` of them.
    """
    table = weights["embeddings.weight"]
    rows = 0 if config.tie_embeddings else min(batch, table.shape[0])  # a tied one is read as the head
    rest = sum(tensor.nbytes for name, tensor in weights.items() if name != "embeddings.weight")
    experts = sum(tensor.nbytes for name, tensor in weights.items() if EXPERTS in name)
    idle = 0.0 if config.moe is None else experts * (1 - experts_read(config.moe, batch) / config.moe.experts)
    return rest + rows * table.shape[1] * table.element_size() - idle


def experts_read(moe: MoEConfig, rows: int) -> float:
    """How many of a layer's experts so many rows choose, if each chooses among all alike, and by itself: the mean.

    A row leaves one out with probability 1 - chosen / experts. Trained routers are less even, so they read fewer.
    """
    return moe.experts * (1 - (1 - moe.chosen / moe.experts) ** rows)


def bandwidth_of(device: torch.device) -> tuple[float, str]:
    """Bytes a second, and where the number comes from: known for this GPU, or measured now with a copy."""
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
        for known, bandwidth in READ_BANDWIDTH.items():
            if known in name:
                return bandwidth, f"read bandwidth of an {known}"
    return _copy_bandwidth(device), "measured with a copy"


def _copy_bandwidth(device: torch.device, repeats: int = 7) -> float:
    source = torch.ones(COPIED[device.type], dtype=torch.uint8, device=device)
    target, times = torch.empty_like(source), []
    for _ in range(repeats + 1):
        wait(device)
        begin = time.perf_counter()
        target.copy_(source)
        wait(device)
        times.append(time.perf_counter() - begin)
    return 2 * source.numel() / statistics.median(times[1:])  # the first one touches new pages


def wait(device: torch.device) -> None:
    """Until the device has done all that was asked of it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
