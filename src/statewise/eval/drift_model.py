"""How far rounded states move a whole model: its states and its logits against float64, over long texts.

Every way to keep the states decodes the same tokens, whatever it would have said itself, so that all are compared at
the same places. Exact is a float64 prefill of the same texts. Weights, activations, keys and values are float32.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from statewise.cache.mamba import MambaPool
from statewise.cache.paged_kv import PagedKV
from statewise.config import EngineConfig
from statewise.engine.plan import make_plan
from statewise.engine.text import load_tokenizer
from statewise.eval.drift import FIRST_SEED, LONGEST, Way, measured_at
from statewise.layers.batch import Batch, Row, make_batch
from statewise.layers.mamba2 import Mamba2Mixer
from statewise.models.families import read_config
from statewise.models.hybrid import Caches, HybridModel
from statewise.models.weights import load_model
from statewise.verify.side import folded_state
from statewise.verify.sides import relative


@dataclass(frozen=True)
class ModelDrift:
    """At one token, the relative errors of the states: root mean square over layers and heads, and the worst head's.

    Over the tokens since the last such token: ``logits``, the relative error of the logits less their mean; ``kl``, the
    mean Kullback-Leibler divergence of the next token from the exact model's, nats; ``flips``, the share of places
    whose likeliest token is another one.
    """

    token: int
    state: float
    worst_head: float
    logits: float
    kl: float
    flips: float


def texts_of(folder: Path, documents: Sequence[Sequence[str]], tokens: int) -> Tensor:
    """(rows, tokens): the first tokens of each row's documents, which are joined by blank lines.

    Raises ValueError if a row's documents are too short.
    """
    tokenizer = load_tokenizer(folder)
    rows = [tokenizer.encode("\n\n".join(texts)).ids[:tokens] for texts in documents]
    if any(len(row) < tokens for row in rows):
        raise ValueError(f"documents have {min(map(len, rows))} tokens, expected at least {tokens}")
    return torch.tensor(rows)


def measure_model(
    folder: Path, found: Sequence[Way], texts: Tensor, config: EngineConfig, on_token: Callable[[int], None]
) -> dict[Way, list[ModelDrift]]:
    """Decode ``texts``, (rows, T), in every way. config: device and backend of the ways.

    on_token: told how many are done, now and then.
    """
    rows, tokens = texts.shape
    sides = {way: _Side(folder, _config(config, way), rows, tokens) for way in found}
    double = EngineConfig(
        dtype="float64", state_dtype="float64", checkpoint_interval=1, backend="torch", device=config.device
    )
    exact = _Side(folder, double, rows, tokens)
    drifts: dict[Way, list[ModelDrift]] = {way: [] for way in found}
    done = 0
    for token in measured_at(tokens):
        sums = {way: torch.zeros(4, dtype=torch.float64, device=exact.device) for way in found}
        for first, last in _chunks(done, token):
            logits = exact.prefill(texts[:, first:last], first)
            for place in range(first, last):
                batch = exact.batch_of(texts[:, place : place + 1], place, is_decode=True)
                for way, side in sides.items():
                    sums[way] += _apart(side.decode(batch), logits[:, place - first])
            on_token(last)
        states = exact.states()
        for way, side in sides.items():
            drifts[way].append(_drift(token, side.states(), states, sums[way], rows * (token - done)))
        done = token
    return drifts


def _config(config: EngineConfig, way: Way) -> EngineConfig:
    return replace(
        config,
        dtype="float32",
        state_dtype=str(way.state_dtype).removeprefix("torch."),
        checkpoint_interval=way.window,
        stochastic_rounding=way.stochastic,
    )


def _chunks(first: int, last: int) -> Iterator[tuple[int, int]]:
    """Pieces of LONGEST tokens."""
    for start in range(first, last, LONGEST):
        yield start, min(start + LONGEST, last)


class _Side:
    """The model in one precision with caches of its own. Request i has slot i and the i-th share of the blocks."""

    def __init__(self, folder: Path, config: EngineConfig, rows: int, tokens: int):
        shape = read_config(folder)
        plan = make_plan(shape, config)
        self.device, self.ops, self.spec = torch.device(config.device), plan.ops, plan.mamba
        self.model: HybridModel = load_model(folder, shape, plan.ops, plan.dtype, self.device)
        self.kv = plan.kv
        each = plan.kv.blocks_for(tokens)
        self.blocks = [list(range(row * each, (row + 1) * each)) for row in range(rows)]
        seed = torch.full((1,), FIRST_SEED, dtype=torch.int64, device=self.device)
        self.pool = MambaPool(plan.mamba, rows, self.device, rand_seed=seed if config.stochastic_rounding else None)
        self.caches = Caches(self.pool, PagedKV(plan.kv, rows * each, self.device))
        self.slots = torch.arange(rows, device=self.device)

    def batch_of(self, tokens: Tensor, start: int, is_decode: bool) -> Batch:
        """tokens: (rows, T), the first of which is token ``start`` of its request."""
        used = self.kv.blocks_for(start + tokens.shape[1])  # more would be gathered, and masked
        rows = [
            Row(own.tolist(), start, slot, self.blocks[slot][:used], wants_all_logits=True)
            for slot, own in enumerate(tokens)
        ]
        decode, prefill = (rows, []) if is_decode else ([], rows)
        return make_batch(decode, prefill, self.kv.block_size, self.device)

    def prefill(self, tokens: Tensor, start: int) -> Tensor:
        """Logits at every token, (rows, T, V)."""
        logits = self.model(self.batch_of(tokens, start, is_decode=False), self.caches)
        return logits.view(*tokens.shape, -1)

    def decode(self, batch: Batch) -> Tensor:
        """One token a request. Returns logits, (rows, V)."""
        logits, pool = self.model(batch, self.caches), self.pool
        self.ops.advance_trackers(
            pool.ring_start,
            pool.pending,
            self.slots,
            tokens=1,
            accepted=1,
            window=self.spec.checkpoint_interval,
            ring_rows=self.spec.ring_rows,
        )
        if pool.rand_seed is not None:
            pool.rand_seed += 1
        return logits

    def states(self) -> Tensor:
        """(layers, rows, H, P, N) in float64, pending rows folded in."""
        mixers = [layer.mixer for layer in self.model.layers if isinstance(layer.mixer, Mamba2Mixer)]
        return torch.stack(
            [
                folded_state(self.pool.layer(i), -torch.exp(mixer.A_log.double()), self.slots)
                for i, mixer in enumerate(mixers)
            ]
        )


def _apart(logits: Tensor, exact: Tensor) -> Tensor:
    """Sums over rows, (4,): squared error and square of logits less their mean, divergence, places that flip."""
    logits = logits.double()
    error, size = ((x - x.mean(1, keepdim=True)).square().sum() for x in (logits - exact, exact))
    truth = exact.log_softmax(1)
    divergence = (truth.exp() * (truth - logits.log_softmax(1))).sum()
    flips = (logits.argmax(1) != exact.argmax(1)).sum()
    return torch.stack([error, size, divergence, flips])


def _drift(token: int, states: Tensor, exact: Tensor, sums: Tensor, places: int) -> ModelDrift:
    heads = relative(states, exact, 2)
    error, size, divergence, flips = sums.tolist()
    return ModelDrift(
        token=token,
        state=float(heads.square().mean().sqrt()),
        worst_head=float(heads.max()),
        logits=(error / size) ** 0.5,
        kl=divergence / places,
        flips=flips / places,
    )
