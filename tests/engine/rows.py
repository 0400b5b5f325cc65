"""Requests as the sampler gets them, without an engine."""

import torch

from statewise.engine.request import Request, SamplingParams
from statewise.engine.text import TextStream
from tests.engine.harness import LETTERS

CPU = torch.device("cpu")
LOGITS = torch.tensor([0.0, 2.0, 1.0, -1.0, 2.0])


def request(slot=0, prompt=(0,), output=(), seed=0, ends_at=(), **options):
    params = SamplingParams(**({"max_tokens": 99} | options))
    built = Request(0, tuple(prompt), params, seed, TextStream(LETTERS), frozenset(ends_at))
    built.slot, built.output, built.sampled = slot, list(output), len(output)
    return built
