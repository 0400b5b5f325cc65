"""Time the decode step, a mixer or a prefill of one layer, or decode of a whole model: ours beside its peers."""

import argparse
import importlib

SUMMARY = "time one layer's kernels or a whole model's decode beside their peers"
# target -> module with add_arguments(parser) and run(arguments) -> exit code, and what it is.
TARGETS = {
    "op": ("statewise.cli.bench_op", "the decode step of one layer"),
    "mixer": ("statewise.cli.bench_op", "the same with its convolution and norm"),
    "prefill": ("statewise.cli.bench_prefill", "convolution and scan of one layer, packed prompts"),
    "decode": ("statewise.cli.bench_decode", "whole-model decode through the engine, plain and checkpointed"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    targets = parser.add_subparsers(dest="what", metavar="WHAT", required=True)
    for name, (path, meaning) in TARGETS.items():
        module = importlib.import_module(path)
        target = targets.add_parser(name, help=meaning, description=module.__doc__)
        module.add_arguments(target)


def run(arguments: argparse.Namespace) -> int:
    return int(importlib.import_module(TARGETS[arguments.what][0]).run(arguments))
