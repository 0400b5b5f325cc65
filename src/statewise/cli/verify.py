"""Check the kernels against float64 on this GPU, at the shapes of released models, before serving on it.

One line a case. Exit code 0 if all are good, 1 if any fails or none could run, 2 for a mistake.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from rich.console import Console

from statewise.cli.options import add_model, expect_writable
from statewise.config import MAX_CHECKPOINT_INTERVAL, is_int
from statewise.errors import BackendError, ConfigError
from statewise.models.families import read_config
from statewise.ops.backend import resolve

if TYPE_CHECKING:
    from statewise.verify.report import Result
    from statewise.verify.target import Target

SUMMARY = "check the kernels against float64 on this GPU, at production shapes"
CHECKS = {
    "decode": "rows at every phase, pads among them, at each batch",
    "requests": "new requests beside old ones",
    "moves": "slots copied, forked, swapped between steps",
    "graph": "a CUDA graph against eager, bit by bit",
    "bits": "repeated launches and another order of the batch, bit by bit",
    "drift": "errors over thousands of tokens, beside the plain step's",
    "large": "slots past 2^31 and 2^32 elements of the state",
}
DTYPES = ("float32", "bfloat16", "float16")
BACKENDS = ("auto", "triton", "flashinfer", "torch")
MODERATE = 16  # rows of the checks that need no large batch

Case = tuple[str, int, Callable[[], "Result"]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    what = parser.add_mutually_exclusive_group()
    add_model(what, "--model", "; its mixer is verified, for which config.json is enough")
    what.add_argument(
        "--shape",
        nargs="+",
        metavar="NAME",
        help="mixers of released models, or HEADS,HEAD_DIM,GROUPS,STATE_SIZE (default: one of each kind; "
        "an unknown name lists them)",
    )
    parser.add_argument("--backend", choices=BACKENDS, default="auto", help="the ops to check (default auto)")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="default cuda")
    parser.add_argument("--dtype", choices=DTYPES, default="bfloat16", help="of activations (default bfloat16)")
    parser.add_argument(
        "--state-dtype",
        nargs="+",
        choices=DTYPES,
        default=["float32", "bfloat16"],
        metavar="DTYPE",
        help="of states (default float32 bfloat16)",
    )
    parser.add_argument("--checkpoint-interval", type=int, default=16, metavar="W", help="1 to 64 (default 16)")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 16, 256], metavar="N", help="default 1 16 256")
    parser.add_argument(
        "--prefill-lengths",
        type=int,
        nargs="+",
        default=[1, 5, 64, 777],
        metavar="L",
        help="tokens of the new requests (default 1 5 64 777)",
    )
    parser.add_argument("--drift-tokens", type=int, default=2000, metavar="N", help="default 2000")
    listed = "; ".join(f"{name}: {meaning}" for name, meaning in CHECKS.items())
    parser.add_argument(
        "--check", nargs="+", choices=list(CHECKS), default=list(CHECKS), metavar="NAME", help=f"default all. {listed}"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results there")


def run(arguments: argparse.Namespace) -> int:
    _expect_possible(arguments)
    from statewise.verify import report

    device = torch.device(arguments.device)
    targets = _targets(arguments, device)
    console = Console(width=None if sys.stdout.isatty() else 200, highlight=False, soft_wrap=True)
    results: list[tuple[Target, Result, float]] = []
    shown = ""
    console.print(report.header(), markup=False)
    for target, obstacle in targets:
        if target.name != shown:
            console.print(f"\n{target.shape}: {target.name}", markup=False)
            shown = target.name
        for result, seconds in _results(arguments, target, obstacle):
            results.append((target, result, seconds))
            console.print(report.line(target, result))
    pairs = [(target, result) for target, result, _ in results]
    console.print(f"\n{report.summary(pairs, device)}", markup=False)
    if arguments.json:
        options = {key: str(v) if isinstance(v, Path) else v for key, v in vars(arguments).items() if key != "command"}
        text = json.dumps(report.as_json(results, device, options), indent=1, allow_nan=False)
        arguments.json.write_text(text + "\n", encoding="utf-8")
    verdicts = {result.verdict for _, result in pairs}
    return 0 if "ok" in verdicts and "FAILED" not in verdicts else 1


def _expect_possible(arguments: argparse.Namespace) -> None:
    """Raise ConfigError for what cannot work, before anything runs."""
    if arguments.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            "verify runs on a CUDA GPU, and torch sees none here; --device cpu verifies the torch backend, "
            "or triton in its interpreter with TRITON_INTERPRET=1"
        )
    most = {"checkpoint_interval": MAX_CHECKPOINT_INTERVAL}
    for name in ("checkpoint_interval", "drift_tokens", "batch", "prefill_lengths"):
        given = getattr(arguments, name)
        for value in given if isinstance(given, list) else [given]:
            if not is_int(value) or not 1 <= value <= most.get(name, value):
                bounds = f"1 to {most[name]}" if name in most else "at least 1"
                raise ConfigError(f"{name} is {value}, expected {bounds}")
    if arguments.json:
        expect_writable("json", arguments.json)


def _targets(arguments: argparse.Namespace, device: torch.device) -> "list[tuple[Target, str]]":
    """What to verify, and why it cannot run, which is an error unless it is one of the default shapes of many."""
    from statewise.verify.target import DEFAULT, Target, read_shape

    eps = 1e-5
    if arguments.model:
        model = read_config(arguments.model)
        eps = model.norm_eps
        mixers = [(f"{model.architecture} in {arguments.model}", model.mamba)]
    else:
        mixers = [read_shape(text) for text in arguments.shape or DEFAULT]
    found: list[tuple[Target, str]] = []
    problems: list[BackendError] = []
    for name, mamba in mixers:
        for state_dtype in arguments.state_dtype:
            target = Target(
                name=name,
                mamba=mamba,
                dtype=getattr(torch, arguments.dtype),
                state_dtype=getattr(torch, state_dtype),
                window=arguments.checkpoint_interval,
                device=device,
                eps=eps,
            )
            try:
                largest = max(*arguments.batch, MODERATE, len(arguments.prefill_lengths) + MODERATE)
                ops, reason = resolve(arguments.backend, device, target.needs(largest))
            except BackendError as error:
                problems.append(error)
                found.append((target, str(error)))
                continue
            if not any(each.ops for each, _ in found):
                print(f"backend   {reason}", file=sys.stderr)
            found.append((target.with_ops(ops), ""))
    is_default = not arguments.model and not arguments.shape
    if problems and (not is_default or len(problems) == len(found)):
        raise problems[0]
    return found


def _results(arguments: argparse.Namespace, target: "Target", obstacle: str) -> "Iterator[tuple[Result, float]]":
    """The result of each case and its seconds, as they come."""
    from statewise.verify.report import Result, skipped

    if obstacle:
        yield skipped("all", max(arguments.batch), obstacle), 0.0
        return
    with torch.inference_mode():
        target.tested.warm_up()
        for check, batch, case in _cases(arguments, target):
            began = time.monotonic()
            try:
                result = case()
            except torch.OutOfMemoryError as error:
                result = skipped(check, batch, f"out of memory: {_first_line(error)}")
            except Exception as error:  # whatever a kernel raises here, it would raise in a server
                raised = f"raised {type(error).__name__}: {_first_line(error)}"
                result = Result(check=check, batch=batch, verdict="FAILED", note=raised)
            yield result, time.monotonic() - began


def _cases(arguments: argparse.Namespace, target: "Target") -> list[Case]:
    """Check, batch, and the call; in the order in which they run."""
    from statewise.verify import bits, checks
    from statewise.verify.drift import ROWS, drift

    wanted, batches = arguments.check, arguments.batch
    some = min(MODERATE, max(batches))
    cases: list[tuple[str, Case]] = [
        *(("decode", ("decode", batch, partial(checks.decode, target, batch))) for batch in batches),
        ("requests", ("new requests", some, partial(checks.requests, target, arguments.prefill_lengths))),
        ("moves", ("slot moves", some, partial(checks.moves, target))),
        ("graph", ("graph = eager", some, partial(bits.graph, target, some))),
        ("bits", ("same bits", some, partial(bits.repeats, target, some))),
        ("drift", ("drift", ROWS, partial(drift, target, arguments.drift_tokens))),
        ("large", ("large slots", some, partial(checks.large, target))),
    ]
    return [case for name, case in cases if name in wanted]


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or ["no message"])[0][:160]
