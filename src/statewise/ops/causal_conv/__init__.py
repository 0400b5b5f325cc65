"""The short depthwise causal convolution before the scan: prefill over a packed batch, and the one-token step."""

from torch import Tensor

from statewise.ops.common import expect, expect_shape, expect_slots, implementation
from statewise.ops.ssd_prefill import expect_packed


def causal_conv_prefill(
    x: Tensor,
    weight: Tensor,
    cu_seqlens: Tensor,
    *,
    bias: Tensor | None = None,
    window: Tensor | None = None,
    slots: Tensor | None = None,
    has_window: Tensor | None = None,
    activation: str | None = "silu",
    backend: str = "torch",
) -> Tensor:
    """Convolve every sequence of a packed batch and keep its last K - 1 inputs in its slot.

    x: (L, C), the sequences one after the other.  weight: (C, K).  bias: (C,) or None.
    cu_seqlens: (Q + 1,), from 0 to L; a sequence may be empty or shorter than the window.
    window: (S, C, K - 1), the last inputs of each slot, oldest first, or None: every sequence starts from zeros
    and nothing is kept.
    slots: (Q,), given with window; -1 marks a padded sequence, which reads and writes nothing and whose outputs
    are zero.
    has_window: (Q,) bool or None (none has): whether the sequence continues from its slot's window or starts from
    zeros.
    activation: "silu" or None.

    Returns (L, C) in x's dtype. Sums are float32 (float64 if x is). Raises ArgumentError where shapes do not fit.
    """
    length, channels = x.shape
    width, sequences = weight.shape[1], cu_seqlens.shape[0] - 1
    expect_shape(
        "causal_conv_prefill",
        weight=(weight, (channels, width)),
        bias=(bias, (channels,)),
        window=(window, (0 if window is None else window.shape[0], channels, width - 1)),
        slots=(slots, (sequences,)),
        has_window=(has_window, (sequences,)),
    )
    expect_slots("causal_conv_prefill", cu_seqlens=cu_seqlens, slots=slots)
    expect_packed("causal_conv_prefill", cu_seqlens, length)
    together = (window is None) == (slots is None) and (has_window is None or window is not None)
    expect(together, "causal_conv_prefill", "window and slots are given together, has_window only with them")
    _expect_activation("causal_conv_prefill", activation)
    run = implementation("causal_conv", backend, "causal_conv_prefill")
    return run(x, weight, cu_seqlens, bias, window, slots, has_window, activation)


def causal_conv_step(
    x: Tensor,
    weight: Tensor,
    window: Tensor,
    slots: Tensor,
    *,
    bias: Tensor | None = None,
    activation: str | None = "silu",
    backend: str = "torch",
) -> Tensor:
    """Convolve one new token a row with its slot's window, and shift the window by one.

    x: (B, C).  weight: (C, K).  window: (S, C, K - 1), oldest first.  slots: (B,); -1 marks a padded row, which
    reads and writes nothing and whose output is zero.  bias: (C,) or None.  activation: "silu" or None.

    Returns (B, C) in x's dtype. Raises ArgumentError where shapes do not fit.
    """
    batch, channels = x.shape
    width = weight.shape[1]
    expect_shape(
        "causal_conv_step",
        weight=(weight, (channels, width)),
        window=(window, (window.shape[0], channels, width - 1)),
        slots=(slots, (batch,)),
        bias=(bias, (channels,)),
    )
    expect_slots("causal_conv_step", slots=slots)
    _expect_activation("causal_conv_step", activation)
    run = implementation("causal_conv", backend, "causal_conv_step")
    return run(x, weight, window, slots, bias, activation)


def _expect_activation(op: str, activation: str | None) -> None:
    expect(activation in (None, "silu"), op, f"activation is {activation!r}, expected 'silu' or None")
