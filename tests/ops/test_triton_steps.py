"""The decode kernels against the float64 reference, in every dtype, at odd shapes, with dead memory full of NaN."""

from dataclasses import replace

import pytest
import torch

from statewise.errors import ArgumentError
from statewise.ops import checkpointed_step, state_step
from tests.ops.kernels import ACTIVATIONS, DEVICE, HAS_GPU, STATES, assert_as_good
from tests.strategies import Dims, Inputs, Options

NAN = float("nan")
ALL, NONE = Options(True, True, True, True), Options(False, False, False, False)
# (heads, head_dim, groups, state_size), window
SMALL = [
    (Dims(4, 32, 2, 16), 4),
    (Dims(2, 80, 1, 96), 16),
    (Dims(3, 24, 3, 20), 2),
    (Dims(2, 16, 2, 16), 64),
    (Dims(3, 5, 1, 6), 5),
]
LARGE = [
    (Dims(128, 64, 8, 128), 16),
    (Dims(48, 64, 1, 128), 16),
    (Dims(24, 80, 8, 128), 8),
    (Dims(32, 96, 2, 96), 3),
    (Dims(8, 128, 8, 256), 32),
    (Dims(64, 32, 4, 16), 64),
]
SHAPES = SMALL + LARGE if HAS_GPU else SMALL


