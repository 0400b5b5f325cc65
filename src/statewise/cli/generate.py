"""Generate text with a model and stream it to standard output. The memory plan goes to standard error."""

import argparse
import sys
from collections import defaultdict

from statewise.cli.options import add_engine_options, add_model, add_sampling_options, engine_config, sampling_params
from statewise.engine.llm import LLM, RequestOutput

SUMMARY = "generate text and stream it"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    parser.add_argument(
        "-p", "--prompt", action="append", required=True, metavar="PROMPT", help="what to continue (repeatable)"
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="do not print the memory plan")
    add_sampling_options(parser, leave_out=("logprobs", "prompt_logprobs", "prompt_logprobs_start"))
    add_engine_options(parser)


def run(arguments: argparse.Namespace) -> int:
    params = sampling_params(arguments)
    llm = LLM(arguments.model, engine_config(arguments), quiet=arguments.quiet)
    failed = _print_in_order(llm, arguments.prompt, params)
    for output in failed:
        which = f"prompt {output.index + 1}: " if len(arguments.prompt) > 1 else ""
        print(f"statewise: error: {which}{output.error}", file=sys.stderr)
    return 2 if failed else 0


def _print_in_order(llm: LLM, prompts: list[str], params: object) -> list[RequestOutput]:
    """Stream the first unfinished prompt's text as it comes, the others' when their turn is there."""
    waiting: dict[int, str] = defaultdict(str)
    done: dict[int, RequestOutput] = {}
    current = 0
    _header(prompts, current)
    for piece in llm.stream(prompts, params):  # type: ignore[arg-type]
        waiting[piece.index] += piece.text
        if piece.output is not None:
            done[piece.index] = piece.output
        print(waiting.pop(current, ""), end="", flush=True)
        while current in done:
            print()
            current += 1
            _header(prompts, current)
            print(waiting.pop(current, ""), end="", flush=True)
    return [done[i] for i in sorted(done) if done[i].error is not None]


def _header(prompts: list[str], index: int) -> None:
    if len(prompts) > 1 and index < len(prompts):
        print(f"--- {index + 1} of {len(prompts)}: {prompts[index]}")
