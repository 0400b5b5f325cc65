"""Arithmetic word problems in the form of GSM8K (Cobbe et al., arXiv 2110.14168), generated, not copied.

    python -m statewise.demo.questions OUT.jsonl [--count 200] [--seed 0]

A question's answer is its worked solution, a step a line with the calculator annotation `<<3*4=12>>`, and a
last line `#### N`. The problems themselves are in `templates`; here they are dealt into a list and written.
"""

import argparse
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from statewise.demo.templates import TEMPLATES
from statewise.demo.wording import Dice
from statewise.eval.questions import Question, write_questions

MAX_COUNT = 10_000  # the least varied template has over 10,000 wordings: redraws stay rare up to here


def word_problems(count: int = 200, seed: int = 0) -> list[Question]:
    """The first `count` problems of the stream that `seed` starts.

    The list depends on `count`, `seed` and the templates alone, not on the platform or the version of Python.
    A shorter list is a prefix of a longer one with the same seed, and no question occurs twice in a list.

    Raises:
        ValueError: `count` is negative or above `MAX_COUNT`.
    """
    if not 0 <= count <= MAX_COUNT:
        raise ValueError(f"count must be from 0 to {MAX_COUNT}, got {count}")
    return list(islice(_distinct_problems(Dice(seed)), count))


def _distinct_problems(dice: Dice) -> Iterator[Question]:
    """Deals every template once, in random order, then again; a problem seen before is drawn again."""
    seen: set[str] = set()
    while True:
        for template in dice.pick(TEMPLATES, len(TEMPLATES)):
            problem = template(dice)
            while problem.question in seen:
                problem = template(dice)
            seen.add(problem.question)
            yield problem


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line: writes the problems and says how many."""
    parser = argparse.ArgumentParser(description="Write arithmetic word problems in GSM8K's form.")
    parser.add_argument("out", type=Path, help="JSONL file to write")
    parser.add_argument("--count", type=int, default=200, help=f"problems, at most {MAX_COUNT} (default 200)")
    parser.add_argument("--seed", type=int, default=0, help="start of the random stream (default 0)")
    options = parser.parse_args(arguments)
    if not 0 <= options.count <= MAX_COUNT:
        parser.error(f"--count must be from 0 to {MAX_COUNT}, got {options.count}")
    write_questions(options.out, word_problems(options.count, options.seed))
    print(f"wrote {options.count} problems to {options.out}")


if __name__ == "__main__":
    main()
