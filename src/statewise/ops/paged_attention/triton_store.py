"""New keys and values into their places in the pool."""

import triton
import triton.language as tl

from statewise.ops.triton_common import start


@triton.jit(do_not_specialize=["p_places"])
def store_kernel(
    p_key, p_value, p_keys, p_values, p_places,
    stride_key, stride_key_h, stride_value, stride_value_h, stride_block, stride_token, stride_head,
    KV_HEADS: tl.constexpr, D: tl.constexpr, BLOCK_SIZE: tl.constexpr, BLOCK: tl.constexpr, USE_PDL: tl.constexpr,
):  # fmt: skip
    """One program a token and BLOCK numbers of its heads."""
    start(USE_PDL, False)
    token = tl.program_id(0).to(tl.int64)
    place = tl.load(p_places + token).to(tl.int64)
    if place < 0:
        return
    o = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    m = o < KV_HEADS * D
    o_head, o_d = o // D, o % D
    b_key = tl.load(p_key + token * stride_key + o_head * stride_key_h + o_d, mask=m)
    b_value = tl.load(p_value + token * stride_value + o_head * stride_value_h + o_d, mask=m)
    o_place = (place // BLOCK_SIZE) * stride_block + (place % BLOCK_SIZE) * stride_token + o_head * stride_head + o_d
    tl.store(p_keys + o_place, b_key.to(p_keys.dtype.element_ty), mask=m)
    tl.store(p_values + o_place, b_value.to(p_values.dtype.element_ty), mask=m)
