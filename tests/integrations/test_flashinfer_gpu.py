"""FlashInfer itself against a float64 recurrence, at the shape of Nemotron-H 8B. Compiles for minutes when first run.

It multiplies in bfloat16 whatever the state is, so it is held to a bound of its own and not to that of our kernels.
"""

import importlib.util
from dataclasses import replace

import pytest
import torch

from statewise.cache.window import ring_rows
from statewise.integrations.flashinfer import defect, obstacle, warm_up
from statewise.integrations.flashinfer_steps import Steps
from statewise.ops import advance_trackers, checkpointed_step, state_step
from statewise.ops.backend import resolve
from tests.integrations.test_resolve import MIXER, NEEDS

HAS_GPU = torch.cuda.is_available()
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not HAS_GPU, reason="needs a CUDA device"),
    pytest.mark.skipif(importlib.util.find_spec("flashinfer") is None, reason="FlashInfer is not installed"),
    pytest.mark.filterwarnings("ignore"),  # of its import
]
H, P, N, G, SLOTS = 128, 64, 128, 8, 12
CUDA = torch.device("cuda")
SHAPE = replace(NEEDS, mamba=replace(MIXER, heads=H, groups=G), max_batch=SLOTS)
STATES = pytest.mark.parametrize("state_dtype", [torch.float32, torch.float16, torch.bfloat16])
# Who runs at a step: slots join and leave, so that they are at different phases of their rings; -1 is a pad.
TRAFFIC = [[4], [4, -1, 7], [0, 4, -1, 7, 2], [7, 0, 9, 4, -1, 5, 2, 11], [9, 7, -1, -1, 5, 0]]


def error(y, exact):
    return float((y.double() - exact).norm() / exact.norm())


class Pool:
    """State and rings of all slots, NaN where free, ``dead`` in ring rows, and the states of a float64 recurrence."""

    def __init__(self, window, state_dtype, dead=1e30, seed=0):
        self.g, self.window, rows = torch.Generator("cuda").manual_seed(seed), window, ring_rows(window)
        self.state = self.normal(SLOTS, H, P, N).to(state_dtype)
        self.exact = self.state.double()
        used = {slot for slots in TRAFFIC for slot in slots}
        self.free = [slot for slot in range(SLOTS) if slot not in used]
        self.state[self.free] = torch.nan
        shapes = {"x_ring": (SLOTS, H, rows, P), "B_ring": (SLOTS, G, rows, N), "dt_ring": (SLOTS, H, rows)}
        self.rings = {name: torch.full(shape, dead, device=CUDA).bfloat16() for name, shape in shapes.items()}
        self.rings["dt_ring"] = self.rings["dt_ring"].float()
        trackers = {"ring_start": torch.arange(SLOTS) % max(rows, 1), "pending": torch.zeros(SLOTS)}
        self.trackers = {name: values.int().to(CUDA) for name, values in trackers.items()}
        self.A, self.D = -torch.rand(H, generator=self.g, device=CUDA) * 4 - 0.5, self.normal(H)
        self.dt_bias = self.normal(H) - 3

    def normal(self, *shape):
        return torch.randn(*shape, generator=self.g, device=CUDA)

    def inputs(self, batch):
        """x, dt, B, C, z of one token, as views of wider rows."""
        widths = [H * P, G * N, G * N, H * P, H]
        x, B, C, z, dt = self.normal(batch, 1, sum(widths)).bfloat16().split(widths, -1)
        return x.unflatten(-1, (H, P)), dt, B.unflatten(-1, (G, N)), C.unflatten(-1, (G, N)), z.unflatten(-1, (H, P))

    def step(self, run, inputs, slots, **given):
        x, dt, B, C, z = inputs
        given |= {"D": self.D, "dt_bias": self.dt_bias, "z": z, "window": self.window, "read_slots": slots}
        return run(x, dt, self.A, B, C, self.state, **self.rings, **self.trackers, **given)

    def recur(self, inputs, slots):
        """One step of the float64 recurrence, the same numbers."""
        x, dt, B, C, z = (t[:, 0].double() for t in inputs)
        A, D, dt_bias = (t.double() for t in (self.A, self.D, self.dt_bias))
        return state_step(x, dt, A, B, C, self.exact, read_slots=slots, D=D, dt_bias=dt_bias, z=z)[:, None]

    def advance(self, slots):
        rows = ring_rows(self.window)
        sizes = {"tokens": 1, "accepted": 1, "window": self.window, "ring_rows": rows}
        advance_trackers(*self.trackers.values(), slots, **sizes, backend="triton")


