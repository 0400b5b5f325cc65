"""The next token of each row from its logits. A row's choice depends on its own logits, seed and position alone.

In this order: biases, tokens that may not come yet, penalties (repetition, frequency, presence); then the likeliest
token, or a draw: temperature, min_p, top_k, top_p over what is left.

Probabilities are whole numbers in a draw: a sum of them is the same in whatever order a device takes it, and that
depends on how many rows there are. Everything else is the same for each element, or a maximum, or a sort.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from statewise.engine.request import Request, TopLogprobs
from statewise.engine.sampling_batch import Draws, Penalties, SamplingBatch, make_sampling_batch, random_numbers
from statewise.engine.token_counts import TokenCounts

# The weight of the likeliest token; what is below half of 1 is never drawn. With 2^22 tokens a sum stays below 2^63.
_UNIT = 2**40
# Logits that are sampled at once. Temporary tensors take up to 65 bytes for each on a CPU, 520 MiB.
LOGITS_AT_ONCE = 2**23


class Sampler:
    """Chooses tokens on the device. Owns the token counts of requests with penalties."""

    def __init__(self, slots: int, vocab_size: int, device: torch.device, poison: bool = False):
        """Allocates the table of token counts. poison: fill with a large number what no request has written."""
        self.counts = TokenCounts(slots, vocab_size, device, poison)

    @torch.inference_mode()
    def sample(self, logits: Tensor, requests: Sequence[Request], new: int) -> Tensor:
        """Choose one token a row, without waiting for the device.

        logits: (n, V), float32 or float64, unchanged.  requests: those of the rows.  new: how many, at the end, get
        their first token since they were admitted.

        Returns (2, n), int64: the tokens, and 1 where a row's logits were numbers. Else its token means nothing. That
        is where one of them is NaN, the largest is infinite, or none is possible.
        """
        begun = requests[len(requests) - new :]
        self.counts.begin([request for request in begun if request.params.has_penalties])
        numbers = random_numbers(requests)
        vocab_size = logits.shape[-1]
        size = max(1, LOGITS_AT_ONCE // vocab_size)
        parts = []
        for start in range(0, len(requests), size):
            some = slice(start, start + size)
            rows = make_sampling_batch(requests[some], numbers[some], vocab_size, logits.device)
            parts.append(self._sample(logits[some], rows))
        return torch.cat(parts, -1)

    def _sample(self, logits: Tensor, rows: SamplingBatch) -> Tensor:
        tokens, good = choose(adjust(logits, rows, self.counts), rows.draws)
        if rows.penalties is not None:
            self.counts.add(rows.penalties.slots, tokens[rows.penalties.rows])
        return torch.stack([tokens, good.long()])


def adjust(logits: Tensor, rows: SamplingBatch, counts: TokenCounts) -> Tensor:
    """The logits with biases, bans and penalties; the same tensor if no row has any. logits: (n, V)."""
    if rows.biases is None and rows.bans is None and rows.penalties is None:
        return logits
    logits = logits.clone()
    if rows.biases is not None:
        places, bias = rows.biases
        logits[places.rows, places.tokens] += bias.to(logits.dtype)
    if rows.bans is not None:
        never = torch.full((), -torch.inf, dtype=logits.dtype, device=logits.device)
        logits.index_put_((rows.bans.rows, rows.bans.tokens), never)
    if rows.penalties is not None:
        own = rows.penalties.rows
        logits[own] = _penalise(logits[own], rows.penalties, *counts.read(rows.penalties.slots))
    return logits


def _penalise(logits: Tensor, by: Penalties, in_prompt: Tensor, in_output: Tensor) -> Tensor:
    """logits, in_prompt, in_output: (P, V), the last a count.  The rules of vLLM, and of OpenAI's API."""
    repetition, presence, frequency = (p.to(logits.dtype) for p in (by.repetition, by.presence, by.frequency))
    generated = in_output > 0
    scaled = torch.where(logits > 0, logits / repetition, logits * repetition)
    penalised = torch.where(in_prompt | generated, scaled, logits)
    return penalised - frequency * in_output - presence * generated


def choose(logits: Tensor, draws: Draws | None) -> tuple[Tensor, Tensor]:
    """One token a row: the likeliest, the first among equals, or a draw. Returns (n,) int64 and (n,) bool.

    The second says whether a row's logits are numbers: then the largest is, unless one is NaN or none is possible.
    """
    largest, tokens = logits.max(-1)
    good = largest.isfinite()
    if draws is not None:
        drawn = _draw(logits[draws.rows], largest[draws.rows], draws)
        tokens = tokens.index_copy(0, draws.rows, drawn)
    return tokens, good


def _draw(logits: Tensor, largest: Tensor, by: Draws) -> Tensor:
    """The token at which the sum of probabilities, in the order of the vocabulary, passes the row's uniform.

    logits: (D, V).  largest: (D,), of the rows.  Returns (D,). Where the largest is no number, no weight is: NaN passes
    no min_p. Then the aim is -1 and the token 0.
    """
    relative = torch.exp((logits.double() - largest[:, None]) / by.temperature)  # to the likeliest token's probability
    weights = torch.where(relative >= by.min_p, relative * _UNIT, 0).round().long()
    if by.cut:
        some = slice(by.cut)
        weights[some] = _cut(weights[some], logits[some], by.top_k[some], by.top_p[some])
    mass = weights.cumsum(-1)
    aim = torch.minimum((by.uniform * mass[:, -1:]).long(), mass[:, -1:] - 1)
    return torch.searchsorted(mass, aim, right=True).squeeze(-1)


def _cut(weights: Tensor, logits: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """``weights`` with 0 for all but the likeliest k, and of these the fewest likeliest that have a share of top_p.

    weights, logits: (C, V).  top_k, top_p: (C, 1).  Equals are taken in the order of the vocabulary.
    """
    order = logits.argsort(dim=-1, descending=True, stable=True)
    rank = torch.arange(logits.shape[-1], device=logits.device)
    ranked = torch.where(rank < top_k, weights.gather(-1, order), 0)
    mass = ranked.cumsum(-1)
    wanted = torch.where(top_p < 1, (top_p * mass[:, -1:]).ceil().long(), mass[:, -1:])
    ranked = torch.where(mass - ranked < wanted, ranked, 0)
    return torch.zeros_like(weights).scatter(-1, order, ranked)


def top_logprobs(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The ``count`` likeliest tokens of every row, before biases, penalties, temperature and cuts.

    logits: (n, V).  Returns their log probabilities and the tokens, (n, count) each, likeliest first.
    """
    return logits.log_softmax(-1).topk(min(count, logits.shape[-1]), -1)


def token_logprobs(logits: Tensor, tokens: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """How likely ``tokens`` were, (n,), and `top_logprobs`. logits: (n, V), of the positions before them."""
    own = logits.log_softmax(-1).gather(-1, tokens[:, None]).squeeze(-1)
    return own, *top_logprobs(logits, count)


def as_top(values: Tensor, tokens: Tensor) -> list[TopLogprobs]:
    """What `top_logprobs` has found, a row each."""
    return [TopLogprobs(tuple(t), tuple(v)) for t, v in zip(tokens.tolist(), values.tolist(), strict=True)]
