"""Which steps make every kernel compile before the first request: what is launched depends on sizes alone.

Kernels choose their tiles by the tokens of a step, the average of its sequences, and how many there are. None is
specialised on any other property of a step, so these sizes are all that there is to try.
"""

from collections.abc import Iterator

# Heads of all sequences together that fill any GPU: from some number on, a scan runs differently.
FULL = 2048
# Averages of a step's sequences up to which they are scanned in pieces of another length.
AVERAGES = (16, 32, 64)


def prompts(step_tokens: int, context: int | None, heads: int) -> Iterator[tuple[int, int]]:
    """(sequences, tokens of each) of steps up to ``step_tokens`` tokens, sequences of up to ``context`` of them."""
    totals = [1 << i for i in range(step_tokens.bit_length())]
    for total in [*totals, *([step_tokens] if step_tokens not in totals else [])]:
        length = min(total, context or total)
        yield total // length, length
    for length in AVERAGES:
        count = min(-(-FULL // heads), step_tokens // length)
        if count > 1 and length <= (context or length):
            yield count, length
