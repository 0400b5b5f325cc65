"""AdamW (Loshchilov and Hutter, arXiv 1711.05101) with a warm-up and a cosine."""

import math

import torch
from torch import nn

from train.presets import Preset


def make_optimizer(model: nn.Module, preset: Preset) -> torch.optim.AdamW:
    """Weight decay on matrices and convolutions only: norms, biases, A_log, dt_bias and D have one dimension."""
    weights = list(model.parameters())
    groups = [
        {"params": [weight for weight in weights if weight.dim() >= 2], "weight_decay": preset.weight_decay},
        {"params": [weight for weight in weights if weight.dim() < 2], "weight_decay": 0.0},
    ]
    fused = weights[0].device.type == "cuda"
    return torch.optim.AdamW(groups, lr=preset.learning_rate, betas=preset.betas, fused=fused)


def learning_rate(step: int, total: int | None, preset: Preset) -> float:
    """Of step 0 to total - 1: up in a line over the warm-up, then down half a cosine to zero.

    total: None while it is not known, which it must be by the end of the warm-up.
    """
    if step < preset.warmup:
        return preset.learning_rate * (step + 1) / preset.warmup
    assert total is not None
    done = (step - preset.warmup) / max(1, total - preset.warmup)
    return preset.learning_rate * (1 + math.cos(math.pi * min(1.0, done))) / 2
