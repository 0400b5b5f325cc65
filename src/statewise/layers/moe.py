"""A mixture of experts: rows sorted by expert, one grouped matrix product for all of them, rows put back and summed.

With kernels nothing here waits for the host, and shapes do not depend on the routing, so that a CUDA graph can hold it.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from statewise.config import MoEConfig, SigmoidRouter
from statewise.layers.mlp import MLP, up_size
from statewise.ops.backend import Ops
from statewise.ops.grouped_linear.torch import grouped_mm_obstacle

# From so many rows an expert on average, PyTorch's product is the faster one (measured: docs/log.md).
LONG_GROUPS = 128


class Experts(nn.Module):
    """The weights of all experts. Shapes and order of rows are those of Granite's released checkpoints."""

    def __init__(self, hidden_size: int, config: MoEConfig, ops: Ops):
        super().__init__()
        self.gated, self.ops = config.gated, ops
        up = up_size(config.inner_size, config.gated)
        self.up_proj = nn.Parameter(torch.empty(config.experts, up, hidden_size))
        self.down_proj = nn.Parameter(torch.empty(config.experts, hidden_size, config.inner_size))

    def forward(self, rows: Tensor, ends: Tensor) -> Tensor:
        """rows: (R, hidden), sorted by expert.  ends: (experts,) int32, where each one's rows end. (R, hidden)."""
        inner = self.ops.mlp_activation(self.ops.grouped_linear(rows, self.up_proj, ends), gated=self.gated)
        return self.ops.grouped_linear(inner, self.down_proj, ends)


class MoE(nn.Module):
    """(L, hidden) -> (L, hidden), token by token; no state. A row's result does not depend on the others' values."""

    def __init__(self, hidden_size: int, config: MoEConfig, ops: Ops):
        super().__init__()
        self.config, self.ops = config, ops
        self.router = Router(hidden_size, config, ops)
        self.experts = Experts(hidden_size, config, ops)
        self.shared = None if config.shared is None else MLP(hidden_size, config.shared, ops)

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.router(x)
        tokens, places, ends = self.ops.sort_by_expert(chosen, self.config.experts)
        y = self.experts(x[tokens], ends)[places]  # (L, chosen, hidden), by a gather: the sum has a fixed order
        if self.shared is None:
            return torch.bmm(weights[:, None], y)[:, 0]
        return torch.baddbmm(self.shared(x)[:, None], weights[:, None], y)[:, 0]


class Router(nn.Module):
    """(L, hidden) -> weights in x's dtype and experts of each token, (L, chosen) both."""

    def __init__(self, hidden_size: int, config: MoEConfig, ops: Ops):
        super().__init__()
        self.config, self.ops = config, ops
        self.weight = nn.Parameter(torch.empty(config.experts, hidden_size))
        if config.sigmoid is not None:
            self.correction_bias = nn.Parameter(torch.empty(config.experts))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        sigmoid, chosen = self.config.sigmoid, self.config.chosen
        if sigmoid is None:
            return self.ops.choose_experts(functional.linear(x, self.weight), chosen)
        scores = wide_scores(x, self.weight)
        allowed = self._allowed(scores, sigmoid) if sigmoid.chosen_groups < sigmoid.groups else None
        rest = {"normalised": sigmoid.normalised, "scale": sigmoid.scale, "dtype": x.dtype}
        return self.ops.choose_experts(scores, chosen, bias=self.correction_bias, allowed=allowed, **rest)

    def _allowed(self, scores: Tensor, router: SigmoidRouter) -> Tensor:
        """(L, experts) bool: the experts of the best groups. No released hybrid has more than one group."""
        in_groups = (scores.sigmoid() + self.correction_bias).unflatten(-1, (router.groups, -1))
        of_group = in_groups.topk(2, dim=-1).values.sum(-1)
        best = of_group.topk(router.chosen_groups, dim=-1).indices
        kept = torch.zeros_like(of_group, dtype=torch.bool).scatter_(-1, best, True)
        return kept.repeat_interleave(self.config.experts // router.groups, dim=-1)


def wide_scores(x: Tensor, weight: Tensor) -> Tensor:
    """``x @ weight.T`` in float32 (float64 in double): of 16-bit numbers the products are exact, and not rounded."""
    if x.device.type == "cuda" and x.dtype == weight.dtype == torch.bfloat16:
        return torch.mm(x, weight.T, out_dtype=torch.float32)
    wide = torch.promote_types(x.dtype, torch.float32)
    return functional.linear(x.to(wide), weight.to(wide))


def with_product(
    ops: Ops, hidden_size: int, config: MoEConfig, dtype: torch.dtype, device: torch.device, *, deterministic: bool
) -> tuple[Ops, str]:
    """The ops with the grouped product that these experts will run, and why it is that one.

    Backends with kernels have two that a CUDA graph can hold: their own, and PyTorch's, which takes a prefill's long
    groups where it runs and a row's bits may depend on its company.  device: may be one that is not there.
    """
    obstacle = grouped_mm_obstacle(dtype, device, hidden_size, config.inner_size)
    if ops.name in ("torch", "reference"):
        loop = f"a loop over them: PyTorch's grouped_mm does not run, {obstacle}"
        return ops, "PyTorch's grouped_mm" if obstacle is None else loop
    if deterministic:
        return ops, "a kernel of ours: deterministic is on"
    if obstacle is not None:
        return ops, f"a kernel of ours: PyTorch's grouped_mm does not run, {obstacle}"
    library = partial(ops.grouped_linear, backend="torch")
    chosen = partial(_by_length, short=ops.grouped_linear, long=library)
    why = f"a kernel of ours; PyTorch's grouped_mm from {LONG_GROUPS} rows of each on"
    return replace(ops, grouped_linear=chosen), why


def _by_length(
    rows: Tensor, weight: Tensor, ends: Tensor, *, short: Callable[..., Tensor], long: Callable[..., Tensor]
) -> Tensor:
    """By how many rows a group has on average: the shapes tell, so nothing waits for the host."""
    product = short if rows.shape[0] < LONG_GROUPS * weight.shape[0] else long
    return product(rows, weight, ends)
