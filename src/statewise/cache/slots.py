"""Who owns which place of a pool: allocate, free, and a check that the books balance. No tensors."""

from collections.abc import Sequence

from statewise.errors import IntegrityError


class Places:
    """A fixed number of interchangeable places (state slots, KV blocks), each free or owned by one owner.

    The place freed last is given out first, perhaps in the very next step: isolation must not rest on luck.
    """

    def __init__(self, count: int, what: str = "slot"):
        """count: how many places there are.  what: their name in messages."""
        self.count = count
        self.what = what
        self._free = list(range(count - 1, -1, -1))
        self._owner: dict[int, object] = {}

    @property
    def free_count(self) -> int:
        """How many places are free."""
        return len(self._free)

    @property
    def free_places(self) -> list[int]:
        """Those that are free, in no order that means anything."""
        return list(self._free)

    def can_allocate(self, n: int = 1) -> bool:
        """Whether ``allocate(owner, n)`` would succeed."""
        return n <= len(self._free)

    def allocate(self, owner: object, n: int = 1) -> list[int]:
        """Give ``n`` places to ``owner``. Raises IntegrityError if there are fewer: ask ``can_allocate`` first."""
        if not self.can_allocate(n):
            raise IntegrityError(f"{n} {self.what}s asked for, {self.free_count} of {self.count} are free")
        places = [self._free.pop() for _ in range(n)]
        self._owner.update(dict.fromkeys(places, owner))
        return places

    def free(self, owner: object, places: list[int]) -> None:
        """Take ``places`` back from ``owner``. Raises IntegrityError for a place that it does not own."""
        for place in places:
            if self._owner.get(place) != owner:
                whose = f"{self._owner[place]!r}'s" if place in self._owner else "free"
                raise IntegrityError(f"{owner!r} frees {self.what} {place}, which is {whose}")
            del self._owner[place]
        self._free.extend(places)

    def hand_over(self, owner: object, heir: object) -> None:
        """Let all places of ``owner`` belong to ``heir``, in the same order."""
        self._owner = {place: heir if held_by == owner else held_by for place, held_by in self._owner.items()}

    def permute(self, order: Sequence[int]) -> None:
        """What was place i is place ``order[i]`` from now on, free or owned. order: a permutation of all places."""
        self._free = [order[place] for place in self._free]
        self._owner = {order[place]: owner for place, owner in self._owner.items()}

    def owned_by(self, owner: object) -> list[int]:
        """The places of ``owner``, in the order in which it got them."""
        return [place for place, held_by in self._owner.items() if held_by == owner]

    def check_integrity(self) -> None:
        """Raise IntegrityError unless every place is either free once or owned once."""
        seen = sorted([*self._free, *self._owner])
        if seen != list(range(self.count)):
            raise IntegrityError(
                f"{self.what}s free {sorted(self._free)} and owned {sorted(self._owner)} of {self.count}"
            )


class Room:
    """A budget of bytes, and who holds how many of them."""

    def __init__(self, limit: int):
        """limit: bytes."""
        self.limit = limit
        self._held: dict[object, int] = {}

    @property
    def used(self) -> int:
        """Bytes held."""
        return sum(self._held.values())

    @property
    def owners(self) -> list[object]:
        """Who holds any."""
        return list(self._held)

    def take(self, owner: object, size: int) -> bool:
        """Give ``size`` bytes to ``owner``, which holds none, if they are there. Returns whether they were."""
        if owner in self._held:
            raise IntegrityError(f"{owner!r} holds {self._held[owner]} bytes already")
        if self.used + size > self.limit:
            return False
        self._held[owner] = size
        return True

    def give_back(self, owner: object) -> int:
        """Take all bytes of ``owner`` back. Returns how many. Raises IntegrityError if it holds none."""
        if owner not in self._held:
            raise IntegrityError(f"{owner!r} gives back bytes that it does not hold")
        return self._held.pop(owner)
