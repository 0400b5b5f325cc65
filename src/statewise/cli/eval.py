"""Ask a model questions whose answers are known, and score it as lm-evaluation-harness does."""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from statewise.cli import eval_drift
from statewise.cli.compare import check_limit
from statewise.cli.modes import both_modes, label, one_mode, progress
from statewise.cli.options import add_engine_options, add_model, expect_writable
from statewise.config import EngineConfig
from statewise.demo.questions import MAX_COUNT, SPLITS, word_problems
from statewise.errors import ConfigError, DataError
from statewise.eval.gsm8k import read_gsm8k
from statewise.eval.prompts import FEWSHOT_SEED, MAX_TOKENS, few_shot_prompts
from statewise.eval.provenance import machine, source_hash
from statewise.eval.records import Records, expect_same_run
from statewise.eval.report import CONFIDENCE, FILTERS, Scored, identical, paired, report, score
from statewise.eval.run import Exam, answer, describe_run

SUMMARY = "score a model on GSM8K or word problems, or measure how states drift"
TEST_SEED = 0  # of the word problems that are asked
MAX_PROBLEM_SHOTS = 1000  # worked examples that prompts draw from


def add_arguments(parser: argparse.ArgumentParser) -> None:
    what = parser.add_subparsers(dest="what", metavar="WHAT", required=True)
    gsm8k = what.add_parser(
        "gsm8k",
        help="GSM8K's test questions, 5-shot",
        description="GSM8K's test questions with prompts, filters and matching of lm-evaluation-harness 0.4.13.",
    )
    gsm8k.add_argument(
        "--data",
        type=Path,
        metavar="DIR",
        help="folder with train.jsonl and test.jsonl (default: the variable GSM8K_DIR, else the Hugging Face hub)",
    )
    _add_run_arguments(gsm8k, shots=5)
    problems = what.add_parser(
        "word-problems",
        help="generated arithmetic word problems in GSM8K's form",
        description="Arithmetic word problems that this package generates, scored as GSM8K is.",
    )
    problems.add_argument("--count", type=int, default=1000, metavar="N", help="how many (default 1000)")
    problems.add_argument("--seed", type=int, default=TEST_SEED, metavar="N", help="which (default %(default)s)")
    problems.add_argument(
        "--split", choices=SPLITS, default="held-out", help="kinds and numbers to draw from (default %(default)s)"
    )
    _add_run_arguments(problems, shots=0)
    drift = what.add_parser(
        "drift",
        help="errors of rounded states against float64 over thousands of tokens",
        description=eval_drift.__doc__,
    )
    eval_drift.add_arguments(drift)


def _add_run_arguments(parser: argparse.ArgumentParser, shots: int) -> None:
    add_model(parser)
    parser.add_argument(
        "--num-fewshot", type=int, default=shots, metavar="N", help="worked examples in a prompt (default %(default)s)"
    )
    parser.add_argument(
        "--fewshot-seed",
        type=int,
        default=FEWSHOT_SEED,
        metavar="N",
        help="draws the examples (default %(default)s, lm-evaluation-harness' own)",
    )
    parser.add_argument("--limit", type=int, metavar="N", help="ask the first N questions only")
    parser.add_argument("--concurrency", type=int, default=50, metavar="N", help="requests at once (default 50)")
    parser.add_argument(
        "--max-tokens", type=int, default=MAX_TOKENS, metavar="N", help="tokens an answer (default %(default)s)"
    )
    parser.add_argument(
        "--against", choices=["plain"], help="ask in the plain mode as well, and say whether the scores differ"
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE.json",
        help="write the results there, and each completion beside it as it comes; "
        "started again with the same options, the run goes on where it was",
    )
    add_engine_options(parser, leave_out=("max_batch",))


def run(arguments: argparse.Namespace) -> int:
    if arguments.what == "drift":
        return eval_drift.run(arguments)
    check_limit(arguments.limit)
    exam = _gsm8k(arguments) if arguments.what == "gsm8k" else _word_problems(arguments)
    completions = _completions_file(arguments.output)
    model = arguments.model
    configs = both_modes(arguments, model) if arguments.against else [one_mode(arguments, model)]
    modes = {"plain" if config.checkpoint_interval == 1 else "checkpointed": config for config in configs}
    described: dict[str, Any] = {}
    if arguments.output is not None and completions is not None:
        described = describe_run(exam, model, modes)
        if not completions.exists():
            _expect_own_report(arguments.output, described)
    with Records(completions, described, _session(arguments)) as records:
        try:
            _ask(exam, model, modes, records)
        except KeyboardInterrupt:
            if completions is not None:
                print(f"kept in {completions}; the same command goes on from there", file=sys.stderr)
            raise
        scored = [score(exam, records, name) for name in modes]
        if arguments.output is not None:
            _write(arguments.output, report(described, exam, records, scored))
    _print(Console(), exam, scored, list(modes.values()))
    return 0


def _gsm8k(arguments: argparse.Namespace) -> Exam:
    folder = arguments.data or (Path(os.environ["GSM8K_DIR"]) if os.environ.get("GSM8K_DIR") else None)
    questions = read_gsm8k("test", folder)
    if arguments.limit is not None and arguments.limit > len(questions):
        raise ConfigError(f"limit is {arguments.limit}, expected at most {len(questions)}, the number of questions")
    questions = questions[: arguments.limit]
    examples = read_gsm8k("train", folder) if arguments.num_fewshot else []
    prompts = few_shot_prompts(questions, examples, arguments.num_fewshot, arguments.fewshot_seed)
    source = {"num_fewshot": arguments.num_fewshot, "fewshot_seed": arguments.fewshot_seed}
    return Exam("gsm8k", questions, prompts, source, arguments.max_tokens)


