"""What counts as right beside the number: the names of the reference answer, in its order, and nobody else's."""

from dataclasses import replace

import pytest

from statewise.demo.questions import word_problems
from tests.train.conftest import TINY
from train.evaluate import Score, names_are_right, problems, score
from train.report import card, draw_curve

ANSWER = "Ruth has 2 + 3 = <<2+3=5>>5 pens.\nTogether Ruth and Joseph have 5 + 1 = <<5+1=6>>6 pens.\n#### 6"
FACTS = dict.fromkeys(("parameters", "megabytes", "steps", "tokens", "seconds", "tokens_per_second", "device"), "0")
FACTS |= {"loss": "0", "command": "none", "length_of_run": ""}


class Parrot:
    """In place of the engine: says the answers that it was given, one after the other."""

    def __init__(self, *answers: str):
        self.answers = answers

    def generate(self, prompts, params):
        class Output:
            error = None

            def __init__(self, text: str):
                self.text = text

        assert len(prompts) == len(self.answers)
        return [Output(text) for text in self.answers]


@pytest.mark.parametrize(
    ("completion", "is_right"),
    [
        (f" {ANSWER}", True),
        (ANSWER.replace("6", "7"), True),  # the number is another matter
        (ANSWER.replace("Together", "In all"), True),
        (ANSWER.replace("Joseph", "Jeph"), False),
        (ANSWER.replace("Joseph", "Josepha"), False),
        (ANSWER.replace("Joseph", "joseph"), False),
        (ANSWER.replace("Ruth and Joseph", "Joseph and Ruth"), False),
        (ANSWER.replace("Ruth has", "She has"), False),
        (ANSWER.replace("5 pens", "5 pens for Ruth"), False),
        (ANSWER.replace("Together", "Wilson,"), False),
        ("", False),
    ],
)
def test_names_are_right_if_they_are_the_references_in_its_order(completion: str, is_right: bool) -> None:
    assert names_are_right(completion, ANSWER) is is_right


def test_where_the_reference_names_nobody_names_do_not_count() -> None:
    assert names_are_right("Ruth has 5.\n#### 5", "She has 5.\n#### 5") is None


def test_every_reference_answer_is_right_about_its_own_names() -> None:
    for split in ("train", "held-out", "new-kinds"):
        verdicts = [names_are_right(one.answer, one.answer) for one in word_problems(300, split=split)]
        assert False not in verdicts
        assert verdicts.count(True) > 100


def test_a_score_counts_numbers_and_names_apart() -> None:
    asked = [("ages", one) for one in word_problems(40)]
    named = [names_are_right(one.answer, one.answer) is not None for _, one in asked]
    texts = [one.answer if i % 2 else f"Zed has it.\n{one.answer}" for i, (_, one) in enumerate(asked)]
    result = score(Parrot(*texts), "parrot", asked)
    assert result.right == 40
    assert result.named == sum(named)
    assert result.names_right == sum(named[1::2])
    found = result.to_json()["names"]
    assert found["in_order"] == "".join(str(i % 2) if is_named else "-" for i, is_named in enumerate(named))
    assert (found["right"], found["asked"]) == (result.names_right, result.named)
    assert result.names_share == result.names_right / result.named


def test_names_of_other_problems_than_the_generators_are_not_counted() -> None:
    asked = [("gsm8k", one) for one in word_problems(5)]
    result = score(Parrot(*(one.answer for _, one in asked)), "gsm8k", asked, names_count=False)
    assert (result.right, result.named, result.names_share) == (5, 0, None)
    assert result.to_json()["names"] == {"right": 0, "asked": 0, "in_order": ""}


def test_the_card_has_a_column_of_names_and_a_sentence() -> None:
    """Held-out problems come first; where no names count there is a dash."""
    held_out = Score("held out", (("ages", True), ("laps", False), ("laps", True)), (True, None, False))
    text = card(TINY, [held_out, Score("GSM8K", (("gsm8k", False),))], FACTS)
    assert "| held out | 2 of 3 | 66.7% | 1 of 2 |" in text
    assert "| GSM8K | 0 of 1 | 0.0% | - |" in text
    assert "of the held-out problems above, 2 worked answers name somebody" in text
    assert "1 of its answers name" in text


def test_a_curve_without_a_look_in_between_is_drawn_too(tmp_path) -> None:
    for i, looks in enumerate(([], [{"step": 2, "exact_match": 0.5, "names_right": None}])):
        draw_curve([{"step": 1, "loss": 2.0}, *looks], tmp_path / f"{i}.png", "title")
        assert (tmp_path / f"{i}.png").read_bytes().startswith(b"\x89PNG")


def test_problems_are_of_the_presets_kinds() -> None:
    for split in ("train", "held-out"):
        assert {kind for kind, _ in problems(replace(TINY, kinds=("ages", "laps")), split, 12)} == {"ages", "laps"}
