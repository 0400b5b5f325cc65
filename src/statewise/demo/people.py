"""Who the word problems are about: people that training sees, and people that it never sees."""

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

_INVENTED = 400  # names made of syllables; too few for copying to be learned: the shipped model knows them all
_ONSETS = "B D F G J K L M N P R S T V Z Br Dr Gr Kl St Tr"
_VOWELS, _ENDS = "aeiou", ("", "", "n", "l", "s", "r")


def _person(name: str, is_woman: bool) -> Person:
    return Person(name, "she", "her") if is_woman else Person(name, "he", "his")


def _invented(count: int, taken: frozenset[str]) -> tuple[Person, ...]:
    """`count` different names like Kalo or Brimes, none of them in `taken`: the same ones every time."""
    dice, onsets, names = Dice(0), _ONSETS.split(), dict.fromkeys(taken)
    while len(names) < len(taken) + count:
        first, second = dice.choice(onsets), dice.choice(onsets).lower()
        names[f"{first}{dice.choice(_VOWELS)}{second}{dice.choice(_VOWELS)}{dice.choice(_ENDS)}"] = None
    return tuple(_person(name, i % 2 == 0) for i, name in enumerate(list(names)[len(taken) :]))


def _people(she: str, he: str) -> tuple[Person, ...]:
    return (*(_person(name, True) for name in she.split()), *(_person(name, False) for name in he.split()))


RESERVED = _people(_RESERVED_SHE, _RESERVED_HE)
_KNOWN = _people(_SHE, _HE)
# Four in five people of training have a real name.
TRAINED = (*(_KNOWN * 20), *_invented(_INVENTED, frozenset(person.name for person in (*RESERVED, *_KNOWN))))
