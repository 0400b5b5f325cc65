"""Where one sequence has too few programs: the states that enter its segments, so that all of these run at once."""

import triton
import triton.language as tl

from statewise.ops.ssd_prefill.triton_kernels import (
    SIZES,
    add_to_state,
    find_block,
    find_state,
    load_steps,
    load_tokens,
)
from statewise.ops.triton_common import start


@triton.jit(do_not_specialize=["p_cu_seqlens", *SIZES])
def segment_state_kernel(
    p_x, p_B, p_steps, p_cu_seqlens, p_states, p_total,
    length, sequences, segment, stride_x_h, stride_B_g, stride_x_l: tl.constexpr, stride_B_l: tl.constexpr,
    H: tl.constexpr, P: tl.constexpr, N: tl.constexpr, HEADS_PER_GROUP: tl.constexpr,
    Q: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_N: tl.constexpr, WHOLE: tl.constexpr,
    DOT: tl.constexpr, USE_PDL: tl.constexpr,
):  # fmt: skip
    """What a segment adds to the state, and the log2 of its decay; not a sequence's last. One program a tile of P, head
    and segment."""
    start(USE_PDL, False)
    i_h, i_segment = tl.program_id(0) // tl.cdiv(P, BLOCK_P), tl.program_id(1)
    _, begin, end, i_part = find_block(p_cu_seqlens, i_segment, segment, sequences)
    begin += i_part.to(tl.int64) * segment
    if begin + segment >= end:
        return
    o_n = tl.arange(0, BLOCK_N)
    o_p = (tl.program_id(0) % tl.cdiv(P, BLOCK_P)) * BLOCK_P + tl.arange(0, BLOCK_P)
    p_x += begin * stride_x_l + i_h * stride_x_h
    p_B += begin * stride_B_l + (i_h // HEADS_PER_GROUP) * stride_B_g
    p_steps += 2 * (i_h.to(tl.int64) * length + begin)

    b_state = tl.zeros([BLOCK_N, BLOCK_P], tl.float32)
    total = 0.0
    for _ in range(segment // Q):
        b_x = load_tokens(p_x, stride_x_l, Q, o_p, P, Q, WHOLE, DOT)
        b_B = load_tokens(p_B, stride_B_l, Q, o_n, N, Q, WHOLE, DOT)
        b_decay, b_dt = load_steps(p_steps, Q, Q)
        last = tl.load(p_steps + 2 * (Q - 1))
        b_state = add_to_state(b_state * tl.exp2(last), b_x, b_B, tl.exp2(last - b_decay) * b_dt, DOT)
        total += last
        p_x += Q * stride_x_l
        p_B += Q * stride_B_l
        p_steps += 2 * Q
    i_row = i_segment.to(tl.int64) * H + i_h
    o_state = i_row * P * N + o_p[None, :] * N + o_n[:, None]
    tl.store(p_states + o_state, b_state, mask=(o_n < N)[:, None] & (o_p < P)[None, :])
    tl.store(p_total + i_row, total)


@triton.jit(do_not_specialize=["p_has_initial", "p_slots", "p_cu_seqlens", *SIZES])
def pass_states_kernel(
    p_states, p_total, p_initial, p_has_initial, p_slots, p_cu_seqlens,
    segment, reads_initial, stride_i_s, stride_i_h, stride_i_p,
    H: tl.constexpr, P: tl.constexpr, N: tl.constexpr,
    HAS_MASK: tl.constexpr, HAS_SLOTS: tl.constexpr, BLOCK: tl.constexpr,
    USE_PDL: tl.constexpr,
):  # fmt: skip
    """Replace what each segment adds by the state that enters it. One program a block of the state, head, sequence."""
    start(USE_PDL, False)
    i_h, i_sequence = tl.program_id(1), tl.program_id(2)
    i_slot = find_state(p_slots, i_sequence, HAS_SLOTS)
    if HAS_SLOTS:  # noqa: SIM102 - decided at compile time, the next line on the device
        if i_slot < 0:
            return
    SIZE: tl.constexpr = P * N
    begin = tl.load(p_cu_seqlens + i_sequence).to(tl.int64)
    end = tl.load(p_cu_seqlens + i_sequence + 1).to(tl.int64)
    count = tl.maximum(tl.cdiv(end - begin, segment), 1)
    o_s = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m_s = o_s < SIZE
    has = tl.load(p_has_initial + i_sequence) != 0 if HAS_MASK else reads_initial != 0
    p_from = p_initial + i_slot * stride_i_s + i_h * stride_i_h + (o_s // N) * stride_i_p + o_s % N
    b_state = tl.load(p_from, mask=m_s & has, other=0.0).to(tl.float32)
    i_row = (begin // segment + i_sequence) * H + i_h
    for i in range(count):
        m_own = m_s & (i < count - 1)
        b_own = tl.load(p_states + i_row * SIZE + o_s, mask=m_own, other=0.0)
        total = tl.load(p_total + i_row, mask=i < count - 1, other=0.0)
        tl.store(p_states + i_row * SIZE + o_s, b_state, mask=m_s)
        b_state = tl.exp2(total) * b_state + b_own
        i_row += H
