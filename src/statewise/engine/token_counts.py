"""Which tokens the requests with penalties have had: a table on the device, a row a slot."""

from collections.abc import Sequence

import torch
from torch import Tensor

from statewise.cache.host import to_device
from statewise.engine.request import Request

# With poison on, the number that stands where no request has written: an output of two million times every token.
_POISON = 2**22


class TokenCounts:
    """``table``: (S, V) int32, twice the times that a token is in the output, plus 1 if it is in the prompt.

    Only requests with penalties use their slot's row. It is written anew when a request gets its first token after an
    admission, and one token a step from then on, on the device. So what an earlier owner left there, or a step that ran
    too many, is never read.
    """

    def __init__(self, slots: int, vocab_size: int, device: torch.device, poison: bool = False):
        """poison: fill with a large number what no request has written yet, and again whatever is freed."""
        self.poison, self.device = poison, device
        self.table = torch.full((slots, vocab_size), _POISON if poison else 0, dtype=torch.int32, device=device)

    @staticmethod
    def bytes_per_slot(vocab_size: int) -> int:
        """Bytes of one slot's row."""
        return vocab_size * torch.int32.itemsize

    def begin(self, requests: Sequence[Request]) -> None:
        """Write the rows of requests that have just got their slots, from the tokens that they have already."""
        if not requests:
            return
        prompts = [(request.slot, token) for request in requests for token in request.prompt]
        outputs = [(request.slot, token) for request in requests for token in request.output]
        # By tensors on the device: a number of the host's would be copied, and waited for.
        self.table.index_fill_(0, to_device([request.slot for request in requests], torch.int64, self.device), 0)
        one = torch.ones((), dtype=torch.int32, device=self.device)
        self.table.index_put_(to_device(prompts, torch.int64, self.device).unbind(-1), one)
        if outputs:
            places = to_device(outputs, torch.int64, self.device).unbind(-1)
            twos = torch.full((len(outputs),), 2, dtype=torch.int32, device=self.device)
            self.table.index_put_(places, twos, accumulate=True)

    def read(self, slots: Tensor) -> tuple[Tensor, Tensor]:
        """The rows of ``slots``, (n,): whether a token is in the prompt, and how often in the output; (n, V) each."""
        rows = self.table[slots]
        return (rows & 1).bool(), rows >> 1

    def add(self, slots: Tensor, tokens: Tensor) -> None:
        """Count one more output token of each of ``slots``, all different. slots, tokens: (n,)."""
        self.table[slots, tokens] += 2

    def is_forgotten(self, slots: list[int]) -> bool:
        """With poison on: whether nobody has written to these slots' rows since they were freed."""
        return bool((self.table[slots] == _POISON).all())

    def forget(self, slots: list[int]) -> None:
        """With poison on, fill the rows of freed slots. Without it, nothing."""
        if self.poison and slots:
            self.table[slots] = _POISON
