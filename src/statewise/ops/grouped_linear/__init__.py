"""The matrix product of a mixture of experts: each row by the weight of its group."""

from torch import Tensor, int32

from statewise.ops.common import expect, expect_shape, implementation


def grouped_linear(rows: Tensor, weight: Tensor, ends: Tensor, *, backend: str = "torch") -> Tensor:
    """Multiply each row by its group's weight: ``rows[ends[g - 1] : ends[g]] @ weight[g].T``.

    rows: (R, in), sorted by group, R below 2^31.  weight: (G, out, in), in rows' dtype.
    ends: (G,) int32, where each group's rows end: ascending, the last one R. Groups may be empty.
    Returns (R, out) in rows' dtype. Sums are float32, float64 in double. What is in a row reaches no other.

    On the triton backend a row's bits depend on its own values, its group's weight and the shapes alone, never on how
    long its group is; nothing waits for the host, and a CUDA graph replays with any ``ends``. The torch backend takes
    PyTorch's grouped product where that runs (`grouped_mm_obstacle`): captured too, bits not promised. Elsewhere it
    loops over the groups and reads ``ends`` on the host.
    Raises ArgumentError where shapes or dtypes do not fit.
    """
    op = "grouped_linear"
    expect(rows.dim() == 2, op, f"rows has shape {tuple(rows.shape)}, expected (R, in)")
    expect(weight.dim() == 3, op, f"weight has shape {tuple(weight.shape)}, expected (G, out, in)")
    groups, out, size = weight.shape
    expect(min(groups, out, size) > 0, op, f"weight has shape {tuple(weight.shape)}, expected none of it to be 0")
    expect(rows.shape[1] == size, op, f"rows has {rows.shape[1]} channels, expected {size} as weight has")
    expect(rows.shape[0] < 2**31, op, f"rows has {rows.shape[0]} rows, expected fewer than 2^31")
    expect(rows.dtype == weight.dtype, op, f"rows is {rows.dtype}, weight {weight.dtype}, expected one dtype")
    expect(rows.dtype.is_floating_point, op, f"rows is {rows.dtype}, expected a floating-point dtype")
    expect_shape(op, ends=(ends, (groups,)))
    expect(ends.dtype == int32, op, f"ends is {ends.dtype}, expected int32")
    return implementation(op, backend)(rows, weight, ends)
