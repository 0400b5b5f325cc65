"""Time a prefill of one layer on this GPU, convolution and scan: ours and every peer that can be imported."""

import argparse
import sys

import torch

from statewise.bench.rates import MATRIX_RATE
from statewise.cli.bench_layer import (
    add_layer_options,
    console,
    expect_gpu,
    expect_outputs,
    expect_rates,
    shape_of,
    write_report,
)
from statewise.cli.options import expect_positive
from statewise.errors import ConfigError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tokens", type=int, nargs="+", default=[512, 2048, 8192, 32768], metavar="L", help="in all")
    parser.add_argument("--sequences", type=int, nargs="+", default=[1, 4, 16, 64], metavar="Q", help="that share them")
    add_layer_options(parser)
    parser.add_argument(
        "--matrix-rate",
        type=float,
        default=MATRIX_RATE["H200"],
        metavar="OPS",
        help="bfloat16 operations a second, for the floor (default 7.9e14, an H200)",
    )


def run(arguments: argparse.Namespace) -> int:
    from statewise.bench.prefill import check, measure
    from statewise.bench.prefill_report import errors_table, plot_prefill, table

    shape, screen = shape_of(arguments), console()
    _expect_points(arguments.tokens, arguments.sequences)
    expect_rates(arguments)
    expect_outputs(arguments)
    expect_gpu()
    checked = check(shape, say=lambda line: print(line, file=sys.stderr))
    screen.print(errors_table(checked.errors))
    rows = [
        measure(checked, shape, tokens, sequences, has_initial, arguments.bandwidth, arguments.matrix_rate)
        for has_initial in (False, True)
        for sequences in arguments.sequences
        for tokens in arguments.tokens
    ]
    screen.print(table(rows))
    write_report(arguments, rows, {"errors": checked.errors})
    if arguments.plot:
        plot_prefill(rows, arguments.plot, f"convolution and scan of one layer, {torch.cuda.get_device_name()}")
    return 0


def _expect_points(tokens: list[int], sequences: list[int]) -> None:
    """Raise ConfigError unless each count of tokens is that of each count of sequences of one length."""
    expect_positive("tokens", tokens)
    expect_positive("sequences", sequences)
    for length in tokens:
        for count in sequences:
            if length % count:
                raise ConfigError(f"{length} tokens do not divide into {count} sequences of one length")
