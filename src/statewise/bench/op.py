"""Times the decode step: ours and the peers', interleaved in one process, each in a CUDA graph over many layers.

A contender is checked against the float64 reference on this GPU first, and left out, by name, if it is wrong.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from statewise.bench.contenders import Call, Contender, in_double, step_arguments
from statewise.bench.workload import Layer, Shape, Workload
from statewise.errors import BackendError
from statewise.ops import checkpointed_step

# Peers multiply in bfloat16 in places; a wrong kernel is off by far more.
WRONG = 0.03
REPLAYS = 48  # of a graph, timed


@dataclass(frozen=True)
class Row:
    """Microseconds a layer at one batch size and state dtype."""

    batch: int
    state_dtype: str
    floor: float
    times: dict[str, float]


def error(contender: Contender, shape: Shape, state_dtype: torch.dtype, batch: int) -> float:
    """Relative error of one step's outputs against float64; one row flushes, and with W rows one is at each phase."""
    w = Workload(shape, batch, state_dtype, layers=1)
    if not contender.shares_rings:  # its own are taken for empty, so the exact step is the plain one
        w.pending.fill_(1)
    call, _ = contender.make(w)
    d = w.layers[0]

    arguments = step_arguments(d, w)
    if contender.kind == "plain" or not contender.shares_rings:
        arguments["window"] = 1
    exact = checkpointed_step(**in_double(arguments))[:, 0]
    return float((call(d).double().cpu() - exact).norm() / exact.norm())


def check(
    found: list[Contender],
    error_of: Callable[[Contender, int], float],
    batches: Sequence[int],
    say: Callable[[str], None],
) -> list[Contender]:
    """Those that run here and are right, at all of some batches. ``say`` is told of every other one, with the reason.

    Raises BackendError if one of ours is not among them: nothing is reported of an op that is wrong here.
    """
    good = []
    for contender in found:
        try:
            wrong_by = max(error_of(contender, batch) for batch in batches)
        except Exception as problem:  # peers assert, and Triton's errors are of no other kind
            line = (str(problem).splitlines() or [repr(problem)])[0][:120]
            say(f"left out: {contender.name} does not run here: {line}")
            continue
        if wrong_by < WRONG:
            good.append(contender)
        else:
            say(f"left out: {contender.name} is wrong here, relative error {wrong_by:.1e} against float64")
    broken = [contender.name for contender in found if contender.ours and contender not in good]
    if broken:
        raise BackendError(f"{', '.join(broken)}: wrong or not able to run on this GPU, so nothing is reported")
    return good


def measure(found: list[Contender], w: Workload, floor: float, replays: int = REPLAYS) -> Row:
    """Median microseconds a layer of every contender. floor: the fewest that there can be."""
    made = {contender.name: contender.make(w) for contender in found}
    graphs = {name: capture(partial(_over, w.layers, call)) for name, (call, _) in made.items()}
    advances = [w.advance, *(advance for _, advance in made.values() if advance)]
    ahead = next(iter(graphs.values()))
    times: dict[str, list[float]] = {name: [] for name in graphs}
    for replay in range(replays + 8):
        ahead.replay()  # untimed: the GPU is busy while the host launches the first that is timed
        events = {name: timed(graph) for name, graph in graphs.items()}
        for advance in advances:
            advance()
        torch.cuda.synchronize()
        if replay >= 8:
            for name, (begin, end) in events.items():
                times[name].append(begin.elapsed_time(end) * 1e3 / len(w.layers))
    # A mean over W steps holds one flush a slot; the median is taken over such rounds.
    rounds = {name: _rounds(values, w.shape.window) for name, values in times.items()}
    medians = {name: statistics.median(values) for name, values in rounds.items()}
    return Row(w.batch, str(w.state_dtype).removeprefix("torch."), floor, medians)


def _over(layers: list[Layer], call: Call) -> list[Tensor]:
    return [call(layer) for layer in layers]  # all at once, so that no two layers share the memory of an output


def _rounds(values: list[float], window: int) -> list[float]:
    return [statistics.fmean(values[i : i + window]) for i in range(0, len(values), window)]


def timed(graph: torch.cuda.CUDAGraph) -> tuple[torch.cuda.Event, torch.cuda.Event]:
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    graph.replay()
    end.record()
    return begin, end


def capture(step: Callable[[], object]) -> torch.cuda.CUDAGraph:
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph
