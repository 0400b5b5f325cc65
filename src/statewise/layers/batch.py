"""One step's rows as tensors: what a forward pass reads besides the weights and the caches."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import torch
from torch import Tensor

from statewise.cache.host import to_device


@dataclass(frozen=True)
class Row:
    """One request's part of a step. Whether it is a decode row or a prefill row is said by which list it is in."""

    tokens: Sequence[int]  # the tokens to run now; one for a decode row
    start: int  # how many tokens of the request have run before: the position of tokens[0]
    slot: int  # its place in the Mamba pool; -1: none, and nothing is kept of the row
    blocks: Sequence[int]  # its KV blocks, enough for start + len(tokens) tokens; empty without attention layers
    wants_logits: bool = True  # of its last token
    wants_all_logits: bool = False  # of every token


@dataclass(frozen=True)
class Batch:
    """Decode rows first, one token each, then the tokens of the prefill rows, packed. D decode rows, Q prefill rows."""

    tokens: Tensor  # (L,), L = D + cu_seqlens[-1]
    positions: Tensor  # (L,), how many tokens of its request are in front of each; -1 of a padded row
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
    logit_slots: Tensor  # the slot of each of them

    @property
    def decode_count(self) -> int:
        """D."""
        return self.decode_slots.shape[0]

    @property
    def prefill_count(self) -> int:
        """Q."""
        return self.prefill_slots.shape[0]


def make_batch(decode: Sequence[Row], prefill: Sequence[Row], block_size: int, device: torch.device) -> Batch:
    """Lay the rows out as a Batch on ``device``, without waiting for it. block_size: tokens in a KV block."""
    rows, lengths = [*decode, *prefill], [len(row.tokens) for row in prefill]
    logits: list[int] = []
    logit_slots: list[int] = []
    first = 0
    for row in rows:
        end = first + len(row.tokens)
        wanted = range(first if row.wants_all_logits else end - 1, end) if row.wants_logits and row.tokens else ()
        logits += wanted
        logit_slots += [row.slot] * len(wanted)
        first = end
    decode_tables, prefill_tables = _table(decode), _table(prefill)
    parts: list[Sequence[int]] = [
        [token for row in rows for token in row.tokens],
        [p for row in rows for p in range(row.start, row.start + len(row.tokens))],
        [row.slot for row in decode],
        [row.start + 1 for row in decode],
        [block for blocks in decode_tables for block in blocks],
        [0, *accumulate(lengths)],
        [row.slot for row in prefill],
        [row.start for row in prefill],
        [row.start > 0 for row in prefill],
        [block for blocks in prefill_tables for block in blocks],
        [place for row in rows for place in _places(row, block_size)],
        logits,
        logit_slots,
    ]
    sent = _send(parts, device)
    return Batch(
        tokens=sent[0],
        positions=sent[1],
        decode_slots=sent[2],
        decode_lengths=sent[3],
        decode_tables=sent[4].view(len(decode), -1) if decode else sent[4].view(0, 0),
        cu_seqlens=sent[5],
        prefill_slots=sent[6],
        prefill_start=sent[7],
        has_state=sent[8].bool(),
        prefill_tables=sent[9].view(len(prefill), -1) if prefill else sent[9].view(0, 0),
        kv_places=sent[10],
        logit_rows=sent[11],
        logit_slots=sent[12],
    )


def joined(decode: Batch, prefill: Batch) -> Batch:
    """The decode rows of one batch and the prefill rows of another, which has none of decode."""
    rows = decode.decode_count
    return replace(
        prefill,
        tokens=torch.cat([decode.tokens, prefill.tokens]),
        positions=torch.cat([decode.positions, prefill.positions]),
        decode_slots=decode.decode_slots,
        decode_lengths=decode.decode_lengths,
        decode_tables=decode.decode_tables,
        kv_places=torch.cat([decode.kv_places, prefill.kv_places]),
        logit_rows=torch.cat([decode.logit_rows, prefill.logit_rows + rows]),
        logit_slots=torch.cat([decode.logit_slots, prefill.logit_slots]),
    )


def _table(rows: Sequence[Row]) -> list[list[int]]:
    most = max((len(row.blocks) for row in rows), default=0)
    return [[*row.blocks, *[0] * (most - len(row.blocks))] for row in rows]


def _send(parts: Sequence[Sequence[int]], device: torch.device) -> Sequence[Tensor]:
    """Each part as a tensor on the device, all in one copy."""
    packed = to_device([number for part in parts for number in part], torch.int64, device)
    return packed.split([len(part) for part in parts])


def _places(row: Row, block_size: int) -> list[int]:
    if not row.blocks:
        return []
    if row.slot < 0:
        return [-1] * len(row.tokens)
    positions = range(row.start, row.start + len(row.tokens))
    return [row.blocks[p // block_size] * block_size + p % block_size for p in positions]
