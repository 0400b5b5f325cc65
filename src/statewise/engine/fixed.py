"""Steps of fixed shapes: with them a request's tokens do not depend on what runs beside it.

A library's matrix product rounds a row in the same way whatever the other rows hold, and whichever row it is, as long
as the shapes are the same; a batch of another size may be rounded otherwise. So decode rows run in passes of always as
many, most of them perhaps pads, and a prompt runs in pieces of a few sizes, one request a pass. Where pieces begin and
how long they are depends on the request alone. Our kernels give each row its own program or sum it in an order of its
own, so nothing else matters; the other backends work on all rows at once, and get one row a pass, and prompts as they
are: what a filler holds, and so which experts it takes, is nobody's.
"""

from collections.abc import Iterator, Sequence

import torch

from statewise.cache.spec import KVSpec
from statewise.engine.request import Request
from statewise.layers.batch import Row

# Rows of a decode pass. On a GPU so many cost hardly more than one: the weights are what takes the time.
ROWS = 128
PIECES = (64, 128, 256, 512)  # tokens


def rows_of(backend: str, device: torch.device) -> int:
    """Rows of a decode pass."""
    return ROWS if backend == "triton" and device.type == "cuda" else 1


def passes(requests: Sequence[Request], rows: int) -> Iterator[Sequence[Request]]:
    """Decode rows, so many at a time."""
    for start in range(0, len(requests), rows):
        yield requests[start : start + rows]


def longest_piece(device: torch.device) -> int:
    """Tokens of a prompt that run in one pass, at most."""
    return PIECES[-1] if device.type == "cuda" else PIECES[0]


def fillers(count: int, rows: int, kv: KVSpec) -> list[Row]:
    """The row that fills a pass of ``count`` tokens up to the next size. It has no slot, and leaves nothing behind.

    rows: of a decode pass. Where that is one, there is none: shapes may be as many as there are lengths.
    """
    return [row_without_slot(next(size for size in PIECES if size >= count) - count, kv)] if rows > 1 else []


def row_without_slot(count: int, kv: KVSpec) -> Row:
    """A prompt of ``count`` tokens of which nothing is kept."""
    return Row([0] * count, 0, -1, [0] * kv.blocks_for(count), wants_logits=False)
