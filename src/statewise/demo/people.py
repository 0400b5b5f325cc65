"""Who the word problems are about: people that training sees, and people that it never sees."""

import re

from statewise.demo.names import made_up
from statewise.demo.wording import Dice, Person

_SHE = """
    Amara Beatriz Chloe Dana Elif Freya Grace Hana Ines Jun Keiko Lucia Maria Nadia Olga Paula Rosa Sofia Tessa Uma Vera
    Wanda Yara Zoe Alice Bella Carmen Doris Emma Fatima Gina Helen Irma Jenny Kate Linda Monica Nora Petra Sarah
"""
_HE = """
    Arjun Bruno Callum Diego Emeka Felix Goran Hugo Ivan Jamal Kofi Leo Marco Nils Omar Pablo Rafael Sam Tomas Umar
    Victor Walter Yusuf Zane Alan Ben Carl David Eric Frank George Henry Isaac Jack Kevin Louis Martin Noah Peter Simon
"""
_RESERVED_SHE = "Anika Brenda Camila Deborah Ingrid Natalia Ruth Wendy"
_RESERVED_HE = "Andre Boris Cedric Dmitri Joseph Nathan Robert Wilson"


def _person(name: str, is_woman: bool) -> Person:
    return Person(name, "she", "her") if is_woman else Person(name, "he", "his")


def _people(she: str, he: str) -> tuple[Person, ...]:
    return (*(_person(name, True) for name in she.split()), *(_person(name, False) for name in he.split()))


RESERVED = _people(_RESERVED_SHE, _RESERVED_HE)
KNOWN = _people(_SHE, _HE)
MADE_UP_OF_TEN = 4  # people of training whose names are made up
_SHE_ENDS = "aeiy"  # last letters: an answer may need a pronoun that its question does not show
_KNOWN_NAMES = tuple(person.name for person in KNOWN)
_IS_RESERVED = re.compile("|".join(person.name for person in RESERVED), re.IGNORECASE)


class DiceOfTraining(Dice):
    """Dice whose people are `KNOWN` or, four in ten, somebody with a name made up on the spot.

    A made-up name hardly ever comes again: it can only be copied, piece by piece, as a reserved one has to be.
    """

    def person(self) -> Person:
        """Anybody but the reserved, whose names are not even a part of a made-up one."""
        if self.between(1, 10) > MADE_UP_OF_TEN:
            return self.choice(KNOWN)
        name = made_up(self, _KNOWN_NAMES, _IS_RESERVED)
        return _person(name, name[-1] in _SHE_ENDS)
