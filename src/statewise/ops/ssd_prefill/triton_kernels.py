"""The kernels of the chunked scan. Who launches them, with what and in which order: triton.py; why so: the README.

p_ is a pointer, b_ a block in registers, o_ offsets, m_ a mask, i_ an index. Q is the tokens of a chunk. DOT is how
products are formed: "bf16" of bfloat16 inputs; "tf32" of float16 ones, whose range a state may exceed; "tf32x3" of
float32 ones.
"""

import triton
import triton.language as tl

from statewise.ops.triton_common import silu, softplus, start

# What differs from step to step: a kernel that is specialised on it compiles in the middle of serving.
SIZES = ("length", "sequences", "segment", "reads_initial")


@triton.jit
def find_block(p_cu_seqlens, i_block, size, sequences):
    """(sequence, its first token, its end, which of its blocks) of a block of ``size`` tokens of a packed batch.

    Sequence i has the blocks from ``cu_seqlens[i] // size + i`` on. That leaves it at least as many as it needs; some
    lie past its end. ``length // size + sequences`` blocks are enough whatever the lengths are.
    """
    i_low, i_high = 0, sequences
    while i_high - i_low > 1:
        i_mid = (i_low + i_high) // 2
        is_later = tl.load(p_cu_seqlens + i_mid).to(tl.int64) // size + i_mid <= i_block
        i_low = tl.where(is_later, i_mid, i_low)
        i_high = tl.where(is_later, i_high, i_mid)
    begin = tl.load(p_cu_seqlens + i_low).to(tl.int64)
    end = tl.load(p_cu_seqlens + i_low + 1).to(tl.int64)
    return i_low + 0 * i_block, begin, end, i_block - begin // size - i_low  # a tensor, also for one sequence


@triton.jit
def find_state(p_slots, i_sequence, HAS_SLOTS: tl.constexpr):
    """Which state is this sequence's: that of its slot, negative for a padded sequence, or that of its own number."""
    return tl.load(p_slots + i_sequence).to(tl.int64) if HAS_SLOTS else i_sequence.to(tl.int64)


@triton.jit
def zero_tokens(p, stride, tokens, columns, BLOCK_T: tl.constexpr, BLOCK_C: tl.constexpr):
    """Zeros in ``tokens`` rows of ``columns`` values."""
    o_t, o_c = tl.arange(0, BLOCK_T), tl.arange(0, BLOCK_C)
    for i_t in range(0, tokens, BLOCK_T):
        for i_c in range(0, columns, BLOCK_C):
            m = (i_t + o_t < tokens)[:, None] & (i_c + o_c < columns)[None, :]
            p_tile = p + (i_t + o_t).to(tl.int64)[:, None] * stride + (i_c + o_c)[None, :]
            tl.store(p_tile, tl.zeros([BLOCK_T, BLOCK_C], p.dtype.element_ty), mask=m)


@triton.jit
def load_tokens(p, stride, tokens, o_column, columns, Q: tl.constexpr, WHOLE: tl.constexpr, DOT: tl.constexpr):
    """Q tokens by columns as an operand of a product, exact in every mode; zeros past ``tokens`` and ``columns``."""
    o_q = tl.arange(0, Q)
    p_tile = p + o_q[:, None] * stride + o_column[None, :]
    if WHOLE:
        b = tl.load(p_tile)
    else:
        b = tl.load(p_tile, mask=(o_q < tokens)[:, None] & (o_column < columns)[None, :], other=0.0)
    return b if DOT == "bf16" else b.to(tl.float32)


@triton.jit
def round_operand(b, DOT: tl.constexpr):
    """Float32 values as an operand, rounded to nearest if it is narrower: tensor cores cut off what TF32 lacks."""
    if DOT == "bf16":
        b = b.to(tl.bfloat16)
    elif DOT == "tf32":
        b = ((b.to(tl.int32, bitcast=True) + 0x1000) & -0x2000).to(tl.float32, bitcast=True)
    return b


@triton.jit
def multiply(b_a, b_b, b_sum, DOT: tl.constexpr):
    return tl.dot(b_a, b_b, b_sum, input_precision="tf32x3" if DOT == "tf32x3" else "tf32")


@triton.jit
def add_to_state(b_state, b_x, b_B, b_weight, DOT: tl.constexpr):
    """b_state (N, P) plus the sum over tokens of weight * outer(B, x). A second operand holds what one cuts off."""
    b_weighted = b_x.to(tl.float32) * b_weight[:, None]
    if DOT == "tf32x3":
        b_state = multiply(tl.trans(b_B), b_weighted, b_state, DOT)
    else:
        bits = -0x10000 if DOT == "bf16" else -0x2000
        b_high = (b_weighted.to(tl.int32, bitcast=True) & bits).to(tl.float32, bitcast=True)
        b_state = multiply(tl.trans(b_B), b_high.to(b_B.dtype), b_state, DOT)
        b_state = multiply(tl.trans(b_B), (b_weighted - b_high).to(b_B.dtype), b_state, DOT)
    return b_state


