"""Results on their way from the device to the host, which does not wait until it reads them."""

import torch
from torch import Tensor

from statewise.cache.host import host_copy


class Fetched:
    """Copies of tensors. On a GPU they are started at once, behind what has been launched, and awaited in `get`."""

    def __init__(self, *tensors: Tensor):
        self._host = [host_copy(tensor) for tensor in tensors]
        self._arrived = None
        if any(tensor.is_cuda for tensor in tensors):
            self._arrived = torch.cuda.Event()
            self._arrived.record()

    def get(self) -> list[Tensor]:
        """The copies, on the host. Waits for them."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._host
