"""The convolution: torch against reference, any split of a prompt, prompts shorter than the window, pads."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from statewise.ops import causal_conv_prefill, causal_conv_step

NAN = float("nan")


def normal(g, *shape):
    return torch.randn(*shape, generator=g, dtype=torch.float64)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 6), min_size=1, max_size=4),
    st.integers(1, 5),
    st.integers(1, 4),
    st.booleans(),
    st.sampled_from(["silu", None]),
    st.integers(0, 10**6),
)
def test_prefill_equals_the_loop(lengths, channels, width, with_bias, activation, seed):
    g = torch.Generator().manual_seed(seed)
    x, weight = normal(g, sum(lengths), channels), normal(g, channels, width)
    bias = normal(g, channels) if with_bias else None
    edges = torch.tensor([0, *lengths]).cumsum(0)
    slots = torch.randperm(len(lengths) + 2, generator=g)[: len(lengths)]
    slots[torch.rand(len(lengths), generator=g) < 0.2] = -1
    has = torch.rand(len(lengths), generator=g) < 0.5
    window = torch.full((len(lengths) + 2, channels, width - 1), NAN, dtype=torch.float64)
    live = slots[has & (slots >= 0)]
    window[live] = normal(g, len(live), channels, width - 1)
    expected_window = window.clone()
    kwargs = {"bias": bias, "slots": slots, "has_window": has, "activation": activation}
    y = causal_conv_prefill(x, weight, edges, window=window, **kwargs)
    expected = causal_conv_prefill(x, weight, edges, window=expected_window, **kwargs, backend="reference")
    torch.testing.assert_close(y, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(window, expected_window, rtol=0, atol=0, equal_nan=True)
    for i, slot in enumerate(slots.tolist()):
        if slot < 0:
            assert (y[edges[i] : edges[i + 1]] == 0).all()


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 9), st.integers(0, 9), st.integers(1, 4), st.integers(0, 10**6))
def test_any_split_then_steps_equals_one_prefill(length, cut, width, seed):
    """Prefill up to ``cut`` (perhaps in two chunks), then single steps, against the whole sequence without a cache."""
    g = torch.Generator().manual_seed(seed)
    cut = min(cut, length)
    x, weight, bias = normal(g, length, 3), normal(g, 3, width), normal(g, 3)
    whole = causal_conv_prefill(x, weight, torch.tensor([0, length]), bias=bias)
    window, slots = torch.full((2, 3, width - 1), NAN, dtype=torch.float64), torch.tensor([1])
    parts, has = [], torch.tensor([False])
    for begin, end in ((0, cut // 2), (cut // 2, cut)):
        edges = torch.tensor([0, end - begin])
        parts.append(
            causal_conv_prefill(x[begin:end], weight, edges, bias=bias, window=window, slots=slots, has_window=has)
        )
        has = torch.tensor([True])
    for t in range(cut, length):
        backend = "torch" if t % 2 else "reference"
        parts.append(causal_conv_step(x[t : t + 1], weight, window, slots, bias=bias, backend=backend))
    torch.testing.assert_close(torch.cat(parts), whole, rtol=1e-12, atol=1e-12)
    assert window[0].isnan().all()


@pytest.mark.parametrize("backend", ["torch", "reference"])
def test_a_padded_row_reads_and_writes_nothing(backend):
    g = torch.Generator().manual_seed(0)
    x, weight = normal(g, 3, 2), normal(g, 2, 4)
    window = normal(g, 4, 2, 3)
    before = window.clone()
    x[1] = NAN
    y = causal_conv_step(x, weight, window, torch.tensor([2, -1, 0]), backend=backend)
    assert (y[1] == 0).all()
    assert y.isfinite().all()
    assert torch.equal(window[[1, 3]], before[[1, 3]])


def test_one_sequence_cannot_reach_its_neighbour():
    g = torch.Generator().manual_seed(0)
    x, weight = normal(g, 6, 2), normal(g, 2, 4)
    x[:3] = NAN
    y = causal_conv_prefill(x, weight, torch.tensor([0, 3, 6]))
    assert y[3:].isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_low_precision_rounds_once(dtype):
    g = torch.Generator().manual_seed(0)
    x, weight = normal(g, 32, 8).to(dtype), normal(g, 8, 4).to(dtype)
    y = causal_conv_prefill(x, weight, torch.tensor([0, 32]))
    exact = causal_conv_prefill(x.double(), weight.double(), torch.tensor([0, 32]), backend="reference")
    assert y.dtype == dtype
    torch.testing.assert_close(y.double(), exact, rtol=torch.finfo(dtype).eps, atol=1e-6)
