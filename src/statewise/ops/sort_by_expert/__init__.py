"""Where the rows of a mixture of experts go: a counting sort of (token, choice) by expert, and its inverse."""

from torch import Tensor

from statewise.ops.common import expect, expect_slots, implementation


def sort_by_expert(chosen: Tensor, experts: int, *, backend: str = "torch") -> tuple[Tensor, Tensor, Tensor]:
    """Sort the L * k choices of L tokens by expert; those of one expert stay in the order of their tokens.

    chosen: (L, k), int32 or int64, each below ``experts``; L * k below 2^31.
    Returns, in chosen's dtype, tokens (L * k,): the token of each row when rows are sorted, and places (L, k): where
    the row of each choice is, so that ``sorted_rows[places]`` puts them back. And ends, (experts,) int32: where the
    rows of each expert end, as PyTorch's grouped matrix product takes it. Whole numbers in a fixed order: the same on
    every backend. Raises ArgumentError where shapes or dtypes do not fit.
    """
    op = "sort_by_expert"
    expect(chosen.dim() == 2, op, f"chosen has shape {tuple(chosen.shape)}, expected (L, k)")
    expect(experts > 0, op, f"experts is {experts}, expected at least 1")
    expect(chosen.numel() < 2**31, op, f"chosen has {chosen.numel()} choices, expected fewer than 2^31")
    expect_slots(op, chosen=chosen)
    return implementation(op, backend)(chosen, experts)
