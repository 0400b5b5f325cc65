"""A hybrid language model: embedding, a pattern of pre-norm blocks (Mamba-2, attention, MLP, experts), norm, head."""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn

from statewise.cache.mamba import MambaPool
from statewise.cache.paged_kv import PagedKV
from statewise.config import ModelConfig
from statewise.layers.attention import Attention
from statewise.layers.batch import Batch
from statewise.layers.mamba2 import Mamba2Mixer
from statewise.layers.mlp import MLP
from statewise.layers.moe import MoE
from statewise.layers.norms import RMSNorm
from statewise.ops.backend import Ops
from statewise.ops.mixer_step.scratch import Scratch
from statewise.ops.paged_attention import Scratch as AttentionScratch


@dataclass(frozen=True)
class Caches:
    """The memory that a forward pass reads and writes."""

    mamba: MambaPool
    kv: PagedKV
    scratch: Scratch | None = None  # of decode steps; None: they allocate it
    attention_scratch: AttentionScratch | None = None  # likewise


class Block(nn.Module):
    """A norm and a mixer. number: of the layer in the model.

    The residual stream is residual + update: a block adds what the one before has left, and leaves its own. Where the
    model multiplies updates by m, the stream is kept divided by m: then they are added as they are, and a norm of it is
    the norm of the real one if its eps is divided by m squared.
    """

    def __init__(self, config: ModelConfig, number: int, ops: Ops):
        super().__init__()
        self.kind, self.residual_in_fp32, self.ops = config.pattern[number], config.residual_in_fp32, ops
        # Its places among the layers that have caches of a kind.
        self.mamba_index, self.attention_index = (config.count(kind, before=number) for kind in ("mamba", "attention"))
        self.norm = RMSNorm(config.hidden_size, _stream_eps(config))
        self.mixer = _mixer(config, self.kind, ops)

    def forward(self, residual: Tensor, update: Tensor | None, batch: Batch, caches: Caches) -> tuple[Tensor, Tensor]:
        """residual, update: (L, hidden_size); update None: zeros. Returns the next pair."""
        hidden, residual = self.ops.add_rms_norm(residual, update, self.norm.weight, eps=self.norm.eps)
        if self.residual_in_fp32:
            residual = residual.to(torch.promote_types(residual.dtype, torch.float32))
        return residual, self._mix(self.mixer, self.kind, hidden, batch, caches)

    def _mix(self, mixer: nn.Module, kind: str, hidden: Tensor, batch: Batch, caches: Caches) -> Tensor:
        if isinstance(mixer, nn.ModuleDict):  # side by side
            first, second = (self._mix(part, name, hidden, batch, caches) for name, part in mixer.items())
            return first + second
        if kind == "mamba":
            return mixer(hidden, batch, caches.mamba.layer(self.mamba_index), caches.scratch)
        if kind == "attention":
            return mixer(hidden, batch, caches.kv, self.attention_index, caches.attention_scratch)
        return mixer(hidden)


def _mixer(config: ModelConfig, kind: str, ops: Ops) -> nn.Module:
    if "+" in kind:
        return nn.ModuleDict({part: _mixer(config, part, ops) for part in kind.split("+")})
    if kind == "mamba":
        return Mamba2Mixer(config.hidden_size, config.mamba, config.norm_eps, ops)
    if kind == "attention":
        assert config.attention is not None
        return Attention(config.hidden_size, config.attention, ops)
    if kind == "moe":
        assert config.moe is not None
        return MoE(config.hidden_size, config.moe, ops)
    assert config.mlp is not None
    return MLP(config.hidden_size, config.mlp, ops)


def _stream_eps(config: ModelConfig) -> float:
    return config.norm_eps / config.residual_multiplier**2


class HybridModel(nn.Module):
    """Tokens to logits. ``forward(batch, caches)`` says all its inputs; parameter names are the released ones."""

    def __init__(self, config: ModelConfig, ops: Ops):
        super().__init__()
        self.config, self.ops = config, ops
        self.stream_scale = config.embedding_multiplier / config.residual_multiplier
        self.embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Block(config, number, ops) for number in range(len(config.pattern)))
        self.norm_f = RMSNorm(config.hidden_size, _stream_eps(config), scale=1 / config.logits_divisor)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tie_embeddings:
            self.lm_head.weight = self.embeddings.weight

    def prepare(self) -> Self:
        """Let every mixer compute once what no step changes. For inference, once weights are loaded."""
        for module in self.modules():
            if isinstance(module, Mamba2Mixer | Attention):
                module.prepare()
        return self

    def forward(self, batch: Batch, caches: Caches) -> Tensor:
        """Run one step. Returns the logits of ``batch.logit_rows``, (rows, vocab_size), float32 (float64 in double).

        Writes the caches of the rows in the batch: states, rings, convolution windows, keys and values. It reads the
        trackers and leaves them: the runner advances them once all layers have run.
        """
        return self.logits(self.hidden(batch, caches)[batch.logit_rows])

    def hidden(self, batch: Batch, caches: Caches) -> Tensor:
        """Run all layers. Returns what the head reads, before its norm, (L, hidden_size): a row a token."""
        residual, update = self.embeddings(batch.tokens), None
        if self.stream_scale != 1:
            residual = residual * self.stream_scale
        for layer in self.layers:
            residual, update = layer(residual, update, batch, caches)
        return residual if update is None else residual + update

    def fold(self, pool: MambaPool, slots: Tensor) -> None:
        """Fold the pending rows of ``slots``, (n,), into their states, in every layer. Leaves the trackers."""
        mixers = [module for module in self.modules() if isinstance(module, Mamba2Mixer)]  # in the order of the layers
        for index, mixer in enumerate(mixers):
            mixer.fold(pool.layer(index), slots)

    def logits(self, hidden: Tensor) -> Tensor:
        """Norm and head of some rows of `hidden`: (rows, hidden_size) to (rows, vocab_size), dtype as in `forward`."""
        return widened(self.head(hidden))

    def head(self, hidden: Tensor, out: Tensor | None = None) -> Tensor:
        """`logits` as the weights' dtype has them. out: (rows, vocab_size), written and returned; for inference."""
        hidden = self.norm_f(hidden)
        return self.lm_head(hidden) if out is None else torch.mm(hidden, self.lm_head.weight.T, out=out)


def widened(logits: Tensor) -> Tensor:
    """In float32, or float64 if that is what they are."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))
