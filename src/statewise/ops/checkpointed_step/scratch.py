"""Sizes of the kernels' blocks, and of what the two kernels of a checkpointed step pass on."""


def block_w(window: int) -> int:
    """Ring rows of a block: W as a power of two, and enough for the matrix units."""
    return max(16, 1 << (window - 1).bit_length())


def block_n(state_size: int) -> int:
    """States of a block: N as a power of two, and enough for the matrix units."""
    return max(16, 1 << (state_size - 1).bit_length())


def scratch_size(batch: int, heads: int, window: int) -> int:
    """Float32 numbers: two coefficients a head and row of a block, two for the new row and two for the checkpoint."""
    return 2 * batch * heads * (block_w(window) + 2)
