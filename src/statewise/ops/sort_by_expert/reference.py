"""The choices of one expert after the other."""

import torch
from torch import Tensor


def sort_by_expert(chosen: Tensor, experts: int) -> tuple[Tensor, Tensor, Tensor]:
    tokens: list[int] = []
    ends: list[int] = []
    places = torch.empty_like(chosen)
    for expert in range(experts):
        for token, row in enumerate(chosen.tolist()):
            for choice, found in enumerate(row):
                if found == expert:
                    places[token, choice] = len(tokens)
                    tokens.append(token)
        ends.append(len(tokens))
    return chosen.new_tensor(tokens), places, chosen.new_tensor(ends, dtype=torch.int32)
