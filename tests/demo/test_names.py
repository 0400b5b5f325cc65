"""Made-up names: of many forms, never a reserved one, never the same list; and names found again in a text."""

import re
from collections import Counter

import pytest

from statewise.demo import people
from statewise.demo.kinds import NEVER_TRAINED, TRAINED
from statewise.demo.names import LONGEST, SHORTEST, WORDS, made_up, names_in
from statewise.demo.people import KNOWN, MADE_UP_OF_TEN, RESERVED, DiceOfTraining
from statewise.demo.questions import SPLITS, dice_of, draw, kinds_of
from statewise.demo.wording import Dice, Person

REAL = tuple(person.name for person in KNOWN)
NOBODY = re.compile("(?!)")


@pytest.fixture(scope="module")
def made() -> list[str]:
    """The made-up names among 50,000 people of training."""
    dice = DiceOfTraining(1)
    return [name for name in (dice.person().name for _ in range(50_000)) if name not in REAL]


def test_four_people_in_ten_have_a_made_up_name(made: list[str]) -> None:
    assert abs(len(made) / 50_000 - MADE_UP_OF_TEN / 10) < 0.01


def test_names_are_of_all_lengths_and_no_list(made: list[str]) -> None:
    assert all(re.fullmatch("[A-Z][a-z]*", name) for name in made)
    assert set(map(len, made)) == set(range(SHORTEST, LONGEST + 1))
    seen, later = set(made[:10_000]), made[10_000:]
    assert sum(name not in seen for name in later) > 0.75 * len(later)
    assert Counter(name for name in made if len(name) > 4).most_common(1)[0][1] < len(made) / 1000


def test_names_have_the_letters_and_endings_of_english(made: list[str]) -> None:
    text = " ".join(made).lower()
    for part in ("ph", "th", "sh", "ch", "ck"):
        assert text.count(part) > len(made) / 200, part
    for end in ("ie", "ey", "y", "ah", "ann", "a", "n", "son", "ck", "th"):
        assert text.count(f"{end} ") > len(made) / 1000, end
    assert min(Counter(text.replace(" ", "")).values()) > len(made) / 100
    assert len(set(text)) == 27


def test_a_made_up_name_is_nobodys(made: list[str]) -> None:
    for name in made:
        assert name not in WORDS
        assert not any(person.name.lower() in name.lower() for person in RESERVED), name


def test_nothing_forbidden_is_in_a_name() -> None:
    dice = Dice(0)
    for _ in range(500):
        assert not set("aeAE") & set(made_up(dice, REAL, re.compile("[ae]", re.IGNORECASE)))


def test_names_depend_on_the_seed_alone() -> None:
    """Pinned: the same on every platform and version of Python."""
    dice = Dice(0)
    assert (
        " ".join(made_up(dice, REAL, NOBODY) for _ in range(12))
        == "Lann Frieice Drom Retreori Carr Plamon Paumal Voiite Waead Ence Jau Nigle"
    )


def test_the_pronoun_of_a_made_up_name_follows_from_it() -> None:
    """Else the loss on answers would have a floor: some need a pronoun that the question does not show."""
    dice = DiceOfTraining(2)
    people_met = [dice.person() for _ in range(5_000)]
    real = {person.name: person for person in KNOWN}
    assert all(one == real[one.name] for one in people_met if one.name in real)
    strangers = [one for one in people_met if one.name not in real]
    assert {(one.they, one.their) for one in strangers} == {("she", "her"), ("he", "his")}
    assert all((one.they == "she") == (one.name[-1] in "aeiy") for one in strangers)
    assert 0.35 < sum(one.they == "she" for one in strangers) / len(strangers) < 0.65


def test_people_of_one_problem_have_different_names() -> None:
    dice = DiceOfTraining(3)
    for _ in range(2_000):
        assert len({person.name.lower() for person in dice.people(3)}) == 3


def test_words_are_all_that_problems_write_with_a_capital() -> None:
    """Else somebody could be called so, or a word be counted as a name."""
    dice, found = Dice(4, [Person(f"@{c}", "she", "her") for c in "abc"] + [Person("@d", "he", "his")]), set()
    for _ in range(150):
        for kind in (*TRAINED, *NEVER_TRAINED):
            problem = kind(dice)
            found |= set(re.findall(r"\b[A-Z]\w*", f"{problem.prompt} {problem.answer}"))
    assert found <= WORDS
    assert WORDS - found == {"And", "Her", "His", "I", "Or", "Thursday", "We"}


@pytest.mark.parametrize("split", SPLITS)
def test_the_names_in_a_problem_are_those_of_its_people(split: str) -> None:
    drawn: list[str] = []

    class Watched(type(dice_of(split, 5))):  # type: ignore[misc]
        def person(self) -> Person:
            drawn.append(super().person().name)
            return Person(drawn[-1], "she", "her")

    dice = Watched(5, people.RESERVED)
    for kind in kinds_of(split) * 5:
        drawn.clear()
        problem = draw(kind, dice, split)
        assert set(names_in(problem.answer)) <= set(names_in(problem.question)) <= set(drawn)


def test_names_in_a_text_stand_in_their_order() -> None:
    assert names_in(" Joseph has 3.\nAfter that Ruth and Joseph's hens, NathanX, joseph") == [
        *("Joseph", "Ruth", "Joseph", "NathanX")
    ]
    assert names_in("Now he has 2 + 1 = <<2+1=3>>3.\n#### 3") == []
