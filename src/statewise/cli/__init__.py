"""The command line: ``statewise COMMAND``. One module a command; this file finds it and turns errors into lines."""

import argparse
import importlib
import io
import os
import sys
import traceback
from collections.abc import Sequence
from typing import NoReturn

from statewise import __version__
from statewise.errors import EngineError, StatewiseError

# name -> module with SUMMARY, add_arguments(parser) and run(arguments) -> exit code. Imported when asked for.
COMMANDS = {
    "demo": "statewise.cli.demo",
    "generate": "statewise.cli.generate",
    "compare": "statewise.cli.compare",
    "eval": "statewise.cli.eval",
    "info": "statewise.cli.info",
    "bench": "statewise.cli.bench",
    "tune": "statewise.cli.tune",
    "verify": "statewise.cli.verify",
}


class Parser(argparse.ArgumentParser):
    """Mistakes are one line that says where help is."""

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: error: {message}; see {self.prog} --help", file=sys.stderr)
        sys.exit(2)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Returns 0, or 1 where it found a difference, 2 for a user's mistake, 3 for an engine that failed, 130 after Ctrl-C.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal that lacks a character gets an escape, not a traceback
            stream.reconfigure(errors="backslashreplace")
    parsed = build_parser().parse_args(arguments)
    try:
        return int(importlib.import_module(COMMANDS[parsed.command]).run(parsed))
    except EngineError as error:  # nobody's mistake: where it came from is worth reporting
        traceback.print_exception(error.__cause__)
        print(f"statewise: error: {error}", file=sys.stderr)
        return 3
    except StatewiseError as error:
        print(f"statewise: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("statewise: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output has gone, as in `statewise ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def build_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line."""
    parser = Parser(
        prog="statewise",
        description="Decode Mamba-2 and hybrid language models with checkpointed state updates.",
        epilog="`statewise COMMAND --help` says what a command takes.",
    )
    parser.add_argument("--version", action="version", version=f"statewise {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, path in COMMANDS.items():
        module = importlib.import_module(path)
        command = commands.add_parser(name, help=module.SUMMARY, description=module.__doc__)
        module.add_arguments(command)
    return parser
