"""What the rows of a step ask of the sampler, as tensors on the device. A row is only in those that it asks for."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from statewise.cache.host import to_device
from statewise.engine.request import Request, SamplingParams
from statewise.ops.rounding import philox

# Below this a temperature is greedy: dividing by it would overflow.
COLDEST = 1e-5
# The last word of the Philox counter. Stochastic rounding of states has 0 there.
_SAMPLING = 1
_WORD = 0xFFFFFFFF


@dataclass(frozen=True)
class Draws:
    """The rows that are drawn at random, D of them. Those with a top_k or a top_p come first, ``cut`` of them."""

    rows: Tensor  # (D,)
    cut: int
    top_k: Tensor  # (D, 1) int64
    top_p: Tensor  # (D, 1) float64, and so are the next
    min_p: Tensor
    temperature: Tensor
    uniform: Tensor  # 0 to 1, without 1


@dataclass(frozen=True)
class Penalties:
    """The rows with a penalty, P of them, and their slots in the table of token counts."""

    rows: Tensor  # (P,)
    slots: Tensor  # (P,)
    repetition: Tensor  # (P, 1) float64, and so are the next
    presence: Tensor
    frequency: Tensor


@dataclass(frozen=True)
class Places:
    """Single logits: row and token of each, all different."""

    rows: Tensor  # (n,)
    tokens: Tensor  # (n,)


@dataclass(frozen=True)
class SamplingBatch:
    """The rows of a step. None where no row asks for it."""

    draws: Draws | None
    penalties: Penalties | None
    biases: tuple[Places, Tensor] | None  # and what is added there, (n,) float64
    bans: Places | None  # tokens that would end a request before its min_tokens


def make_sampling_batch(
    requests: Sequence[Request], numbers: Sequence[float], vocab_size: int, device: torch.device
) -> SamplingBatch:
    """Lay out what ``requests`` ask for; row i is requests[i], about to get its next token. Waits for no device.

    numbers: `random_numbers` of the requests.
    """
    rows = list(enumerate(requests))
    biases = [(i, token, bias) for i, request in rows for token, bias in (request.params.logit_bias or {}).items()]
    bans = [
        (i, token)
        for i, request in rows
        if request.sampled < request.params.min_tokens
        for token in sorted(request.ends_at)
        if token < vocab_size
    ]
    return SamplingBatch(
        draws=_draws([(i, request.params) for i, request in rows if _is_drawn(request)], numbers, device),
        penalties=_penalties([(i, request) for i, request in rows if request.params.has_penalties], device),
        biases=_biases(biases, device) if biases else None,
        bans=_places(bans, device) if bans else None,
    )


def uniforms(seeds: Tensor, positions: Tensor) -> Tensor:
    """The random number of each output position of a request, (n,) float64, 0 to 1 without 1.

    seeds, positions: (n,), int64. The key of Philox is the seed, its counter the position: there is no state that a
    preemption could lose. The first 53 bits of the first two words are the number.
    """
    zero = torch.zeros_like(positions)
    words = philox((positions, zero, zero, zero + _SAMPLING), (seeds & _WORD, (seeds >> 32) & _WORD))
    return ((words[..., 0] << 21) | (words[..., 1] >> 11)).double() * 2.0**-53


def random_numbers(requests: Sequence[Request]) -> list[float]:
    """`uniforms` of the next token of each request, computed on the host; zeros if none of them is drawn at random."""
    if not any(map(_is_drawn, requests)):
        return [0.0] * len(requests)
    seeds = torch.tensor([request.seed for request in requests])
    return uniforms(seeds, torch.tensor([request.sampled for request in requests])).tolist()


def is_plain(request: Request) -> bool:
    """Whether it takes the likeliest token, whatever came before: nothing but the logits decides."""
    params = request.params
    banned = request.sampled < params.min_tokens
    return not (_is_drawn(request) or params.has_penalties or params.logit_bias or banned)


def _is_drawn(request: Request) -> bool:
    return request.params.temperature >= COLDEST


def _is_cut(params: SamplingParams) -> bool:
    return params.top_k > 0 or params.top_p < 1


def _draws(rows: list[tuple[int, SamplingParams]], numbers: Sequence[float], device: torch.device) -> Draws | None:
    if not rows:
        return None
    rows = sorted(rows, key=lambda row: not _is_cut(row[1]))
    ints = to_device([(i, min(p.top_k or _WORD, _WORD)) for i, p in rows], torch.int64, device)
    floats = [(p.top_p, p.min_p, p.temperature, numbers[i]) for i, p in rows]
    cut = sum(_is_cut(p) for _, p in rows)
    return Draws(ints[:, 0], cut, ints[:, 1:], *to_device(floats, torch.float64, device).split(1, -1))


def _penalties(rows: list[tuple[int, Request]], device: torch.device) -> Penalties | None:
    if not rows:
        return None
    places = to_device([(i, request.slot) for i, request in rows], torch.int64, device)
    params = [request.params for _, request in rows]
    numbers = [(p.repetition_penalty, p.presence_penalty, p.frequency_penalty) for p in params]
    return Penalties(*places.unbind(-1), *to_device(numbers, torch.float64, device).split(1, -1))


def _places(places: Sequence[tuple[int, int]], device: torch.device) -> Places:
    return Places(*to_device(places, torch.int64, device).unbind(-1))


def _biases(biases: Sequence[tuple[int, int, float]], device: torch.device) -> tuple[Places, Tensor]:
    places = _places([(row, token) for row, token, _ in biases], device)
    return places, to_device([bias for _, _, bias in biases], torch.float64, device)