@STATES
@pytest.mark.parametrize("algorithm", ["monolith", "two-kernel", None])
def test_eighty_steps_beside_float64(state_dtype, algorithm):
    dead = torch.nan if algorithm == "two-kernel" else 1e30
    mine, theirs = Pool(16, state_dtype, dead), Pool(16, state_dtype, dead)
    steps, errors, flushed = Steps(max_batch=SLOTS), [], 0
    for t in range(80):
        slots = torch.tensor(TRAFFIC[t // 16], dtype=torch.int32, device=CUDA)
        inputs, live = mine.inputs(len(slots)), slots[slots >= 0].long()
        flushed += int((mine.trackers["pending"][live] == 16).sum())
        y = mine.step(steps.checkpointed_step, inputs, slots, algorithm=algorithm)
        theirs.step(checkpointed_step, inputs, slots)
        exact = mine.recur(inputs, slots)
        assert (y[slots < 0] == 0).all()
        errors.append(error(y, exact))
        for name in ("x_ring", "B_ring"):
            torch.testing.assert_close(mine.rings[name], theirs.rings[name], rtol=0, atol=0, equal_nan=True)
        for pool in (mine, theirs):
            pool.advance(slots)
    print(f"{state_dtype} {algorithm}: worst relative error {max(errors):.1e}, {flushed} flushes")
    assert flushed >= 8
    assert all(each < 1e-2 for each in errors)  # NaN never passes
    torch.testing.assert_close(mine.rings["dt_ring"], theirs.rings["dt_ring"], rtol=1e-4, atol=1e-6, equal_nan=True)
    used = [slot for slot in range(SLOTS) if slot not in mine.free]
    assert error(mine.state[used], theirs.state[used].double()) < 1e-2
    assert mine.state[mine.free].isnan().all()


@STATES
def test_forty_plain_steps_beside_float64(state_dtype):
    """Rounded at each step, in whatever backend: at most twice the error of the torch op."""
    mine, theirs, steps = Pool(1, state_dtype), Pool(1, state_dtype), Steps(max_batch=SLOTS)
    for t in range(40):
        slots = torch.tensor(TRAFFIC[t // 8], dtype=torch.int32, device=CUDA)
        inputs = mine.inputs(len(slots))
        y, other = mine.step(steps.checkpointed_step, inputs, slots), theirs.step(checkpointed_step, inputs, slots)
        exact = mine.recur(inputs, slots)
        assert (y[slots < 0] == 0).all()
        assert error(y, exact) <= 2 * error(other, exact) + 1e-3
    assert mine.state[mine.free].isnan().all()


def test_the_plain_step_reads_one_slot_and_writes_another():
    mine, theirs, steps = Pool(1, torch.float32), Pool(1, torch.float32), Steps(max_batch=SLOTS)
    read = torch.tensor([0, 2, -1, 4], dtype=torch.int32, device=CUDA)
    write = torch.tensor([9, 5, 7, -1], dtype=torch.int32, device=CUDA)
    inputs = mine.inputs(4)
    y = mine.step(steps.checkpointed_step, inputs, read, write_slots=write)
    expected = theirs.step(checkpointed_step, inputs, read, write_slots=write)
    torch.testing.assert_close(y, expected, rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(mine.state, theirs.state, rtol=1e-4, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize("algorithm", ["monolith", "two-kernel"])
def test_a_cuda_graph_gives_the_eager_steps(algorithm):
    """Twenty replays of step and tracker advance, with inputs that change in place, bit for bit."""
    eager, captured, steps = Pool(16, torch.float32), Pool(16, torch.float32), Steps(max_batch=SLOTS)
    warm_up(steps, SHAPE, CUDA, index=torch.int32)
    slots = torch.tensor(TRAFFIC[3], dtype=torch.int32, device=CUDA)
    static = captured.inputs(len(slots))
    captured.advance(torch.tensor([-1], dtype=torch.int32, device=CUDA))  # compiles, moves nothing
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = captured.step(steps.checkpointed_step, static, slots, algorithm=algorithm)
        captured.advance(slots)
    for _ in range(20):
        inputs = eager.inputs(len(slots))
        for mine, new in zip(static, inputs, strict=True):
            mine.copy_(new)
        graph.replay()
        expected = eager.step(steps.checkpointed_step, inputs, slots, algorithm=algorithm)
        eager.advance(slots)
        assert torch.equal(y, expected)
    used = [slot for slot in range(SLOTS) if slot not in eager.free]
    assert torch.equal(captured.state[used], eager.state[used])


def test_the_installed_flashinfer_is_taken():
    assert obstacle(SHAPE) is None
    assert defect() is None
    ops, reason = resolve("flashinfer", CUDA, SHAPE)
    assert ops.name == "flashinfer"
    assert "runs the decode step (compiled for minutes" in reason
