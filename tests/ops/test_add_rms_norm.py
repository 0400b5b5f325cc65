"""Add and norm: every backend against the loop, and each row by itself."""

import pytest
import torch

from statewise.errors import ArgumentError
from statewise.ops import add_rms_norm
from tests.ops.kernels import ACTIVATIONS, DEVICE, HAS_GPU, assert_as_good

SHAPES = [(1, 1), (3, 12), (5, 96), (2, 300)] + ([(257, 4480), (1, 16384)] if HAS_GPU else [])


def inputs(rows, width, residual_dtype, dtype, seed=0):
    g = torch.Generator().manual_seed(seed)
    residual, update = (torch.randn(rows, width, generator=g).to(residual_dtype), torch.randn(rows, width, generator=g))
    weight = (torch.rand(width, generator=g) + 0.5).to(dtype)
    return residual.to(DEVICE), update.to(dtype).to(DEVICE), weight.to(DEVICE)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("residual_dtype", ACTIVATIONS)
@pytest.mark.parametrize("dtype", ACTIVATIONS)
@pytest.mark.parametrize("has_update", [True, False])
def test_triton_is_as_good_as_torch(shape, residual_dtype, dtype, has_update):
    residual, update, weight = inputs(*shape, residual_dtype, dtype)
    given = update if has_update else None
    exact, exact_total = add_rms_norm(residual.double(), update.double() if has_update else None, weight.double())
    kept = residual.clone()
    normed, total = add_rms_norm(residual, given, weight, backend="triton")
    torch_normed, torch_total = add_rms_norm(residual, given, weight)
    assert torch.equal(residual, kept)
    assert (normed.dtype, total.dtype) == (dtype, residual_dtype)
    assert (total is residual) == (not has_update)
    assert_as_good(total, torch_total, exact_total)
    assert_as_good(normed, torch_normed, exact)


def test_torch_equals_the_loop():
    residual, update, weight = (t.double() for t in inputs(3, 12, torch.float32, torch.float32))
    for given in (update, None):
        for a, b in zip(
            add_rms_norm(residual, given, weight),
            add_rms_norm(residual, given, weight, backend="reference"),
            strict=True,
        ):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("backend", ["torch", "triton"])
def test_a_row_does_not_depend_on_its_company(backend):
    residual, update, weight = inputs(7, 200, torch.float32, torch.float16)
    together = add_rms_norm(residual, update, weight, backend=backend)
    order = torch.tensor([3, 0, 6], device=DEVICE)
    apart = add_rms_norm(residual[order], update[order], weight, backend=backend)
    assert all(torch.equal(a[order], b) for a, b in zip(together, apart, strict=True))


def test_strided_rows_and_none_at_all():
    residual, update, weight = inputs(4, 64, torch.float32, torch.float32)
    wide = torch.full((4, 100), torch.nan, device=DEVICE)
    wide[:, 5:69] = update
    got, expected = (
        add_rms_norm(residual, wide[:, 5:69], weight, backend="triton"),
        add_rms_norm(residual, update, weight),
    )
    torch.testing.assert_close(got, expected)
    assert add_rms_norm(residual[:0], update[:0], weight, backend="triton")[0].shape == (0, 64)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"residual": torch.zeros(2, 3, 4)}, r"residual has shape \(2, 3, 4\), expected \(L, D\)"),
        ({"update": torch.zeros(2, 3)}, r"update has shape \(2, 3\), expected \(2, 4\)"),
        ({"weight": torch.zeros(3)}, r"weight has shape \(3,\), expected \(4,\)"),
    ],
)
def test_what_does_not_fit_is_an_error(change, message):
    with pytest.raises(ArgumentError, match=message):
        add_rms_norm(**({"residual": torch.zeros(2, 4), "update": torch.zeros(2, 4), "weight": torch.ones(4)} | change))
