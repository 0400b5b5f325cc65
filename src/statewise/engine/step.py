"""What the scheduler decides on, and the runner carries out."""

from dataclasses import dataclass, field

from statewise.engine.request import Request


@dataclass(frozen=True)
class Eviction:
    """A request that is swapped out, and the slot and the blocks that hold what it needs."""

    request: Request
    slot: int
    blocks: list[int]


@dataclass
class Changes:
    """Who has lost what since the step before: first swapped out, then forgotten; perhaps owned again by now."""

    swapped_out: list[Eviction] = field(default_factory=list)
    freed_slots: list[int] = field(default_factory=list)
    freed_blocks: list[int] = field(default_factory=list)


@dataclass
class Step:
    """What to run: decode rows, one token each, and prefill chunks of so many tokens."""

    decode: list[Request] = field(default_factory=list)
    prefill: list[tuple[Request, int]] = field(default_factory=list)
    changes: Changes = field(default_factory=Changes)  # to be made before it, even if it has no row
    swapped_in: list[Request] = field(default_factory=list)  # after that, to their new slots and blocks

    @property
    def sampled(self) -> list[Request]:
        """The requests that it gives a token, in the order of its rows: decode rows, then prefills that it ends."""
        return [
            *self.decode,
            *(request for request, count in self.prefill if request.computed + count == request.known),
        ]
