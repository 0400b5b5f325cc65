"""Answer the same questions with the plain step and with checkpointed decoding, and show what differs and what moved.

Exit code 0 if every answer is the plain run's or leaves it at a near-tie, 1 if one differs by more, 2 for a mistake.
"""

import argparse
import json
import platform
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from statewise import __version__
from statewise.cli.answers import show_answers
from statewise.cli.modes import both_modes, label, progress
from statewise.cli.options import add_engine_options, add_model, expect_writable
from statewise.config import format_bytes
from statewise.errors import ConfigError, RequestError
from statewise.eval.compare import NEAR_TIE, Mode, run_mode
from statewise.eval.questions import Question, read_questions
from statewise.eval.scoring import judge

SUMMARY = "plain against checkpointed on the same questions (the main job)"
SHOWN_DIFFERENCES = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    parser.add_argument("--questions", type=Path, required=True, metavar="FILE", help="JSON lines in GSM8K's form")
    add_run_arguments(parser)


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    """What `compare` and `demo` share."""
    parser.add_argument("--limit", type=int, metavar="N", help="take the first N questions only")
    parser.add_argument(
        "--concurrency", type=int, default=50, metavar="N", help="requests at once (default %(default)s)"
    )
    parser.add_argument(
        "--max-tokens", type=int, default=64, metavar="N", help="tokens an answer (default %(default)s)"
    )
    parser.add_argument(
        "--show", type=int, default=0, metavar="N", help="print N answers of both modes (default %(default)s)"
    )
    parser.add_argument(
        "--json",
        nargs="?",
        const="-",
        metavar="FILE",
        help="write the results as one JSON object to FILE; without FILE, print it instead of the table",
    )
    add_engine_options(parser, leave_out=("max_batch",))


def run(arguments: argparse.Namespace) -> int:
    check_limit(arguments.limit)
    return compare(arguments, arguments.model, read_questions(arguments.questions, arguments.limit))


def check_limit(limit: int | None) -> None:
    """Raise ConfigError for a limit below 1."""
    if limit is not None and limit < 1:
        raise ConfigError(f"limit is {limit}, expected at least 1")


def compare(
    arguments: argparse.Namespace,
    model: Path,
    questions: Sequence[Question],
    stop: Sequence[str] = (),
    is_scored: bool = False,
) -> int:
    """Run both modes and print. is_scored: say also how many answers are right. Returns the exit code."""
    if arguments.json not in (None, "-"):
        expect_writable("json", Path(arguments.json))
    if arguments.show < 0:
        raise ConfigError(f"show is {arguments.show}, expected at least 0")
    configs = both_modes(arguments, model)
    err = Console(stderr=True)
    prompts = [question.prompt for question in questions]
    modes: list[Mode] = []
    for config in configs:
        with progress(err) as bars:
            bar = bars.add_task(label(config.checkpoint_interval), total=len(prompts))
            modes.append(
                run_mode(
                    model,
                    config,
                    prompts,
                    arguments.max_tokens,
                    plain=modes[0] if modes else None,
                    on_finish=lambda _, p=bars, b=bar: p.advance(b),  # type: ignore[misc]
                    stop=stop,
                )
            )
    refused = [output for output in modes[0].outputs if output.error]
    if len(refused) == len(prompts):
        raise RequestError(f"none of {len(prompts)} questions could be served; question 1: {refused[0].error}")
    rights = [_right(mode, questions) for mode in modes] if is_scored else []
    report = json.dumps(_report(model, arguments, modes, rights), indent=2, allow_nan=False)
    if arguments.json == "-":
        print(report)
    else:
        if arguments.json:
            Path(arguments.json).write_text(report + "\n", encoding="utf-8")
        console = Console()
        _print(console, modes, arguments, rights)
        for i in range(min(arguments.show, len(questions))):
            show_answers(console, i, questions[i], modes, [right[i] for right in rights])
    return 1 if any(mode.errors or not mode.as_predicted for mode in modes) else 0


def _right(mode: Mode, questions: Sequence[Question]) -> list[bool]:
    """Which answers are right by the strict filter."""
    pairs = zip(mode.outputs, questions, strict=True)
    return [not output.error and judge(output.text, question.answer).strict_right for output, question in pairs]


