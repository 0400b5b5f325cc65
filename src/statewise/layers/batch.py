"""One step's rows as tensors: what a forward pass reads besides the weights and the caches."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Row:
    """One request's part of a step. Whether it is a decode row or a prefill row is said by which list it is in."""

    tokens: Sequence[int]  # the tokens to run now; one for a decode row
    start: int  # how many tokens of the request have run before: the position of tokens[0]
    slot: int  # its place in the Mamba pool
    blocks: Sequence[int]  # its KV blocks, enough for start + len(tokens) tokens; empty without attention layers
    wants_logits: bool = True  # of its last token
    wants_all_logits: bool = False  # of every token


@dataclass(frozen=True)
class Batch:
    """Decode rows first, one token each, then the tokens of the prefill rows, packed. D decode rows, Q prefill rows."""

    tokens: Tensor  # (L,), L = D + cu_seqlens[-1]
    decode_slots: Tensor  # (D,)
    decode_lengths: Tensor  # (D,), tokens of the request including this one
    decode_tables: Tensor  # (D, M), KV blocks, 0 behind a row's last
    cu_seqlens: Tensor  # (Q + 1,), from 0
    prefill_slots: Tensor  # (Q,)
    prefill_start: Tensor  # (Q,), tokens that ran before; 0: the row has no state yet
    has_state: Tensor  # (Q,) bool, whether that is not 0: whether each prefill row continues from its slot
    prefill_tables: Tensor  # (Q, M), KV blocks, 0 behind a row's last; its M is not that of decode_tables
    kv_places: Tensor  # (L,), block * block_size + offset of each token's key and value
    logit_rows: Tensor  # indices into L

    @property
    def decode_count(self) -> int:
        """D."""
        return self.decode_slots.shape[0]

    @property
    def prefill_count(self) -> int:
        """Q."""
        return self.prefill_slots.shape[0]


def make_batch(decode: Sequence[Row], prefill: Sequence[Row], block_size: int, device: torch.device) -> Batch:
    """Lay the rows out as a Batch on ``device``. block_size: tokens in a KV block."""

    def ints(values: Sequence[int] | Sequence[Sequence[int]]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=device)

    def tables(rows: Sequence[Row]) -> Tensor:
        most = max((len(row.blocks) for row in rows), default=0)
        return ints([[*row.blocks, *[0] * (most - len(row.blocks))] for row in rows]).view(len(rows), most)

    rows = [*decode, *prefill]
    lengths = [len(row.tokens) for row in prefill]
    ends = ints([0, *lengths]).cumsum(0)
    logits: list[int] = []
    first = 0
    for row in rows:
        end = first + len(row.tokens)
        wanted = range(first if row.wants_all_logits else end - 1, end)
        logits.extend(wanted if row.wants_logits and row.tokens else ())
        first = end
    return Batch(
        tokens=ints([token for row in rows for token in row.tokens]),
        decode_slots=ints([row.slot for row in decode]),
        decode_lengths=ints([row.start + 1 for row in decode]),
        decode_tables=tables(decode),
        cu_seqlens=ends,
        prefill_slots=ints([row.slot for row in prefill]),
        prefill_start=ints([row.start for row in prefill]),
        has_state=torch.tensor([row.start > 0 for row in prefill], dtype=torch.bool, device=device),
        prefill_tables=tables(prefill),
        kv_places=ints([place for row in rows for place in _places(row, block_size)]),
        logit_rows=ints(logits),
    )


def _places(row: Row, block_size: int) -> list[int]:
    if not row.blocks:
        return []
    positions = range(row.start, row.start + len(row.tokens))
    return [row.blocks[p // block_size] * block_size + p % block_size for p in positions]
