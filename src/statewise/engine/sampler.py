"""The next token of each row from its logits. A row's choice depends on its own logits, seed and position alone."""

import random
from collections.abc import Sequence

import torch
from torch import Tensor

from statewise.engine.request import PromptLogprob, SamplingParams, TopLogprobs

# Below this a temperature is greedy: dividing by it would overflow.
COLDEST = 1e-5


def sample(logits: Tensor, params: Sequence[SamplingParams], uniforms: Sequence[float]) -> Tensor:
    """Choose one token a row. logits: (n, V).  uniforms: n numbers in [0, 1).  Returns (n,) int64.

    Temperature 0 (or below COLDEST) takes the likeliest, the first among equals. Else the logits are divided by the
    temperature, cut by min_p and top_k, then by top_p over what is left (vLLM's order), and the row's uniform picks
    from the rest.
    """
    tokens = logits.argmax(-1)
    drawn = [i for i, p in enumerate(params) if p.temperature >= COLDEST]
    if drawn:
        tokens[drawn] = _draw(logits[drawn], [params[i] for i in drawn], [uniforms[i] for i in drawn])
    return tokens


def _draw(logits: Tensor, params: Sequence[SamplingParams], uniforms: Sequence[float]) -> Tensor:
    def column(values: Sequence[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float64, device=logits.device)[:, None]

    scaled, order = (logits.double() / column([p.temperature for p in params])).sort(
        dim=-1, descending=True, stable=True
    )
    probs = scaled.softmax(-1)
    rank = torch.arange(probs.shape[-1], device=logits.device)
    keep = probs >= column([p.min_p for p in params]) * probs[:, :1]
    keep &= rank < column([p.top_k or probs.shape[-1] for p in params])
    probs = torch.where(keep, probs, 0)
    probs = probs / probs.sum(-1, keepdim=True)
    mass_before = probs.cumsum(-1) - probs
    keep &= (mass_before < column([p.top_p for p in params])) | (rank == 0)
    mass = torch.where(keep, probs, 0).cumsum(-1)
    pick = (mass <= column(uniforms) * mass[:, -1:]).sum(-1, keepdim=True)
    pick = torch.minimum(pick, keep.sum(-1, keepdim=True) - 1)
    return order.gather(-1, pick).squeeze(-1)


def uniform(seed: int, position: int) -> float:
    """The random number of one output position of one request: no state, so nothing to lose in a preemption."""
    return random.Random(f"{seed}:{position}").random()


def top_logprobs(logits: Tensor, count: int) -> list[TopLogprobs]:
    """The ``count`` likeliest tokens of every row. logits: (n, V), before temperature and cuts."""
    return _top(logits.log_softmax(-1), count)


def prompt_logprobs(logits: Tensor, tokens: Sequence[int], count: int) -> list[PromptLogprob]:
    """How likely ``tokens`` were. logits: (n, V), of the positions before them.  count: likeliest tokens to report."""
    logprobs = logits.log_softmax(-1)
    own = logprobs.gather(-1, torch.tensor(tokens, device=logits.device)[:, None]).squeeze(-1).tolist()
    return [PromptLogprob(logprob, top) for logprob, top in zip(own, _top(logprobs, count), strict=True)]


def _top(logprobs: Tensor, count: int) -> list[TopLogprobs]:
    values, ids = logprobs.topk(min(count, logprobs.shape[-1]), -1)
    return [TopLogprobs(tuple(i), tuple(v)) for i, v in zip(ids.tolist(), values.tolist(), strict=True)]