@triton.jit
def load_steps(p_steps, tokens, Q: tl.constexpr):
    """(decay, dt) of Q tokens. Past the last, dt is 0 and nothing decays further.

    One load of pairs: two loads of Q values each would be done once for every thread that uses a value.
    """
    o_q = tl.arange(0, Q)
    b_pair = tl.load(p_steps + 2 * tl.minimum(o_q, tokens - 1)[:, None] + tl.arange(0, 2)[None, :])
    b_decay, b_dt = tl.split(b_pair)
    return b_decay, tl.where(o_q < tokens, b_dt, 0.0)


@triton.jit(do_not_specialize=["p_cu_seqlens", *SIZES])
def time_step_kernel(
    p_dt_raw, p_A, p_dt_bias, p_cu_seqlens, p_steps,
    length, sequences, heads, dt_low, dt_high, stride_dt_l, stride_dt_h,
    HAS_BIAS: tl.constexpr, HAS_LIMIT: tl.constexpr, Q: tl.constexpr, BLOCK_H: tl.constexpr, USE_PDL: tl.constexpr,
):  # fmt: skip
    """The log2 of the decay since the start of each chunk, and dt: (heads, length, 2). One program a chunk, heads."""
    start(USE_PDL, False)
    _, begin, end, i_chunk = find_block(p_cu_seqlens, tl.program_id(0), Q, sequences)
    o_t = begin + i_chunk.to(tl.int64) * Q + tl.arange(0, Q)
    o_h = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    m_h = o_h < heads
    m_th = (o_t < end)[:, None] & m_h[None, :]
    b_dt = tl.load(p_dt_raw + o_t[:, None] * stride_dt_l + o_h[None, :] * stride_dt_h, mask=m_th, other=0.0)
    b_dt = b_dt.to(tl.float32)
    if HAS_BIAS:
        b_dt += tl.load(p_dt_bias + o_h, mask=m_h, other=0.0).to(tl.float32)[None, :]
    b_dt = softplus(b_dt)
    if HAS_LIMIT:
        b_dt = tl.minimum(tl.maximum(b_dt, dt_low), dt_high)
    b_A = tl.load(p_A + o_h, mask=m_h, other=0.0).to(tl.float32) * 1.4426950408889634
    b_decay = tl.cumsum(b_dt * b_A[None, :], axis=0)
    o_out = o_h.to(tl.int64)[None, :] * length + o_t[:, None]
    tl.store(p_steps + 2 * o_out, b_decay, mask=m_th)
    tl.store(p_steps + 2 * o_out + 1, b_dt, mask=m_th)


