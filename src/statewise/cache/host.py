"""Copies on the host of what is on a device, which the host does not wait for."""

from collections.abc import Sequence

import torch
from torch import Tensor


def host_empty(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Memory on the host to copy to and from ``device``: pinned beside a GPU.

    PyTorch keeps pinned memory for the next time when it is freed, in sizes that are powers of two, and gives it out
    again only once the copies that use it are done.
    """
    return torch.empty(shape, dtype=dtype, pin_memory=device.type == "cuda")


def host_copy(tensor: Tensor) -> Tensor:
    """A copy of ``tensor`` on the host. From a GPU it is on its way behind what has been launched."""
    return host_empty(tensor.shape, tensor.dtype, tensor.device).copy_(tensor, non_blocking=True)
