"""The adapter: our arguments become FlashInfer's, through a fake that computes with our torch ops."""

import functools
import inspect
from dataclasses import replace

import pytest
import torch

from statewise.cache.window import advance, ring_rows
from statewise.errors import ArgumentError, BackendError
from statewise.integrations.flashinfer import build, warm_up
from statewise.integrations.flashinfer_steps import Steps, choose
from statewise.ops import checkpointed_step, state_step
from statewise.ops.backend import resolve
from tests.integrations import fake_flashinfer
from tests.integrations.test_resolve import MIXER, NEEDS

CPU = torch.device("cpu")
H, P, N, G = MIXER.heads, MIXER.head_dim, MIXER.state_size, MIXER.groups


@pytest.fixture
def calls(monkeypatch):
    return fake_flashinfer.install(monkeypatch)


class Pool:
    """A pool of six slots at different phases, dead rows huge, and a step's inputs as projections leave them."""

    def __init__(self, window, tokens=1, slots=6, state_dtype=torch.float32, seed=0):
        self.g = torch.Generator().manual_seed(seed)
        self.window, self.tokens, rows = window, tokens, ring_rows(window, tokens)
        self.state = self.normal(slots, H, P, N).to(state_dtype)
        ring = {"x_ring": (slots, H, rows, P), "B_ring": (slots, G, rows, N), "dt_ring": (slots, H, rows)}
        self.rings = {name: torch.full(shape, 1e30).bfloat16() for name, shape in ring.items()}
        self.rings["dt_ring"] = self.rings["dt_ring"].float()
        self.start = torch.arange(slots, dtype=torch.int32) % max(rows, 1)
        self.pending = torch.zeros(slots, dtype=torch.int32)
        self.A, self.D = -torch.rand(H, generator=self.g) - 0.1, self.normal(H)
        self.dt_bias = self.normal(H) - 2

    def normal(self, *shape):
        return torch.randn(*shape, generator=self.g)

    def inputs(self, batch):
        """x, dt, B, C and z: views of rows that hold them side by side."""
        widths = [H * P, G * N, G * N, H * P, H]
        row = self.normal(batch, self.tokens, sum(widths)).bfloat16()
        x, B, C, z, dt = row.split(widths, -1)
        return *(t.unflatten(-1, (-1, k)) for t, k in ((x, P), (B, N), (C, N), (z, P))), dt

    def step(self, run, inputs, slots, options):
        x, B, C, z, dt = inputs
        given = {"D": self.D, "dt_bias": self.dt_bias, "z": z}
        given = {name: value for name, value in given.items() if name in options}
        trackers = {"ring_start": self.start, "pending": self.pending}
        sizes = {"window": self.window, "read_slots": slots}
        return run(x, dt, self.A, B, C, self.state, **self.rings, **trackers, **sizes, **given)

    def advance(self, slots):
        own = slots[slots >= 0].long()
        rows = ring_rows(self.window, self.tokens)
        moved = advance(self.start[own], self.pending[own], self.tokens, self.tokens, self.window, rows)
        self.start[own], self.pending[own] = moved

    def same(self, other):
        torch.testing.assert_close(self.state, other.state, rtol=0, atol=0)
        for name, ring in self.rings.items():
            torch.testing.assert_close(ring, other.rings[name], rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
@pytest.mark.parametrize("options", [("D", "dt_bias", "z"), ("D",), ("dt_bias",), ()])
@pytest.mark.parametrize(("window", "tokens"), [(1, 1), (3, 1), (16, 1), (6, 3)])
def test_steps_equal_the_torch_backend(calls, window, tokens, options, index):
    """Twenty steps with flushes, slots joining at different times, and a pad."""
    mine, theirs, steps = Pool(window, tokens), Pool(window, tokens), Steps(max_batch=6)
    joined = [[4], [4, -1, 1], [0, 4, -1, 1], [1, 0, 4, -1, 5, 3]]
    for t in range(20):
        slots = torch.tensor(joined[min(t // 3, 3)], dtype=index)
        inputs = mine.inputs(len(slots))
        y = mine.step(steps.checkpointed_step, inputs, slots, options)
        expected = theirs.step(checkpointed_step, inputs, slots, options)
        torch.testing.assert_close(y, expected, rtol=0, atol=0)
        assert (y[slots < 0] == 0).all()
        mine.same(theirs)
        mine.advance(slots)
        theirs.advance(slots)
    assert all(call[1]["state"] is mine.state for call in calls if call[0] != "allocate_checkpointing_ssu_scratch")


def test_the_plain_step_keeps_the_weights_and_widens_dt(calls):
    pool, steps = Pool(1), Steps(max_batch=4)
    x, B, C, _, dt = (t[:, 0] for t in pool.inputs(2))
    state, slots = pool.state.clone(), torch.tensor([3, 0])
    args = (x, dt, pool.A, B, C)
    y = steps.state_step(*args, pool.state, read_slots=slots, D=pool.D, dt_bias=pool.dt_bias)
    expected = state_step(*args, state, read_slots=slots, D=pool.D, dt_bias=pool.dt_bias)
    torch.testing.assert_close(y, expected, rtol=0, atol=0)
    [(_, given)] = calls
    assert given["D"].dtype == given["dt_bias"].dtype == given["dt"].dtype == torch.float32
    assert given["D"].data_ptr() == pool.D.data_ptr()


def test_the_plain_step_reads_one_slot_and_writes_another(calls):
    """A pad in either is one in both: FlashInfer would write outside of the pool."""
    pool, steps = Pool(1), Steps(max_batch=4)
    x, B, C, _, dt = (t[:, 0] for t in pool.inputs(4))
    state, read, write = pool.state.clone(), torch.tensor([0, 2, -1, 3]), torch.tensor([1, 5, 4, -1], dtype=torch.int32)
    slots = {"read_slots": read, "write_slots": write}
    y = steps.state_step(x, dt, pool.A, B, C, pool.state, **slots)
    torch.testing.assert_close(y, state_step(x, dt, pool.A, B, C, state, **slots), rtol=0, atol=0)
    torch.testing.assert_close(pool.state, state, rtol=0, atol=0)
    assert not (state == Pool(1).state).all()


def test_inputs_and_weights_are_views(calls):
    pool = Pool(4)
    inputs, slots = pool.inputs(2), torch.tensor([3, 0])
    pool.step(Steps(max_batch=2).checkpointed_step, inputs, slots, ("D", "dt_bias", "z"))
    [(_, given)] = calls
    x, B, C, z, dt = inputs
    mine = {"x": x, "B": B, "C": C, "z": z, "dt": dt, "A": pool.A, "D": pool.D, "dt_bias": pool.dt_bias}
    mine |= {"state_batch_indices": slots, "ring_start": pool.start, "prev_num_accepted_tokens": pool.pending}
    assert {name: given[name].data_ptr() for name in mine} == {name: t.data_ptr() for name, t in mine.items()}


def test_the_scratch_is_allocated_once_for_the_largest_batch(calls):
    pool, steps = Pool(4), Steps(max_batch=5)
    run = functools.partial(steps.checkpointed_step, algorithm="two-kernel")
    for batch in (2, 5, 3):
        pool.step(run, pool.inputs(batch), torch.arange(batch), ())
    allocated = [given for name, given in calls if name == "allocate_checkpointing_ssu_scratch"]
    assert [given["batch_size"] for given in allocated] == [5]
    used = {given["cb_old"].data_ptr() for name, given in calls if name == "checkpointing_ssu"}
    assert len(used) == 1
    with pytest.raises(ArgumentError, match="6 rows, but the largest batch was said to be 5"):
        pool.step(run, pool.inputs(6), torch.arange(6), ())


def test_the_form_is_that_which_was_faster():
    float32 = [choose(batch * 128, 4) for batch in (1, 2, 4, 8, 16, 32, 256)]
    bfloat16 = [choose(batch * 128, 2) for batch in (1, 4, 8, 16, 32, 256)]
    one, two = "monolith", "two-kernel"
    assert float32 == [one, one, two, two, two, one, one]
    assert bfloat16 == [one, one, one, two, one, one]


@pytest.mark.parametrize("window", [1, 16])
def test_warming_up_allocates_and_touches_nothing_of_the_callers(calls, window):
    steps = Steps(max_batch=8)
    warm_up(steps, replace(NEEDS, checkpoint_interval=window), CPU)
    names = [name for name, _ in calls]
    if window == 1:
        assert set(names) == {"selective_state_update"}
        return
    assert sorted(names) == ["allocate_checkpointing_ssu_scratch", "checkpointing_ssu", "checkpointing_ssu"]
    assert [given["algorithm"] for name, given in calls if "algorithm" in given] == ["monolith", "two-kernel"]
    assert next(given["batch_size"] for name, given in calls if "batch_size" in given) == 8


@pytest.mark.parametrize(
    "problem", [RuntimeError("Could not find nvcc\nand more"), FileNotFoundError(2, "Could not find nvcc")]
)
def test_kernels_that_do_not_compile_are_told_in_a_line(calls, monkeypatch, problem):
    steps = Steps(max_batch=8)

    def fails(**_):
        raise problem

    monkeypatch.setattr(steps, "_checkpointed", fails)
    with pytest.raises(
        BackendError, match=r"'flashinfer' cannot run here: .*Could not find nvcc \(FLASH.*; triton; "
    ) as e:
        warm_up(steps, NEEDS, CPU)
    assert "\n" not in str(e.value)


def test_memory_that_runs_out_in_warming_up_is_no_matter_of_the_backend(calls, monkeypatch):
    steps = Steps(max_batch=8)

    def fails(**_):
        raise torch.OutOfMemoryError

    monkeypatch.setattr(steps, "_checkpointed", fails)
    with pytest.raises(torch.OutOfMemoryError):
        warm_up(steps, NEEDS, CPU)


def test_the_ops_that_are_built_share_one_scratch(calls):
    built = build(resolve("torch", CPU)[0], NEEDS, CPU)
    built.warm_up()
    assert built.name == "flashinfer"
    assert built.gated_rms_norm.keywords == {"backend": "torch"}
    made = [name for name, _ in calls].count("allocate_checkpointing_ssu_scratch")
    pool = Pool(16)
    y = pool.step(built.checkpointed_step, pool.inputs(2), torch.tensor([0, 1]), ())
    assert y.isfinite().all()
    assert (made, [name for name, _ in calls].count("allocate_checkpointing_ssu_scratch")) == (1, 1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dt_limit": (0.0, 1.0)}, r"dt_limit is \(0.0, 1.0\), the flashinfer backend does not clamp dt"),
        ({"write_slots": torch.tensor([2, 3])}, "the flashinfer backend writes the slots that it reads"),
        ({"rand_seed": torch.tensor([1])}, "rand_seed is given, the flashinfer backend rounds to nearest"),
        ({"window": 2}, r"R = 5 ring rows, flashinfer expects W \+ T = 3"),
        ({"D": torch.ones(H), "dt_bias": torch.ones(H).half()}, "D is torch.float32 and dt_bias torch.float16"),
        ({"z": torch.ones(2, H * P + 1).bfloat16()[:, None, 1:].unflatten(-1, (H, P))}, "z has strides"),
    ],
)
def test_what_the_step_refuses(calls, changes, message):
    pool, steps = Pool(4), Steps(max_batch=2)
    with pytest.raises(ArgumentError, match=f"checkpointed_step: {message}"):
        pool.step(lambda *a, **k: steps.checkpointed_step(*a, **(k | changes)), pool.inputs(2), torch.arange(2), ())
    assert calls == []


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_other_activations_are_refused(calls, dtype):
    """FlashInfer takes float16 without an error and reads it as bfloat16."""
    pool = Pool(4)
    inputs = [t.to(dtype) for t in pool.inputs(2)]
    with pytest.raises(ArgumentError, match=f"x is {dtype}, the flashinfer backend takes torch.bfloat16"):
        pool.step(Steps(2).checkpointed_step, inputs, torch.arange(2), ())
    assert calls == []


@pytest.mark.parametrize("op", [checkpointed_step, state_step])
def test_the_steps_take_what_our_ops_take(op):
    ours, theirs = (set(inspect.signature(f).parameters) for f in (op, getattr(Steps, op.__name__)))
    assert ours - {"backend"} == theirs - {"self", "out", "algorithm"}


@pytest.mark.parametrize("window", [1, 4])
def test_a_batch_of_none(calls, window):
    pool = Pool(window)
    y = pool.step(Steps(2).checkpointed_step, pool.inputs(0), torch.zeros(0, dtype=torch.int64), ())
    assert y.shape == (0, 1, H, P)
    assert calls == []
