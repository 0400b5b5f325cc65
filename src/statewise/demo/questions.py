"""Arithmetic word problems in the form of GSM8K (Cobbe et al., arXiv 2110.14168), generated, not copied.

    python -m statewise.demo.questions OUT.jsonl [--count 200] [--seed 0] [--split held-out]

A question's answer is its worked solution, a step a line with the calculator annotation `<<3*4=12>>`, and a
last line `#### N`. The problems themselves are in `kinds`; here they are dealt into a list and written.

Three splits, so that a model can be trained on one and asked the others:

| split | kinds | people | numbers |
|---|---|---|---|
| train | `kinds.TRAINED` | `people.KNOWN`, and made-up ones | those for which `is_reserved` says no |
| held-out | `kinds.TRAINED` | `people.RESERVED` | those for which `is_reserved` says yes |
| new-kinds | `kinds.NEVER_TRAINED` | `people.RESERVED` | all |

So nobody in a held-out problem was met in training, and no kind was trained with the numbers that it shows there.
"""

import argparse
import re
import zlib
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from statewise.demo import people
from statewise.demo.kinds import NEVER_TRAINED, TRAINED, Kind
from statewise.demo.wording import Dice
from statewise.eval.questions import Question, write_questions

MAX_COUNT = 10_000  # the least varied kind has several times its share of wordings: redraws stay rare up to here
SPLITS = ("train", "held-out", "new-kinds")
RESERVED_ONE_IN = 8
_NUMBER = re.compile(r"\d+|half|third|quarter|fifth|sixth|twice|three times|four times|five times")


def word_problems(count: int = 200, seed: int = 0, split: str = "held-out") -> list[Question]:
    """The first `count` problems of the stream that `seed` starts in `split`.

    The list depends on its arguments and the kinds alone, not on the platform or the version of Python.
    A shorter list is a prefix of a longer one with the same seed, and no question occurs twice in a list.

    Raises:
        ValueError: `count` is negative or above `MAX_COUNT`, or there is no such split.
    """
    if not 0 <= count <= MAX_COUNT:
        raise ValueError(f"count must be from 0 to {MAX_COUNT}, got {count}")
    return [problem for _, problem in islice(distinct_problems(dice_of(split, seed), split), count)]


def dice_of(split: str, seed: int | str) -> Dice:
    """Dice whose people are those of the split. Raises ValueError if there is no such split."""
    if split not in SPLITS:
        raise ValueError(f"split must be one of {', '.join(SPLITS)}, got {split!r}")
    return people.DiceOfTraining(seed) if split == "train" else Dice(seed, people.RESERVED)


def kinds_of(split: str) -> tuple[Kind, ...]:
    """The kinds that occur in the split."""
    return NEVER_TRAINED if split == "new-kinds" else TRAINED


def is_reserved(kind: str, question: str) -> bool:
    """Whether the numbers that a question of this kind shows are kept from training: one combination in eight.

    It goes by `numbers_shown`: neither the wording nor the people matter.
    """
    return zlib.crc32(f"{kind} {' '.join(numbers_shown(question))}".encode()) % RESERVED_ONE_IN == 0


def numbers_shown(question: str) -> list[str]:
    """The numbers in a question, in digits or as a part or a multiple (`a third`, `twice`), sorted as text."""
    return sorted(_NUMBER.findall(question.lower()))


def draw(kind: Kind, dice: Dice, split: str) -> Question:
    """A problem of this kind that belongs to the split; others are drawn again."""
    while True:
        problem = kind(dice)
        if split == "new-kinds" or is_reserved(kind.__name__, problem.question) == (split == "held-out"):
            return problem


def distinct_problems(dice: Dice, split: str) -> Iterator[tuple[str, Question]]:
    """Deals a problem of every kind, in random order, then again, each with its kind's name; none comes twice."""
    seen: set[str] = set()
    kinds = kinds_of(split)
    while True:
        for kind in dice.pick(kinds, len(kinds)):
            problem = draw(kind, dice, split)
            while problem.question in seen:
                problem = draw(kind, dice, split)
            seen.add(problem.question)
            yield kind.__name__, problem


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line: writes the problems and says how many."""
    parser = argparse.ArgumentParser(description="Write arithmetic word problems in GSM8K's form.")
    parser.add_argument("out", type=Path, help="JSONL file to write")
    parser.add_argument("--count", type=int, default=200, help=f"problems, at most {MAX_COUNT} (default 200)")
    parser.add_argument("--seed", type=int, default=0, help="start of the random stream (default 0)")
    parser.add_argument("--split", choices=SPLITS, default="held-out", help="which problems (default held-out)")
    options = parser.parse_args(arguments)
    if not 0 <= options.count <= MAX_COUNT:
        parser.error(f"--count must be from 0 to {MAX_COUNT}, got {options.count}")
    try:
        write_questions(options.out, word_problems(options.count, options.seed, options.split))
    except OSError as error:
        parser.error(f"{options.out} cannot be written: {error.strerror}")
    print(f"wrote {options.count} problems to {options.out}")


if __name__ == "__main__":
    main()
