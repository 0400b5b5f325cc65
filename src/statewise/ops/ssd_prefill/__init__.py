"""Prefill: the chunked scan (SSD) of Mamba-2 over a packed batch of sequences of any length, zero included."""

from torch import Tensor

from statewise.ops.common import NO_LIMIT, expect, expect_groups, expect_shape, expect_slots, implementation


def ssd_prefill(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    cu_seqlens: Tensor,
    *,
    initial_states: Tensor | None = None,
    has_initial_state: Tensor | None = None,
    state: Tensor | None = None,
    slots: Tensor | None = None,
    D: Tensor | None = None,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    dt_limit: tuple[float, float] = NO_LIMIT,
    chunk_size: int | None = None,
    backend: str = "torch",
) -> tuple[Tensor, Tensor]:
    """Run every sequence of a packed batch and return the outputs and the final states.

    x: (L, H, P), activation dtype, the sequences one after the other.  dt: (L, H), raw.  A: (H,), negative.
    B, C: (L, G, N).  cu_seqlens: (Q + 1,), int32 or int64, starts at 0 and ends at L; sequence i is
    [cu_seqlens[i], cu_seqlens[i + 1]), and may be empty: its final state is then its initial state.
    D, dt_bias: (H,).  z: (L, H, P).
    chunk_size: tokens a chunk, at most; None leaves it to the backend. It changes the speed, never the result.

    Where states come from and go to, one of two ways:
    - initial_states: (Q, H, P, N) or None (zeros).  has_initial_state: (Q,) bool or None (all, if initial_states is
      given); where it is False the sequence starts from zeros, whatever initial_states holds there, NaN included.
    - state: (S, H, P, N), a pool; sequence i starts from row ``slots[i]`` where has_initial_state[i] is True (None:
      nowhere), else from zeros, and its final state is written there, rounded to the pool's dtype.  slots: (Q,), int32
      or int64, each its own; -1 marks a padded sequence, which reads and writes no state and whose outputs are zero.

    Returns y (L, H, P) in x's dtype, and the final states: (Q, H, P, N) in float32 (float64 if x or initial_states
    is), or ``state`` itself. Differentiable on the torch backend, without a pool. Raises ArgumentError where shapes or
    cu_seqlens do not fit.
    The algorithm is section 6 of Dao and Gu, "Transformers are SSMs" (2024).
    """
    length, heads, head_dim = x.shape
    _, groups, state_size = B.shape
    sequences = cu_seqlens.shape[0] - 1
    expect_shape(
        "ssd_prefill",
        dt=(dt, (length, heads)),
        A=(A, (heads,)),
        B=(B, (length, groups, state_size)),
        C=(C, (length, groups, state_size)),
        initial_states=(initial_states, (sequences, heads, head_dim, state_size)),
        has_initial_state=(has_initial_state, (sequences,)),
        state=(state, (0 if state is None else state.shape[0], heads, head_dim, state_size)),
        slots=(slots, (sequences,)),
        D=(D, (heads,)),
        z=(z, (length, heads, head_dim)),
        dt_bias=(dt_bias, (heads,)),
    )
    expect_groups("ssd_prefill", heads, groups)
    expect_slots("ssd_prefill", cu_seqlens=cu_seqlens, slots=slots)
    expect(chunk_size is None or chunk_size >= 1, "ssd_prefill", f"chunk_size is {chunk_size}, expected at least 1")
    expect_packed("ssd_prefill", cu_seqlens, length)
    expect((state is None) == (slots is None), "ssd_prefill", "state and slots are given together")
    expect(state is None or initial_states is None, "ssd_prefill", "states come from state or initial_states, not both")
    if initial_states is None and state is None:
        expect(has_initial_state is None, "ssd_prefill", "has_initial_state is given without initial_states or state")
    run = implementation("ssd_prefill", backend)
    return run(
        x, dt, A, B, C, cu_seqlens, initial_states, has_initial_state, state, slots, D, z, dt_bias, dt_limit, chunk_size
    )  # fmt: skip


def expect_packed(op: str, cu_seqlens: Tensor, length: int) -> None:
    """Raise ArgumentError unless cu_seqlens rises from 0 to length. Only where reading it costs no device wait."""
    if cu_seqlens.device.type == "cpu":
        edges = cu_seqlens.tolist()
        good = edges[:1] == [0] and edges[-1] == length and edges == sorted(edges)
        expect(good, op, f"cu_seqlens is {edges}, expected to rise from 0 to {length}")
