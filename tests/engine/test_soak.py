"""Many short requests through few slots leave nothing behind. The long soak: `python -m tests.engine.soak`."""

import pytest

from tests.engine.soak import build, leaks, soak
from tests.ops.kernels import HAS_GPU


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_nothing_is_left_of_many_requests(device):
    if device == "cuda" and not HAS_GPU:
        pytest.skip("needs a CUDA device")
    built = build(device, async_scheduling=True)
    before, after, reasons = soak(built, 600)
    assert sum(reasons.values()) == 600
    assert set(reasons) == {"stop", "length", "abort"}
    assert built.counters.swaps_in > 20
    assert leaks(before, after) == []
