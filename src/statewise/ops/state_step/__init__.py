"""The plain step: one token a row, the state read and written. The selective state update (SSU) of Mamba-2."""

from torch import Tensor

from statewise.ops.common import NO_LIMIT, expect_groups, expect_shape, expect_slots, implementation
from statewise.ops.rounding import expect_rounding


def state_step(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    state: Tensor,
    *,
    read_slots: Tensor,
    write_slots: Tensor | None = None,
    D: Tensor | None = None,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    dt_limit: tuple[float, float] = NO_LIMIT,
    rand_seed: Tensor | None = None,
    rand_layer: int = 0,
    prefetch: bool = False,
    backend: str = "torch",
) -> Tensor:
    """Advance each row's state by one token and return the outputs.

        dt = clamp(softplus(dt + dt_bias), *dt_limit)
        S  = exp(A * dt) * S + dt * outer(x, B)
        y  = (S @ C + D * x) * silu(z)

    x: (B, H, P), activation dtype.  dt: (B, H), raw.  A: (H,), negative.  B, C: (B, G, N).
    Head h uses group h // (H / G).
    state: (S, H, P, N), float16, bfloat16, float32 or float64; rows of it are read at ``read_slots`` and written
    at ``write_slots`` (None: the same). Slots: (B,), int32 or int64; -1 marks a padded row, which reads nothing, writes
    nothing, and whose output is zero. Two rows must not write one slot.
    D, dt_bias: (H,).  z: (B, H, P).  All four options may be None or left out.
    rand_seed: (1,), int64, or None: how a float16 or bfloat16 state is rounded when it is written, stochastically or
    to nearest. The words are Philox4x32-10 (Salmon et al. 2011) of this seed, ``rand_layer``, the slot written and the
    element's place in it, the same in every backend. Change the seed in place between steps: a captured CUDA graph
    then draws new numbers.  rand_layer: tells apart the layers that share a seed.
    prefetch: the caller promises that no kernel launched since the last one without programmatic dependence (such as
    any kernel of PyTorch's, or a matrix product) writes ``state``, the slots or A. The triton backend then reads them
    while the kernel in front still runs; the other backends have nothing to overlap.

    Returns (B, H, P) in x's dtype. Sums are float32 (float64 if x or the state is).
    Raises ArgumentError where shapes do not fit or a rand_seed has nothing to round, BackendError for an unknown
    backend.
    The maths is Dao and Gu, "Transformers are SSMs" (2024); mamba_ssm calls it ``selective_state_update``.
    """
    batch, heads, head_dim = x.shape
    _, groups, state_size = B.shape
    write_slots = read_slots if write_slots is None else write_slots
    expect_shape(
        "state_step",
        dt=(dt, (batch, heads)),
        A=(A, (heads,)),
        B=(B, (batch, groups, state_size)),
        C=(C, (batch, groups, state_size)),
        state=(state, (state.shape[0], heads, head_dim, state_size)),
        read_slots=(read_slots, (batch,)),
        write_slots=(write_slots, (batch,)),
        D=(D, (heads,)),
        z=(z, (batch, heads, head_dim)),
        dt_bias=(dt_bias, (heads,)),
    )
    expect_groups("state_step", heads, groups)
    expect_slots("state_step", read_slots=read_slots, write_slots=write_slots)
    expect_rounding("state_step", state, rand_seed, rand_layer)
    run = implementation("state_step", backend)
    launch = {"prefetch": prefetch} if backend == "triton" else {}
    options = (read_slots, write_slots, D, z, dt_bias, dt_limit, rand_seed, rand_layer)
    return run(x, dt, A, B, C, state, *options, **launch)
