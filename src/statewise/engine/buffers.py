"""What a decode step reads and leaves besides weights and caches, in tensors that stay where they are, for its graphs.

The host fills a page for each pass and sends it whole. On a GPU pages take turns, since those of the step before may
be on their way still.
"""

from collections import deque
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from statewise.engine.request import Request
from statewise.layers.batch import Batch

# The rows of a page; a column is a row of the batch. Below them, the KV blocks of each.
SLOT, TOKEN_PLACE, POSITION, LENGTH, KV_PLACE = range(5)
HEAD = 5
# With poison on: no slot, place, length or token.
_SPOILED = -(2**30)


class _Page:
    """A step's numbers on the host: (HEAD + M, rows), int32. Remembers what it holds, and writes what is new."""

    def __init__(self, rows: int, table: int, pin: bool):
        self.tensor = torch.zeros(HEAD + table, rows, dtype=torch.int32, pin_memory=pin)
        self._numbers = self.tensor.numpy()
        self._holds: list[tuple[list[int], int]] = [([], 0)] * rows  # the list of a request's blocks, and how many

    def fill(self, requests: Sequence[Request], rows: int, pad: tuple[int, int, int, int, int], block_size: int) -> int:
        """Write the rows of ``requests`` and pads behind them. Returns how many blocks the longest has."""
        heads, most = [], 0
        for i, request in enumerate(requests):
            blocks, (held, known) = request.blocks, self._holds[i]
            count, known = len(blocks), known if held is blocks else 0
            if known < count:
                self._numbers[HEAD + known : HEAD + count, i] = blocks[known:]
                self._holds[i] = blocks, count
            assert request.slot is not None
            place = blocks[request.computed // block_size] * block_size + request.computed % block_size if count else -1
            heads.append((request.slot, request.slot, request.computed, request.computed + 1, place))
            most = max(most, count)
        heads += [pad] * (rows - len(requests))
        self._numbers[:HEAD, :rows] = np.asarray(heads, dtype=np.int32).T
        return most

    def spoil(self, value: int) -> None:
        """Write ``value`` where the next `fill` does not, but for the blocks, which it remembers."""
        self._numbers[:HEAD] = value


class DecodeBuffers:
    """Rows of decode steps; what becomes of them; the newest token of each slot."""

    def __init__(
        self,
        slots: int,
        rows: int,
        table: int,
        block_size: int,
        vocab_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ):
        """rows: the most of a pass.  table: M, the most KV blocks of a request; 0 without attention layers.

        dtype: of the logits.
        """
        self.slots, self.block_size = slots, block_size
        self.logits = torch.zeros(rows, vocab_size, dtype=dtype, device=device)
        self.likeliest = torch.zeros(2, rows, dtype=torch.int64, device=device)
        # One place more than there are slots, for pads.
        self.newest = torch.zeros(slots + 1, dtype=torch.int64, device=device)
        self._rows = torch.arange(rows, device=device)
        self._edge = torch.zeros(1, dtype=torch.int64, device=device)
        self._empty = torch.zeros(0, dtype=torch.int64, device=device)
        is_gpu = device.type == "cuda"
        passes = -(-slots // rows)
        self._pages = deque(_Page(rows, table, is_gpu) for _ in range(2 * passes if is_gpu else 1))
        self._page = torch.zeros_like(self._pages[0].tensor, device=device) if is_gpu else self._pages[0].tensor

    @staticmethod
    def size(slots: int, rows: int, table: int, vocab_size: int, dtype: torch.dtype) -> int:
        """Bytes on the device."""
        row = (HEAD + table) * torch.int32.itemsize + 3 * torch.int64.itemsize + vocab_size * dtype.itemsize
        return rows * row + (slots + 2) * torch.int64.itemsize

    def spoil(self, freed: Sequence[int] = ()) -> None:
        """Write nonsense wherever the next step has no business. freed: slots that have nobody's token now.

        Pads do get a token, any that there is.
        """
        self._pages[0].spoil(_SPOILED)
        self.logits.fill_(torch.nan)
        self.likeliest.fill_(_SPOILED)
        self.newest[list(freed)] = _SPOILED
        self.newest[self.slots] = 0

    def fill(self, requests: Sequence[Request], rows: int) -> int:
        """Send the rows of ``requests`` and pads up to ``rows``. Returns how many blocks the longest has."""
        page = self._pages[0]
        self._pages.rotate()
        most = page.fill(requests, rows, (-1, self.slots, -1, 0, -1), self.block_size)
        if page.tensor is not self._page:
            upto = HEAD + most
            self._page[:upto].copy_(page.tensor[:upto], non_blocking=True)
        return most

    def batch(self, rows: int, table: int) -> tuple[Batch, Tensor]:
        """The first ``rows`` rows as a batch, each with ``table`` blocks, and the places of their newest tokens."""
        slots, places, positions, lengths, kv_places = self._page[:HEAD, :rows].long()
        batch = Batch(
            tokens=self.newest[places],
            positions=positions,
            decode_slots=slots,
            decode_lengths=lengths,
            decode_tables=self._page[HEAD : HEAD + table, :rows].T,
            cu_seqlens=self._edge,
            prefill_slots=self._empty,
            prefill_start=self._empty,
            has_state=self._empty.bool(),
            prefill_tables=self._empty[:, None],
            kv_places=kv_places,
            logit_rows=self._rows[:rows],
            logit_slots=slots,
        )
        return batch, places
