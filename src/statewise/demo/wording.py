"""What the word problems are made of: dice that fall alike everywhere, computed steps, English plurals."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeVar

from statewise.eval.questions import Question

T = TypeVar("T")


@dataclass(frozen=True)
class Person:
    """Somebody, with the pronouns a sentence needs."""

    name: str
    they: str
    their: str

    def __str__(self) -> str:
        return self.name

    @property
    def They(self) -> str:
        """`they` at the start of a sentence."""
        return self.they.capitalize()


class Dice:
    """Draws that are the same on every platform and version of Python.

    Of `random.Random` only `random()` is promised to keep its stream, so everything here is made of it.
    """

    def __init__(self, seed: int | str, people: Sequence[Person] = ()) -> None:
        """people: those whom `person` and `people` draw from; a name may be in it more than once."""
        self._random = Random(seed).random
        self._people = people

    def between(self, low: int, high: int) -> int:
        """A whole number from `low` to `high`, both included."""
        return low + int(self._random() * (high - low + 1))

    def choice(self, items: Sequence[T]) -> T:
        """One of `items`."""
        return items[self.between(0, len(items) - 1)]

    def pick(self, items: Sequence[T], count: int) -> list[T]:
        """`count` different ones of `items`, in random order."""
        rest = list(items)
        return [rest.pop(self.between(0, len(rest) - 1)) for _ in range(count)]

    def person(self) -> Person:
        """Anybody."""
        return self.choice(self._people)

    def people(self, count: int) -> list[Person]:
        """`count` people of different names."""
        drawn: dict[str, Person] = {}
        while len(drawn) < count:
            person = self.person()
            drawn.setdefault(person.name, person)
        return list(drawn.values())


@dataclass(frozen=True)
class Step:
    """A computed step: `3 * 4 = <<3*4=12>>12`, with a `$` before the result if it is money."""

    expression: str
    value: int
    unit: str = ""

    def __str__(self) -> str:
        annotation = f"<<{self.expression.replace(' ', '')}={self.value}>>"
        return f"{self.expression} = {self.unit}{annotation}{self.value}"

    def of(self, noun: str) -> str:
        """The step with its result counted in `noun`: `... = <<3*4=12>>12 apples`."""
        return f"{self} {noun if self.value == 1 else plural(noun)}"


def calc(first: int, *rest: str | int, unit: str = "") -> Step:
    """Computes `first op number op number ...`; the operators of one step are all `+ -` or all `* /`.

    Raises:
        ValueError: a division with a remainder, a result below zero, or operators of both kinds.
    """
    expression, value = " ".join(str(part) for part in (first, *rest)), first
    if any(op in rest for op in "+-") and any(op in rest for op in "*/"):
        raise ValueError(f"operators of both kinds in {expression}")
    for op, number in zip(rest[::2], rest[1::2], strict=True):
        value = _apply(value, str(op), int(number))
    if value < 0:
        raise ValueError(f"{expression} is below zero: {value}")
    return Step(expression, value, unit)


def _apply(left: int, op: str, right: int) -> int:
    if op == "/":
        quotient, remainder = divmod(left, right)
        if remainder:
            raise ValueError(f"{left} / {right} leaves {remainder}")
        return quotient
    return {"+": left + right, "-": left - right, "*": left * right}[op]


def dollars(first: int, *rest: str | int) -> Step:
    """`calc` with the result in dollars."""
    return calc(first, *rest, unit="$")


def solved(question: str, *lines: str, answer: Step) -> Question:
    """The finished problem: the lines of its solution, the last of which shows `answer`, and `#### N`.

    Raises:
        ValueError: the last line does not show `answer`.
    """
    if str(answer) not in lines[-1]:
        raise ValueError(f"the last line must show {answer}, got {lines[-1]!r}")
    return Question(question, "\n".join([*lines, f"#### {answer.value}"]))


IRREGULAR = {"child": "children", "loaf": "loaves", "shelf": "shelves", "foot": "feet", "scarf": "scarves"}


def plural(noun: str) -> str:
    """`boxes` of `box`; of a noun of several words, the last one's plural."""
    *before, last = noun.split(" ")
    if last in IRREGULAR:
        last = IRREGULAR[last]
    elif last.endswith("y") and last[-2] not in "aeiou":
        last = last[:-1] + "ies"
    else:
        last += "es" if last.endswith(("s", "x", "ch", "sh")) else "s"
    return " ".join([*before, last])


def many(count: int, noun: str) -> str:
    """`1 apple`, `2 apples`."""
    return f"{count} {noun if count == 1 else plural(noun)}"
