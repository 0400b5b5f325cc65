"""Compare both modes on the trained model and on word problems of this package: nothing is downloaded.

The problems show people and combinations of numbers that the model was never trained on. They are the first ones of
`statewise eval word-problems`, asked and judged as there: zero-shot, strict match.
"""

import argparse
import shutil
from pathlib import Path

from statewise.cli.compare import add_run_arguments, check_limit, compare
from statewise.demo.questions import MAX_COUNT, word_problems
from statewise.demo.shipped import FOLDER
from statewise.errors import ConfigError
from statewise.eval.prompts import MAX_TOKENS, STOP
from statewise.eval.questions import Question, write_questions

SUMMARY = "compare on a small trained model and word problems (start here)"
QUESTIONS = 100


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--keep", type=Path, metavar="FOLDER", help="also write model and questions.jsonl there, for other programs"
    )
    add_run_arguments(parser)
    parser.set_defaults(limit=QUESTIONS, show=2, max_tokens=MAX_TOKENS)


def run(arguments: argparse.Namespace) -> int:
    check_limit(arguments.limit)
    if arguments.limit > MAX_COUNT:
        raise ConfigError(f"limit is {arguments.limit}, expected at most {MAX_COUNT}")
    questions = word_problems(arguments.limit)
    if arguments.keep is not None:
        _keep(arguments.keep, questions)
    return compare(arguments, FOLDER, questions, STOP, is_scored=True)


def _keep(folder: Path, questions: list[Question]) -> None:
    try:
        shutil.copytree(FOLDER, folder, dirs_exist_ok=True)
        write_questions(folder / "questions.jsonl", questions)
    except (OSError, shutil.Error) as error:
        reason = error.strerror or error
        raise ConfigError(f"keep is {folder}, which cannot be written: {reason}") from error
