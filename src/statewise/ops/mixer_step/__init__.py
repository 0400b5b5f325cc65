"""A Mamba-2 mixer's decode step, from the input projection to the output projection: one token a row."""

from torch import Tensor

from statewise.ops.checkpointed_step import expect_step
from statewise.ops.common import NO_LIMIT, expect, expect_shape, implementation
from statewise.ops.mixer_step.scratch import Scratch
from statewise.ops.rounding import expect_rounding


def mixer_step(
    xBC: Tensor,
    dt: Tensor,
    z: Tensor | None,
    *,
    conv_weight: Tensor,
    conv_window: Tensor,
    A: Tensor,
    state: Tensor,
    x_ring: Tensor,
    B_ring: Tensor,
    dt_ring: Tensor,
    ring_start: Tensor,
    pending: Tensor,
    window: int,
    read_slots: Tensor,
    write_slots: Tensor | None = None,
    conv_bias: Tensor | None = None,
    D: Tensor | None = None,
    dt_bias: Tensor | None = None,
    dt_limit: tuple[float, float] = NO_LIMIT,
    norm_weight: Tensor | None = None,
    eps: float = 1e-5,
    group_size: int | None = None,
    norm_before_gate: bool = False,
    rand_seed: Tensor | None = None,
    rand_layer: int = 0,
    out: Tensor | None = None,
    scratch: Scratch | None = None,
    prefetch: bool = False,
    backend: str = "torch",
) -> Tensor:
    """`causal_conv_step`, `checkpointed_step` and `gated_rms_norm` of one new token a row, in three launches on a GPU.

        x, B, C = silu(conv(xBC));  y = checkpointed_step(x, dt, A, B, C, ...);  out = gated_rms_norm(y, z, norm_weight)

    xBC: (B, H * P + 2 * G * N), dt: (B, H), z: (B, H * P) or None, slices of what the input projection made.
    conv_weight: (C, K), conv_bias: (C,) or None, conv_window: (S, C, K - 1), with C the channels of xBC.
    A, D, dt_bias: (H,).  norm_weight: (H * P,), or None: ``out = y * silu(z)``, in two launches.
    eps, group_size, norm_before_gate: as in `gated_rms_norm`.
    state to prefetch: as in `checkpointed_step`; the convolution window is that of ``write_slots``, and the promise of
    prefetch includes it. -1 in either slot marks a padded row: it reads and writes nothing, its y is zero.
    out: (B, H * P), where the result goes, or None: it is allocated.  scratch: of at least B rows, or None: likewise.

    Returns (B, H * P) in xBC's dtype. Raises ArgumentError where shapes do not fit, and what the three ops raise.
    """
    op, channels, inner = "mixer_step", xBC.shape[1], state.shape[1] * state.shape[2]
    states = (channels - inner) // 2
    fits = states > 0 and channels == inner + 2 * states and states % state.shape[3] == 0
    message = f"xBC has {channels} channels, expected {inner} of x and 2 * G * {state.shape[3]} of B and C"
    expect(fits, op, message)
    write_slots = read_slots if write_slots is None else write_slots
    x, B, C = xBC[:, None].split([inner, states, states], -1)
    x, (B, C) = x.unflatten(-1, state.shape[1:3]), (t.unflatten(-1, (-1, state.shape[3])) for t in (B, C))
    ring = (x_ring, B_ring, dt_ring, ring_start, pending, window)
    expect_step(op, x, dt[:, None], A, B, C, state, *ring, read_slots, write_slots, D, None, dt_bias)
    expect_rounding(op, state, rand_seed, rand_layer)
    width = conv_weight.shape[1]
    expect_shape(
        op,
        z=(z, (xBC.shape[0], inner)),
        conv_weight=(conv_weight, (channels, width)),
        conv_bias=(conv_bias, (channels,)),
        conv_window=(conv_window, (state.shape[0], channels, width - 1)),
        norm_weight=(norm_weight, (inner,)),
        out=(out, (xBC.shape[0], inner)),
    )
    group_size = inner if group_size is None else group_size
    divides = group_size > 0 and inner % group_size == 0
    expect(divides, op, f"group_size {group_size} does not divide {inner} channels")
    return implementation(op, backend)(
        xBC,
        dt,
        z,
        conv_weight=conv_weight,
        conv_window=conv_window,
        A=A,
        state=state,
        x_ring=x_ring,
        B_ring=B_ring,
        dt_ring=dt_ring,
        ring_start=ring_start,
        pending=pending,
        window=window,
        read_slots=read_slots,
        write_slots=write_slots,
        conv_bias=conv_bias,
        D=D,
        dt_bias=dt_bias,
        dt_limit=dt_limit,
        norm_weight=norm_weight,
        eps=eps,
        group_size=group_size,
        norm_before_gate=norm_before_gate,
        rand_seed=rand_seed,
        rand_layer=rand_layer,
        out=out,
        scratch=scratch,
        prefetch=prefetch,
    )