class Case:
    """A pool with slots at every phase and one step's inputs, in float64 and in the dtypes under test."""

    def __init__(self, d: Dims, window: int, batch: int, present: Options, activation, state, seed=0):
        self.d, self.window, self.rows = d, window, window + 1
        g = torch.Generator().manual_seed(seed)
        slots = batch + 3
        self.order = torch.randperm(slots, generator=g)[:batch].to(torch.int32)
        self.order[batch // 2] = -1
        inputs = Inputs(d, (batch, 1), present, seed, torch.float64)
        wide = lambda *shape: torch.randn(*shape, generator=g, dtype=torch.float64)  # noqa: E731
        self.pool = {
            "state": wide(slots, d.heads, d.head_dim, d.state_size).to(state),
            "x_ring": torch.full((slots, d.heads, self.rows, d.head_dim), NAN, dtype=activation),
            "B_ring": torch.full((slots, d.groups, self.rows, d.state_size), NAN, dtype=activation),
            "dt_ring": torch.full((slots, d.heads, self.rows), NAN, dtype=torch.float32),
            "ring_start": torch.zeros(slots, dtype=torch.int32),
            "pending": torch.zeros(slots, dtype=torch.int32),
        }
        for s in range(slots):
            start, live = (5 * s) % self.rows, [window, 0, window - 1, 1, window // 2][s % 5]
            self.pool["ring_start"][s], self.pool["pending"][s] = start, live
            place = (start + torch.arange(live)) % self.rows
            self.pool["x_ring"][s, :, place] = wide(d.heads, live, d.head_dim).to(activation)
            self.pool["B_ring"][s, :, place] = wide(d.groups, live, d.state_size).to(activation)
            self.pool["dt_ring"][s, :, place] = torch.rand(d.heads, live, generator=g)
        free = [s for s in range(slots) if s not in self.order.tolist()]
        self.pool["state"][free] = NAN
        self.inputs = {name: getattr(inputs, name).to(activation) for name in ("x", "dt", "B", "C")}
        self.A = inputs.A.float()
        self.options = {k: v.to(activation) if k == "z" and v is not None else v for k, v in inputs.options.items()}
        for name in ("D", "dt_bias"):
            if self.options[name] is not None:
                self.options[name] = self.options[name].float()

    def run(self, backend, dtype=None, device=DEVICE, window=None, index=None):
        """One step. dtype float64: the same numbers, exactly. Returns the outputs and the pool after it, on the CPU."""

        def place(t):
            if not torch.is_tensor(t):
                return t
            return (t.to(dtype) if dtype and t.is_floating_point() else t.clone()).to(device)

        pool = {k: padded(place(v)) for k, v in self.pool.items()}
        index = torch.arange(len(self.order)) if index is None else index
        row = {k: place(strided(v[index])) for k, v in self.inputs.items()}
        options = {k: place(v[index] if k == "z" and v is not None else v) for k, v in self.options.items()}
        slots = place(torch.stack([self.order[index], torch.full_like(self.order[index], -1)], 1))[:, 0]
        args = (row["x"], row["dt"], place(self.A), row["B"], row["C"])
        if window == 1:
            gate = options["z"] if options["z"] is None else options["z"][:, 0]
            plain = (row["x"][:, 0], row["dt"][:, 0], place(self.A), row["B"][:, 0], row["C"][:, 0], pool["state"])
            y = state_step(*plain, read_slots=slots, **(options | {"z": gate}), backend=backend)[:, None]
        else:
            y = checkpointed_step(*args, **pool, window=self.window, read_slots=slots, **options, backend=backend)
        return y.cpu(), {k: v.cpu() for k, v in pool.items()}


def strided(t):
    """The same numbers as a slice of something wider, as they come out of a projection."""
    wide = torch.full((*t.shape[:-1], 2 * t.shape[-1] + 3), NAN, dtype=t.dtype)
    wide[..., 1 : 1 + t.shape[-1]] = t
    return wide[..., 1 : 1 + t.shape[-1]]


def padded(t):
    """The same numbers in pages with a gap of NaN between them, as a pool that aligns its pages has them."""
    if t.dim() == 1:
        return t
    page = t[0].numel()
    memory = torch.full((t.shape[0], page + 16), NAN, dtype=t.dtype, device=t.device)
    memory[:, :page] = t.flatten(1)
    return memory[:, :page].view(t.shape)


@pytest.fixture(params=["fused", "split"])
def launched(request, monkeypatch):
    """Both ways to launch the checkpointed step, whatever the batch."""
    from statewise.ops.checkpointed_step import triton as step

    chosen = step.launch_parameters
    fused = request.param == "fused"
    monkeypatch.setattr(step, "launch_parameters", lambda *a: replace(chosen(*a), fused=fused))


def check(case: Case, window=None):
    small = case.d.heads <= 4
    # At large sizes the loop takes minutes; the torch op in float64 agrees with it to 1e-10 (test_agreement).
    exact, exact_pool = case.run("reference" if small else "torch", torch.float64, torch.device("cpu"), window)
    torch_y, torch_pool = case.run("torch", None, torch.device("cpu"), window)
    y, pool = case.run("triton", None, DEVICE, window)
    assert (y[case.order < 0] == 0).all()
    assert_as_good(y, torch_y, exact)
    own = case.order[case.order >= 0].long()
    assert_as_good(pool["state"][own], torch_pool["state"][own], exact_pool["state"][own])
    rest = [s for s in range(len(pool["pending"])) if s not in own.tolist()]
    for name, before in case.pool.items():
        torch.testing.assert_close(pool[name][rest], before[rest], rtol=0, atol=0, equal_nan=True)
    for name in ("x_ring", "B_ring"):
        torch.testing.assert_close(pool[name], torch_pool[name], rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(pool["dt_ring"], torch_pool["dt_ring"], rtol=1e-6, atol=1e-7, equal_nan=True)
    for name in ("ring_start", "pending"):
        assert torch.equal(pool[name], case.pool[name]), "the op wrote a tracker"


@pytest.mark.parametrize("state", STATES, ids=str)
@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
@pytest.mark.parametrize(("dims", "window"), SHAPES, ids=str)
def test_checkpointed_step(launched, dims, window, activation, state):
    present = ALL if window % 2 == 0 else NONE
    check(Case(dims, window, 13 if HAS_GPU else 3, present, activation, state))


@pytest.mark.parametrize("state", STATES, ids=str)
@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
@pytest.mark.parametrize(("dims", "window"), SHAPES, ids=str)
def test_plain_step(dims, window, activation, state):
    present = ALL if window % 2 == 0 else NONE
    check(Case(dims, window, 13 if HAS_GPU else 3, present, activation, state), window=1)


@pytest.mark.parametrize("present", [Options(*(i == j for j in range(4))) for i in range(4)], ids=str)
def test_each_option_by_itself(present):
    check(Case(Dims(2, 16, 1, 16), 3, 3, present, torch.float32, torch.float32))
    check(Case(Dims(2, 16, 1, 16), 3, 3, present, torch.float32, torch.float32), window=1)


@pytest.mark.parametrize("ring", ["x_ring", "B_ring", "dt_ring"])
def test_a_ring_of_another_dtype_is_named(ring):
    case = Case(Dims(2, 16, 1, 16), 3, 3, ALL, torch.float32, torch.float32)
    case.pool[ring] = case.pool[ring].half()
    with pytest.raises(
        ArgumentError, match=r"x_ring, B_ring and dt_ring are .*torch.float16.*, the triton backend exp"
    ):
        case.run("triton")


def test_float32_is_exact_to_five_digits(launched):
    case = Case(*SHAPES[-1], 3, ALL, torch.float32, torch.float32)
    exact, exact_pool = case.run("torch", torch.float64, torch.device("cpu"))
    y, pool = case.run("triton")
    assert float((y - exact).norm() / exact.norm()) < 1e-5
    own = case.order[case.order >= 0].long()
    difference = pool["state"][own] - exact_pool["state"][own]
    assert float(difference.norm() / exact_pool["state"][own].norm()) < 1e-5


def test_repeated_launches_and_permuted_batches_give_the_same_bits(launched):
    case = Case(SMALL[0][0], SMALL[0][1], 4, ALL, torch.float32, torch.float32)
    first, pool = case.run("triton")
    for _ in range(4 if HAS_GPU else 1):
        again, pool_again = case.run("triton")
        assert torch.equal(first, again)
        assert torch.equal(pool["state"].nan_to_num(), pool_again["state"].nan_to_num())
    order = torch.tensor([2, 0, 3, 1])
    permuted, pool_permuted = case.run("triton", index=order)
    assert torch.equal(first[order], permuted)
    assert torch.equal(pool["state"].nan_to_num(), pool_permuted["state"].nan_to_num())
