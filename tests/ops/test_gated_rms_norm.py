"""The gated norm: torch against reference in every form."""

import pytest
import torch

from statewise.errors import ArgumentError
from statewise.ops import gated_rms_norm


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("group_size", [None, 2, 6, 12])
def test_torch_equals_the_loop(before, weighted, gated, group_size):
    g = torch.Generator().manual_seed(0)
    x = torch.randn(2, 3, 12, generator=g, dtype=torch.float64)
    z = torch.randn(2, 3, 12, generator=g, dtype=torch.float64) if gated else None
    weight = torch.rand(12, generator=g, dtype=torch.float64) if weighted else None
    kwargs = {"group_size": group_size, "norm_before_gate": before}
    y = gated_rms_norm(x, z, weight, **kwargs)
    torch.testing.assert_close(y, gated_rms_norm(x, z, weight, **kwargs, backend="reference"), rtol=1e-12, atol=1e-12)


def test_groups_are_normalised_apart():
    x = torch.cat([torch.full((1, 4), 100.0), torch.full((1, 4), 0.01)], 1)
    y = gated_rms_norm(x, None, torch.ones(8), group_size=4, eps=0.0)
    torch.testing.assert_close(y, torch.ones(1, 8))


def test_the_gate_is_inside_the_norm_unless_told():
    x, z, weight = torch.ones(1, 4), torch.tensor([[1.0, 2.0, 3.0, 4.0]]), torch.ones(4)
    gated = x * torch.nn.functional.silu(z)
    inside = gated / gated.pow(2).mean().add(1e-5).sqrt()
    torch.testing.assert_close(gated_rms_norm(x, z, weight), inside)
    torch.testing.assert_close(gated_rms_norm(x, z, weight, norm_before_gate=True, eps=0.0), gated)
    torch.testing.assert_close(gated_rms_norm(x, z), gated)


def test_a_group_size_that_does_not_divide_is_an_error():
    with pytest.raises(ArgumentError, match="group_size 5 does not divide 12"):
        gated_rms_norm(torch.ones(1, 12), group_size=5)
