"""The kinds of word problems: one small function each, in files by subject.

A kind draws its numbers and words from a `Dice`, computes its steps with `calc` and hands one of several wordings to
`solved`. To add one, write the function and name it in its file's `KINDS`. Four rules: numbers are drawn so that every
division comes out whole and nothing goes below zero (`calc` refuses the rest); a step is computed, never typed; a noun
after a number goes through `many` or `Step.of`; and all wordings of a kind show the same numbers, since the split
between training and test goes by them (`statewise.demo.questions`).
"""

from collections.abc import Callable

from statewise.demo.kinds import comparing, making, money, parts, rates, schedules, sharing, shopping, unseen
from statewise.demo.wording import Dice
from statewise.eval.questions import Question

Kind = Callable[[Dice], Question]

TRAINED: tuple[Kind, ...] = (
    *shopping.KINDS,
    *money.KINDS,
    *rates.KINDS,
    *schedules.KINDS,
    *parts.KINDS,
    *comparing.KINDS,
    *sharing.KINDS,
    *making.KINDS,
)
NEVER_TRAINED: tuple[Kind, ...] = unseen.KINDS
