"""Copy, fork and swap slots: many moves over many tensors as one simultaneous assignment."""

from collections.abc import Sequence

from torch import Tensor

from statewise.ops.common import expect, expect_slots, implementation


def move_slots(
    tensors: Sequence[Tensor],
    sources: Tensor,
    destinations: Tensor,
    *,
    slot_dims: Sequence[int],
    backend: str = "torch",
) -> None:
    """``tensor[..., destinations[i], ...] = tensor[..., sources[i], ...]`` for all i at once, in place.

    Every source is read as it was before the call, so any mapping is right: overlaps, chains, cycles, swaps, one source
    with many destinations. Bits are copied, not numbers: a NaN keeps its payload. No other slot is written.

    tensors: what makes up a slot, of any dtypes; each has S slots in its own dimension. For a Mamba pool: ``state``,
    ``conv_window``, ``x_ring``, ``B_ring``, ``dt_ring`` of shape (layers, S, ...), and ``ring_start``, ``pending`` of
    shape (S,), so that a slot moves whole. A tensor may be empty (the rings of the plain step).
    sources, destinations: (M,), int32 or int64, on the tensors' device, each below S. -1 in either is a padded move,
    which reads and writes nothing, and so is a move from a slot to itself. The destinations of the other moves must
    be distinct; only the reference backend checks that, since the others never wait for the device.
    slot_dims: for each tensor, which dimension counts its slots.

    The triton backend makes one launch a tensor, however many moves and layers there are, and allocates nothing: it
    can be captured in a CUDA graph at a fixed M, with pads in unused places. It takes M up to 4096, and tensors whose
    pages are dense: the dimensions behind the slot without gaps, those before it with one common stride; the strides
    from slot to slot and layer to layer are free.

    Raises ArgumentError where shapes or strides do not fit.
    """
    expect(len(tensors) == len(slot_dims), "move_slots", f"{len(tensors)} tensors, {len(slot_dims)} slot_dims")
    for i, (tensor, dim) in enumerate(zip(tensors, slot_dims, strict=True)):
        message = f"tensor {i} has shape {tuple(tensor.shape)}, no dimension {dim} counts its slots"
        expect(0 <= dim < tensor.dim(), "move_slots", message)
    counts = {tensor.shape[dim] for tensor, dim in zip(tensors, slot_dims, strict=True)}
    expect(len(counts) <= 1, "move_slots", f"the tensors have {sorted(counts)} slots, expected the same number")
    pairs = sources.dim() == 1 and sources.shape == destinations.shape
    shapes = f"{tuple(sources.shape)} and {tuple(destinations.shape)}"
    expect(pairs, "move_slots", f"sources and destinations have shapes {shapes}, expected (M,) twice")
    expect_slots("move_slots", sources=sources, destinations=destinations)
    implementation("move_slots", backend)(tensors, sources, destinations, slot_dims)
