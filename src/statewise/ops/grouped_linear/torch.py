"""The product by PyTorch: its grouped one on the GPUs that have it, else a loop over the groups."""

import torch
from torch import Tensor
from torch.nn import functional

# PyTorch's grouped product runs on these GPUs; elsewhere it loops over the groups and waits for the host.
GROUPED_CAPABILITIES = (9, 10)
# Its rows are read in pieces of so many bytes.
ALIGNMENT = 16


def grouped_linear(rows: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    strides = (rows.stride(0), weight.stride(1), weight.stride(0))
    if len(rows) and grouped_mm_obstacle(rows.dtype, rows.device, *strides) is None:
        return functional.grouped_mm(rows, weight.transpose(1, 2), offs=ends)
    y, first = rows.new_empty(rows.shape[0], weight.shape[1]), 0
    for group, end in enumerate(ends.tolist()):
        if end > first:
            y[first:end] = functional.linear(rows[first:end], weight[group])
        first = end
    return y


def grouped_mm_obstacle(dtype: torch.dtype, device: torch.device, *strides: int) -> str | None:
    """Why ``torch.nn.functional.grouped_mm`` does not run, or None.

    strides: of rows and weights, in numbers. device: may be one that is not there; then its capability is not checked.
    """
    if device.type != "cuda":
        return f"the device is {device.type}"
    if dtype != torch.bfloat16:
        return f"it multiplies bfloat16, and the dtype is {str(dtype).removeprefix('torch.')}"
    for stride in strides:
        if stride * dtype.itemsize % ALIGNMENT:
            return f"it reads multiples of {ALIGNMENT // dtype.itemsize} numbers, and rows have {stride}"
    if not hasattr(functional, "grouped_mm"):
        return f"torch {torch.__version__} lacks it"
    if torch.cuda.is_available():
        major, minor = torch.cuda.get_device_capability(device)
        if major not in GROUPED_CAPABILITIES:
            return f"it needs compute capability 9.x or 10.x, and the device has {major}.{minor}"
    return None
