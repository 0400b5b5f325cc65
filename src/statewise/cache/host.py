"""From the host to a device and back, for which neither waits."""

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


def to_device(values: Sequence[object], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Numbers of the host as a tensor on ``device``. Neither waits for the other."""
    tensor = torch.tensor(values, dtype=dtype)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor
