"""Compare both modes on a model and questions made on the spot: nothing is downloaded.

The model is a tiny hybrid with random weights. It is untrained: its answers are noise, the same noise in both modes.
"""

import argparse
import tempfile
from pathlib import Path

from statewise.cli.compare import add_run_arguments, check_limit, compare
from statewise.demo.checkpoint import write_demo_checkpoint
from statewise.demo.questions import MAX_COUNT, word_problems
from statewise.errors import ConfigError
from statewise.eval.questions import write_questions

SUMMARY = "compare on a built-in model and questions (start here)"
QUESTIONS = 200
NOTE = "The demo model is untrained: its answers are noise, and the point is that both modes give the same noise."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--keep", type=Path, metavar="FOLDER", help="write model and questions.jsonl there, for the other commands"
    )
    add_run_arguments(parser)
    parser.set_defaults(limit=QUESTIONS, show=2)


def run(arguments: argparse.Namespace) -> int:
    check_limit(arguments.limit)
    if arguments.limit > MAX_COUNT:
        raise ConfigError(f"limit is {arguments.limit}, expected at most {MAX_COUNT}")
    questions = word_problems(arguments.limit)
    with tempfile.TemporaryDirectory() as scratch:
        folder = arguments.keep or Path(scratch)
        try:
            write_demo_checkpoint(folder)
            write_questions(folder / "questions.jsonl", questions)
        except OSError as error:
            raise ConfigError(f"keep is {folder}, which cannot be written: {error.strerror}") from error
        return compare(arguments, str(folder), questions, NOTE)
