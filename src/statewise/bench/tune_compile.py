"""Compiles the kernels that `statewise tune` may try, in processes side by side. Triton keeps them on disk."""

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import cache
from multiprocessing import get_context

import torch
from triton.errors import TritonError

from statewise.bench.tune import launched, step_shape, workload
from statewise.bench.tune_candidates import Launch, Tunable, every_kernel, named
from statewise.bench.workload import Shape
from statewise.errors import ConfigError


def launches(
    shape: Shape, dtypes: Sequence[torch.dtype], tunables: Sequence[Tunable]
) -> list[tuple[torch.dtype, Tunable, Launch]]:
    """Few, which start between them every kernel that may be tried with these states."""
    return [
        (dtype, tunable, launch)
        for dtype in dtypes
        for tunable in tunables
        for launch in every_kernel(tunable, shape.heads, step_shape(shape, dtype))
    ]


def compile_all(shape: Shape, dtypes: Sequence[torch.dtype], ops: Sequence[str], jobs: int) -> None:
    """In so many processes, each its share once. Raises ConfigError if one of them dies."""
    context = get_context("spawn")  # a process that has a CUDA context cannot fork
    try:
        with ProcessPoolExecutor(jobs, mp_context=context) as pool:
            for done in [pool.submit(compile_share, shape, dtypes, ops, share, jobs) for share in range(jobs)]:
                done.result()
    except BrokenProcessPool as error:
        raise ConfigError(f"a process that compiles kernels died; jobs is {jobs}, fewer need less memory") from error


def compile_share(shape: Shape, dtypes: Sequence[torch.dtype], ops: Sequence[str], share: int, jobs: int) -> None:
    """Every ``jobs``-th of `launches`, from ``share`` on."""
    made = cache(lambda dtype: workload(shape, 2, dtype, layers=1))
    for dtype, tunable, launch in launches(shape, dtypes, named(ops))[share::jobs]:
        w = made(dtype)
        call, _ = launched(tunable, launch, step_shape(shape, dtype)).make(w)
        try:
            call(w.layers[0])
        except TritonError:  # whoever checks the launch before measuring it names it
            continue