@triton.jit
def scan_chunk(
    b_state, p_x, p_B, p_C, p_steps, p_z, p_y, D, tokens, o_p, o_n,
    stride_x_l, stride_B_l, stride_C_l, stride_z_l,
    P: tl.constexpr, N: tl.constexpr, STRIDE_Y: tl.constexpr, HAS_D: tl.constexpr, HAS_Z: tl.constexpr,
    Q: tl.constexpr, WHOLE: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """The outputs of up to Q tokens, and the state after them. WHOLE: Q tokens, no padding in P and N, so no masks."""
    o_q = tl.arange(0, Q)
    b_C = load_tokens(p_C, stride_C_l, tokens, o_n, N, Q, WHOLE, DOT)
    b_B = load_tokens(p_B, stride_B_l, tokens, o_n, N, Q, WHOLE, DOT)
    b_x = load_tokens(p_x, stride_x_l, tokens, o_p, P, Q, WHOLE, DOT)
    b_decay, b_dt = load_steps(p_steps, tokens, Q)
    last = tl.load(p_steps + 2 * (tokens - 1))

    b_CB = multiply(b_C, tl.trans(b_B), tl.zeros([Q, Q], tl.float32), DOT)
    b_y = multiply(b_C, round_operand(b_state, DOT), tl.zeros([Q, o_p.shape[0]], tl.float32), DOT)
    b_gap = tl.where(o_q[:, None] >= o_q[None, :], b_decay[:, None] - b_decay[None, :], float("-inf"))
    b_mix = round_operand(b_CB * tl.exp2(b_gap) * b_dt[None, :], DOT)
    b_y *= tl.exp2(b_decay)[:, None]
    b_y = multiply(b_mix, b_x, b_y, DOT)
    b_state *= tl.exp2(last)
    b_state = add_to_state(b_state, b_x, b_B, tl.exp2(last - b_decay) * b_dt, DOT)
    if HAS_D:
        b_y += D * b_x.to(tl.float32)
    if HAS_Z:
        b_y *= silu(load_tokens(p_z, stride_z_l, tokens, o_p, P, Q, WHOLE, "fp32"))
    p_tile = p_y + o_q[:, None] * STRIDE_Y + o_p[None, :]
    if WHOLE:
        tl.store(p_tile, b_y.to(p_y.dtype.element_ty))
    else:
        tl.store(p_tile, b_y.to(p_y.dtype.element_ty), mask=(o_q < tokens)[:, None] & (o_p < P)[None, :])
    return b_state


@triton.jit(do_not_specialize=["p_has_initial", "p_slots", "p_cu_seqlens", *SIZES])
def scan_kernel(
    p_x, p_B, p_C, p_steps, p_D, p_z, p_initial, p_has_initial, p_slots, p_cu_seqlens, p_y, p_final,
    length, sequences, segment, reads_initial, stride_x_h, stride_B_g, stride_C_g, stride_z_l, stride_z_h,
    stride_i_s, stride_i_h, stride_i_p, stride_f_s, stride_f_h, stride_f_p,
    stride_x_l: tl.constexpr, stride_B_l: tl.constexpr, stride_C_l: tl.constexpr,
    H: tl.constexpr, P: tl.constexpr, N: tl.constexpr, HEADS_PER_GROUP: tl.constexpr,
    HAS_MASK: tl.constexpr, HAS_SLOTS: tl.constexpr, HAS_D: tl.constexpr,
    HAS_Z: tl.constexpr, SEGMENTED: tl.constexpr, Q: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_N: tl.constexpr,
    WHOLE: tl.constexpr, DOT: tl.constexpr, USE_PDL: tl.constexpr,
):  # fmt: skip
    """Outputs and final states. One program a tile of P, head and segment or sequence: its state stays in registers.

    Those are short: the strides of tokens, the same at every call of a model, are constants, so that a tile needs one
    address and not one a row.
    """
    start(USE_PDL, False)
    i_h, i_block = tl.program_id(0) // tl.cdiv(P, BLOCK_P), tl.program_id(1)
    if SEGMENTED:
        i_sequence, begin, sequence_end, i_part = find_block(p_cu_seqlens, i_block, segment, sequences)
        begin += i_part.to(tl.int64) * segment
        if (i_part > 0) & (begin >= sequence_end):
            return
        end = tl.minimum(begin + segment, sequence_end)
    else:
        i_sequence = i_block
        begin = tl.load(p_cu_seqlens + i_sequence).to(tl.int64)
        sequence_end = tl.load(p_cu_seqlens + i_sequence + 1).to(tl.int64)
        end = sequence_end
    tokens = (end - begin).to(tl.int32)
    i_slot = find_state(p_slots, i_sequence, HAS_SLOTS)
    o_n = tl.arange(0, BLOCK_N)
    o_p = (tl.program_id(0) % tl.cdiv(P, BLOCK_P)) * BLOCK_P + tl.arange(0, BLOCK_P)
    m_state = (o_n < N)[:, None] & (o_p < P)[None, :]
    p_y += (begin * H + i_h) * P
    if HAS_SLOTS:  # noqa: SIM102 - decided at compile time, the next line on the device
        if i_slot < 0:
            zero_tokens(p_y, H * P, tokens, P, Q, BLOCK_P)
            return

    # Whether anything is read is a matter of run time: zeros known at compile time spilled registers in the loop.
    has = tl.load(p_has_initial + i_sequence) != 0 if HAS_MASK else reads_initial != 0
    i_initial = i_block.to(tl.int64) if SEGMENTED else i_slot
    p_from = p_initial + i_initial * stride_i_s + i_h * stride_i_h + o_p[None, :] * stride_i_p + o_n[:, None]
    b_state = tl.load(p_from, mask=m_state & has, other=0.0).to(tl.float32)
    D = tl.load(p_D + i_h).to(tl.float32) if HAS_D else 0.0

    p_x += begin * stride_x_l + i_h * stride_x_h
    p_B += begin * stride_B_l + (i_h // HEADS_PER_GROUP) * stride_B_g
    p_C += begin * stride_C_l + (i_h // HEADS_PER_GROUP) * stride_C_g
    p_steps += 2 * (i_h.to(tl.int64) * length + begin)
    if HAS_Z:
        p_z += begin * stride_z_l + i_h * stride_z_h
    for _ in range(tokens // Q):
        b_state = scan_chunk(
            b_state, p_x, p_B, p_C, p_steps, p_z, p_y, D, Q, o_p, o_n,
            stride_x_l, stride_B_l, stride_C_l, stride_z_l, P, N, H * P, HAS_D, HAS_Z, Q, WHOLE, DOT,
        )  # fmt: skip
        p_x += Q * stride_x_l
        p_B += Q * stride_B_l
        p_C += Q * stride_C_l
        p_y += Q * (H * P)
        p_steps += 2 * Q
        if HAS_Z:
            p_z += Q * stride_z_l
    if tokens % Q > 0:
        b_state = scan_chunk(
            b_state, p_x, p_B, p_C, p_steps, p_z, p_y, D, tokens % Q, o_p, o_n,
            stride_x_l, stride_B_l, stride_C_l, stride_z_l, P, N, H * P, HAS_D, HAS_Z, Q, False, DOT,
        )  # fmt: skip
    if end == sequence_end:
        p_to = p_final + i_slot * stride_f_s + i_h * stride_f_h + o_p[None, :] * stride_f_p + o_n[:, None]
        tl.store(p_to, b_state.to(p_final.dtype.element_ty), mask=m_state)
