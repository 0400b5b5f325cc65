"""Log probabilities of prompt tokens, of the requests that ask for them."""

from dataclasses import dataclass

import torch
from torch import Tensor

from statewise.cache.host import to_device
from statewise.engine.fetch import Fetched
from statewise.engine.request import PromptLogprob, Request
from statewise.engine.sampler import as_top, token_logprobs
from statewise.engine.step import Step
from statewise.models.hybrid import HybridModel

# Prompt tokens whose log probabilities are computed at once: 512 rows of 131,072 logits are 256 MiB in float32.
SCORED_AT_ONCE = 512


@dataclass(frozen=True)
class PromptScores:
    """Log probabilities on their way to the host, and whose they are, in the order of the tokens."""

    places: list[tuple[Request, int]]  # request and the position of the token
    found: Fetched

    def deliver(self) -> None:
        """Extend the requests' ``prompt_logprobs``. Waits for the numbers.

        After a preemption a token may have run again before this was known: then it is there already.
        """
        own, values, tokens = self.found.get()
        for (request, place), logprob, top in zip(self.places, own.tolist(), as_top(values, tokens), strict=True):
            if place == len(request.prompt_logprobs):
                request.prompt_logprobs.append(PromptLogprob(logprob, top.first(request.params.prompt_logprobs or 0)))


def score_prompts(model: HybridModel, step: Step, hidden: Tensor) -> list[PromptScores]:
    """Launch what the requests of a step ask for. hidden: (L, hidden_size), of its rows."""
    rows: list[int] = []
    scored: list[tuple[Request, int]] = []
    first = len(step.decode)
    for request, count in step.prefill:
        known = request.prompt_logprobs
        if request.params.prompt_logprobs is not None:
            if not known:
                known += [None] * min(len(request.prompt), max(1, request.params.prompt_logprobs_start))
            # After a preemption the first tokens run again, and are known already.
            tokens = range(
                max(len(known), request.computed + 1),
                min(len(request.prompt), request.computed + count + 1),
            )
            rows += [first + token - 1 - request.computed for token in tokens]
            scored += [(request, token) for token in tokens]
        first += count
    return [
        _score(model, hidden, rows[start : start + SCORED_AT_ONCE], scored[start : start + SCORED_AT_ONCE])
        for start in range(0, len(rows), SCORED_AT_ONCE)
    ]


def _score(model: HybridModel, hidden: Tensor, rows: list[int], scored: list[tuple[Request, int]]) -> PromptScores:
    most = max(request.params.prompt_logprobs or 0 for request, _ in scored)
    own = [(row, request.prompt[token]) for row, (request, token) in zip(rows, scored, strict=True)]
    places, tokens = to_device(own, torch.int64, hidden.device).unbind(-1)
    logits = model.logits(hidden[places])
    return PromptScores(scored, Fetched(*token_logprobs(logits, tokens, most)))