def _word_problems(arguments: argparse.Namespace) -> Exam:
    """Questions of the split; examples always of the training split."""
    if not 1 <= arguments.count <= MAX_COUNT:
        raise ConfigError(f"count is {arguments.count}, expected 1 to {MAX_COUNT}")
    if arguments.limit is not None and arguments.limit > arguments.count:
        raise ConfigError(f"limit is {arguments.limit}, expected at most {arguments.count}, the number of questions")
    questions = word_problems(arguments.limit or arguments.count, arguments.seed, arguments.split)
    asked = {question.question for question in questions}
    drawn = word_problems(MAX_PROBLEM_SHOTS, arguments.fewshot_seed, "train") if arguments.num_fewshot else []
    examples = [example for example in drawn if example.question not in asked]
    prompts = few_shot_prompts(questions, examples, arguments.num_fewshot, arguments.fewshot_seed)
    names = ("count", "seed", "split", "num_fewshot", "fewshot_seed")
    source = {name: getattr(arguments, name) for name in names}
    return Exam("word-problems", questions, prompts, source, arguments.max_tokens)


def _session(arguments: argparse.Namespace) -> dict[str, Any]:
    told = {"command": sys.argv[1:], "model": str(arguments.model), "source_sha256": source_hash()}
    return told | machine()


def _completions_file(output: Path | None) -> Path | None:
    """Where completions go as they come: beside the results. Raises ConfigError where neither can be written."""
    if output is None:
        return None
    if output.exists() and not output.is_file() and not output.is_dir():
        raise ConfigError(f"output is {output}, expected a file: results take its place when they are whole")
    expect_writable("output", output)
    beside = output.with_name(output.name.removesuffix(".json") + ".completions.jsonl")
    expect_writable("output", beside)
    return beside


def _expect_own_report(output: Path, described: dict[str, Any]) -> None:
    """Results that are there without their completions may be replaced only by the same run's."""
    if not output.exists() or not output.stat().st_size:
        return
    try:
        report = json.loads(output.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        report = None
    there = report.get("run") if isinstance(report, dict) else None
    if not isinstance(there, dict):
        raise DataError(f"{output} holds something else than results; name another output")
    expect_same_run(output, there, described)


def _ask(exam: Exam, model: Path, modes: dict[str, EngineConfig], records: Records) -> None:
    for name, config in modes.items():
        done = len(records.of(name))
        if done:
            print(f"{label(config.checkpoint_interval)}: {done} of {len(exam.prompts)} are there", file=sys.stderr)
        with progress(Console(stderr=True)) as bars:
            bar = bars.add_task(label(config.checkpoint_interval), total=len(exam.prompts), completed=done)
            answer(exam, model, name, config, records, lambda p=bars, b=bar: p.advance(b))  # type: ignore[misc]


def _write(output: Path, results: dict[str, object]) -> None:
    """Whole or not at all. Raises DataError if the disk takes no more; the completions are kept."""
    scratch = output.with_name(output.name + ".new")
    try:
        scratch.write_text(json.dumps(results, indent=1, allow_nan=False) + "\n", encoding="utf-8")
        scratch.replace(output)
    except OSError as error:
        why = f"{output} cannot be written: {error.strerror}; the completions are kept, the same command goes on"
        raise DataError(why) from error


def _print(console: Console, exam: Exam, scored: list[Scored], configs: list[EngineConfig]) -> None:
    shots = exam.source["num_fewshot"]
    table = Table(
        title=f"{exam.task}, {len(exam.questions)} questions, {shots}-shot", title_justify="left", box=SIMPLE_HEAD
    )
    table.add_column("mode", no_wrap=True)
    for column in ("strict match", "flexible extract", "tokens/s", "wall time"):
        table.add_column(column, justify="right", no_wrap=True)
    for mode, config in zip(scored, configs, strict=True):
        speed = f"{mode.tokens / mode.seconds:,.0f}" if mode.seconds else "-"
        scores = [_percent(mode.score(by).value, mode.score(by).stderr) for by in FILTERS]
        table.add_row(label(config.checkpoint_interval), *scores, speed, f"{mode.seconds:.1f} s")
    console.print(table)
    for line in _findings(scored):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _percent(value: float, stderr: float | None) -> str:
    return f"{value:.1%}" + ("" if stderr is None else f" ± {stderr:.1%}")


def _findings(scored: list[Scored]) -> list[str]:
    """What the table does not say."""
    lines = []
    if len(scored) == 2:
        first, second = scored
        total = len(first.verdicts)
        lines.append(f"Identical answers, token by token: {identical(first, second)} of {total}.")
        for by in FILTERS:
            pair = paired(first, second, by)
            low, high = pair.interval(CONFIDENCE)
            lines.append(
                f"{by}: {second.mode} less {first.mode} is {pair.difference:+.2%} "
                f"({CONFIDENCE:.0%} interval {low:+.2%} to {high:+.2%}); right in one mode only: {pair.only_first} and "
                f"{pair.only_second}, McNemar's exact p = {float(pair.mcnemar()):.3g}"
            )
    for mode in scored:
        if mode.cut:
            lines.append(f"{mode.mode}: {mode.cut} answers had no room to end; --max-tokens gives more")
        if mode.refused:
            one = mode.refused[0]
            lines.append(
                f"{mode.mode}: {len(mode.refused)} questions could not be served and count as wrong; "
                f"question {one.index + 1}: {one.error}"
            )
    return lines