def _print(console: Console, modes: list[Mode], arguments: argparse.Namespace, rights: list[list[bool]]) -> None:
    plain, other = modes
    total = len(plain.outputs)
    title = f"{total} questions, concurrency {arguments.concurrency}, {arguments.state_dtype} state"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    table.add_column("\nmode", no_wrap=True)
    for column in (
        *(["right\nanswers"] if rights else []),
        "identical\nanswers",
        "state\nwrites",
        "bytes\n/token",
        "tokens\n/s",
        "wall\ntime",
    ):
        table.add_column(column, justify="right", no_wrap=True)
    for i, mode in enumerate(modes):
        table.add_row(
            label(mode.checkpoint_interval),
            *([f"{sum(rights[i])}/{total}"] if rights else []),
            f"{mode.identical}/{mode.served}",
            f"{mode.counters.state_writes:,}",
            format_bytes(mode.state_bytes_per_token),
            f"{mode.tokens / mode.seconds:,.0f}",
            f"{mode.seconds:.1f} s",
        )
    console.print(table)
    for line in _findings(plain, other):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _findings(plain: Mode, other: Mode) -> list[str]:
    """What the table says, in words, and every difference."""
    writes, fewer = other.counters.state_writes, plain.counters.state_writes
    ratio = (
        f"One state write where plain makes {fewer / writes:.1f}" if writes else f"No state write, plain makes {fewer}"
    )
    share = other.state_bytes_per_token / max(1.0, plain.state_bytes_per_token)
    as_predicted = ", as the rule predicts," if plain.as_predicted and other.as_predicted else ""
    lines = [
        f"{ratio}{as_predicted} and {share:.0%} of the bytes of states, rings and windows. "
        f"While the answers agree, their log probabilities differ by {other.largest_drift:.1e} at most."
    ]
    for mode in (plain, other):
        if not mode.as_predicted:
            wrote, predicted = mode.counters.state_writes, mode.predicted_state_writes
            lines.append(f"ERROR: {mode.name} wrote {wrote} states, the rule predicts {predicted}.")
    refused = [output for output in plain.outputs if output.error]
    if refused:
        first = refused[0]
        lines.append(f"{len(refused)} questions could not be served; question {first.index + 1}: {first.error}")
    for difference in other.differences[:SHOWN_DIFFERENCES]:
        kind = "near-tie" if difference.near_tie else "ERROR"
        tokens = ("the end" if t is None else str(t) for t in (difference.plain_token, difference.token))
        gap = "far" if difference.gap is None else f"{difference.gap:.2e}"
        lines.append(
            f"{kind}: question {difference.question + 1} differs from token {difference.position} on: "
            f"{' became '.join(tokens)}; their logits are {gap} apart in the plain run"
        )
    if len(other.differences) > SHOWN_DIFFERENCES:
        lines.append(f"... and {len(other.differences) - SHOWN_DIFFERENCES} more; --json lists all")
    return lines


def _report(
    model: Path, arguments: argparse.Namespace, modes: list[Mode], rights: list[list[bool]]
) -> dict[str, object]:
    options = {key: str(value) if isinstance(value, Path) else value for key, value in vars(arguments).items()}
    return {
        "statewise": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "model": str(model),
        "options": options,
        "near_tie_below": NEAR_TIE,
        "modes": [
            _mode_report(mode) | ({"right": sum(rights[i]), "is_right": rights[i]} if rights else {})
            for i, mode in enumerate(modes)
        ],
    }


def _mode_report(mode: Mode) -> dict[str, object]:
    answers = [
        {"text": o.text, "finish_reason": o.finish_reason, "error": o.error and str(o.error)} for o in mode.outputs
    ]
    return {
        "mode": mode.name,
        "checkpoint_interval": mode.checkpoint_interval,
        "questions": len(mode.outputs),
        "refused": len(mode.outputs) - mode.served,
        "identical": mode.identical,
        "near_ties": len(mode.differences) - mode.errors,
        "errors": mode.errors,
        "largest_logprob_drift": mode.largest_drift,
        "state_writes": mode.counters.state_writes,
        "predicted_state_writes": mode.predicted_state_writes,
        "state_bytes_per_token": mode.state_bytes_per_token,
        "kv_bytes_per_token": mode.counters.kv_bytes_moved / max(1, mode.counters.decode_rows),
        "tokens": mode.tokens,
        "tokens_per_second": mode.tokens / mode.seconds,
        "wall_seconds": mode.seconds,
        "counters": asdict(mode.counters),
        "differences": [asdict(difference) for difference in mode.differences],
        "answers": answers,
    }
