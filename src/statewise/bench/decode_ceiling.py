"""What bounds a decode step of a whole model: the fewest bytes that it moves, and the operations of its products.

The ceiling is bytes alone. The bound beside it also counts that a product of rows with weights takes as long as its
operations do, where that is longer than reading the weights: with many rows no program reaches the ceiling.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from statewise.bench.rates import Rates
from statewise.cache.window import predicted_replays
from statewise.config import ModelConfig, MoEConfig
from statewise.engine.plan import Plan

EMBEDDINGS = "embeddings.weight"
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


@dataclass(frozen=True)
class Products:
    """Products of a step's rows with matrices of weights that all have as many operations a byte."""

    bytes: float  # of the weights that are read
    operations: float  # a multiplication and an addition for each weight and row that meet

    def excess(self, rates: Rates) -> float:
        """Milliseconds that the operations take beyond reading the weights; 0 if reading takes longer."""
        return max(0.0, self.operations / rates.matrix_rate - self.bytes / rates.bandwidth) * 1e3


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
    table = weights[EMBEDDINGS]
    rows = 0 if config.tie_embeddings else min(batch, table.shape[0])  # a tied one is read as the head
    rest = sum(tensor.nbytes for name, tensor in weights.items() if name != EMBEDDINGS)
    experts = sum(tensor.nbytes for name, tensor in weights.items() if EXPERTS in name)
    idle = 0.0 if config.moe is None else experts * (1 - experts_read(config.moe, batch) / config.moe.experts)
    return rest + rows * table.shape[1] * table.element_size() - idle


def products(weights: Mapping[str, Tensor], config: ModelConfig, batch: int) -> tuple[Products, ...]:
    """Those of every row with each matrix, and those of each row with the experts that it takes.

    Looking up embeddings, and convolutions, are no matrix products.
    """
    dense = [tensor for name, tensor in weights.items() if tensor.dim() == 2 and name != EMBEDDINGS]
    found = [Products(sum(t.nbytes for t in dense), 2.0 * batch * sum(t.numel() for t in dense))]
    if config.moe is not None:
        experts = [tensor for name, tensor in weights.items() if EXPERTS in name]
        read, taken = (count / config.moe.experts for count in (experts_read(config.moe, batch), config.moe.chosen))
        size, count = sum(t.nbytes for t in experts), sum(t.numel() for t in experts)
        found.append(Products(size * read, 2.0 * batch * count * taken))
    return tuple(found)


def experts_read(moe: MoEConfig, rows: int) -> float:
    """How many of a layer's experts so many rows choose, if each chooses among all alike, and by itself: the mean.

    A row leaves one out with probability 1 - chosen / experts. Trained routers are less even, so they read fewer.
    """
    return moe.experts * (1 - (1 - moe.chosen / moe.experts) ** rows)
