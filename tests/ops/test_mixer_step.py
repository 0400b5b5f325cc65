"""A mixer's step: the kernels against the three ops in float64, over steps, some of which flush; dead memory is NaN."""

import importlib
from dataclasses import replace

import pytest
import torch

from statewise.errors import ArgumentError
from statewise.ops import advance_trackers, mixer_step
from statewise.ops.mixer_step.scratch import Scratch
from tests.ops.kernels import ACTIVATIONS, DEVICE, HAS_GPU, STATES, assert_as_good
from tests.strategies import Dims

NAN = float("nan")
CPU = torch.device("cpu")
# (heads, head_dim, groups, state_size), window, width
SMALL = [
    (Dims(4, 32, 2, 16), 4, 4),
    (Dims(3, 24, 1, 20), 16, 3),
    (Dims(6, 16, 3, 16), 2, 2),
    (Dims(2, 16, 1, 16), 1, 4),
]
LARGE = [
    (Dims(128, 64, 8, 128), 16, 4),
    (Dims(128, 64, 1, 128), 16, 4),
    (Dims(128, 80, 8, 128), 8, 4),
    (Dims(32, 96, 2, 96), 3, 4),
    (Dims(24, 128, 1, 256), 32, 4),
    (Dims(64, 32, 4, 16), 64, 4),
    (Dims(128, 64, 8, 128), 1, 4),
]
SHAPES = SMALL + LARGE if HAS_GPU else SMALL
LIMIT = (0.001, 5.0)


class Case:
    """A layer's caches with slots at every phase, and the inputs of some steps, as float64 numbers of these dtypes."""

    def __init__(self, d: Dims, window, width, batch, activation, state, options=True, forked=False, seed=0):
        self.d, self.window, self.activation = d, window, activation
        g = torch.Generator().manual_seed(seed)
        wide = lambda *shape: torch.randn(*shape, generator=g, dtype=torch.float64)  # noqa: E731
        inner, rows, slots = d.heads * d.head_dim, 0 if window == 1 else window + 1, 2 * batch + 1
        channels = inner + 2 * d.groups * d.state_size
        order = torch.randperm(slots, generator=g).to(torch.int32)
        self.own = order[:batch]
        self.read = order[batch : 2 * batch].clone() if forked else self.own
        self.own[batch // 2] = -1
        live_slots = torch.cat([self.own, self.read]).long()
        live_slots = live_slots[live_slots >= 0]
        self.pool = {
            "state": torch.full((slots, d.heads, d.head_dim, d.state_size), NAN, dtype=state),
            "conv_window": torch.full((slots, width - 1, channels), NAN, dtype=activation).mT,
            "x_ring": torch.full((slots, d.heads, rows, d.head_dim), NAN, dtype=activation),
            "B_ring": torch.full((slots, d.groups, rows, d.state_size), NAN, dtype=activation),
            "dt_ring": torch.full((slots, d.heads, rows), NAN, dtype=torch.float32),
            "ring_start": torch.zeros(slots, dtype=torch.int32),
            "pending": torch.zeros(slots, dtype=torch.int32),
        }
        for s in live_slots.tolist():
            self.pool["state"][s] = wide(d.heads, d.head_dim, d.state_size).to(state)
            self.pool["conv_window"][s] = wide(channels, width - 1).to(activation)
            if window == 1:
                continue
            start, live = (5 * s) % rows, [window, 0, window - 1, 1, window // 2][s % 5]
            place = (start + torch.arange(live)) % rows
            self.pool["ring_start"][s], self.pool["pending"][s] = start, live
            self.pool["x_ring"][s, :, place] = wide(d.heads, live, d.head_dim).to(activation)
            self.pool["B_ring"][s, :, place] = wide(d.groups, live, d.state_size).to(activation)
            self.pool["dt_ring"][s, :, place] = torch.rand(d.heads, live, generator=g) / 4
        self.steps = 3
        self.projected = wide(self.steps, batch, inner + channels + d.heads).to(activation)
        self.weights = {
            "conv_weight": wide(channels, width).to(activation) / 2,
            "A": -torch.rand(d.heads, generator=g) - 0.1,
        }
        if options:
            self.weights |= {
                "conv_bias": wide(channels).to(activation),
                "D": wide(d.heads).float(),
                "dt_bias": wide(d.heads).float() - 2,
                "norm_weight": wide(inner).to(activation),
            }
        self.options = {"dt_limit": LIMIT, "eps": 1e-5, "group_size": inner // d.groups} if options else {}

    def run(self, backend, dtype=None, device=DEVICE, **options):
        """Some steps. dtype float64: the same numbers, exactly. Returns the outputs and the pool, on the CPU."""

        def place(t):
            return (t.to(dtype) if dtype and t.is_floating_point() else t.clone()).to(device)

        pool = {k: place(v) for k, v in self.pool.items()}
        weights = {k: place(v) for k, v in self.weights.items()}
        own, read = place(self.own), place(self.read)
        inner, outputs = self.d.heads * self.d.head_dim, []
        for projected in place(self.projected):
            z, xBC, dt = projected.split([inner, self.projected.shape[2] - inner - self.d.heads, self.d.heads], 1)
            has_flushed = pool["pending"][own.clamp(min=0)] + 1 > self.window
            y = mixer_step(
                xBC, dt, z, **pool, **weights, **self.options, **options, window=self.window,
                read_slots=read, write_slots=own, backend=backend,
            )  # fmt: skip
            outputs.append(y.to("cpu", copy=True))
            if self.window > 1:
                trackers = (pool["ring_start"], pool["pending"], own)
                advance_trackers(*trackers, tokens=1, accepted=1, window=self.window, ring_rows=self.window + 1)
            # A row reads its own checkpoint once it has written one; a pad stays one.
            read = torch.where(has_flushed & (read >= 0), own, read) if self.read is not self.own else own
        return torch.stack(outputs), {k: v.cpu() for k, v in pool.items()}


@pytest.fixture(params=["fused", "append"])
def launched(request, monkeypatch):
    """Both ways to launch it with a ring: convolution, step, norm; and append, output, norm."""
    mixer = importlib.import_module("statewise.ops.mixer_step.triton")
    step = importlib.import_module("statewise.ops.checkpointed_step.triton")
    fused = request.param == "fused"
    for module in (mixer, step):
        chosen = module.launch_parameters
        monkeypatch.setattr(module, "launch_parameters", lambda *a, chosen=chosen: replace(chosen(*a), fused=fused))


def check(case: Case, **options):
    exact, exact_pool = case.run("torch", torch.float64, CPU)
    torch_y, torch_pool = case.run("torch", None, CPU)
    y, pool = case.run("triton", **options)
    live = case.own >= 0
    assert y.dtype == case.activation
    assert_as_good(y[:, live], torch_y[:, live], exact[:, live])
    own = case.own[live].long()
    for name in ("state", "conv_window"):
        assert_as_good(pool[name][own], torch_pool[name][own], exact_pool[name][own])
    rest = [s for s in range(len(pool["pending"])) if s not in own.tolist()]
    for name, before in case.pool.items():
        torch.testing.assert_close(pool[name][rest], before[rest], rtol=0, atol=0, equal_nan=True)
    near = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}[case.activation]
    for name in ("x_ring", "B_ring"):
        torch.testing.assert_close(pool[name], torch_pool[name], rtol=near, atol=near, equal_nan=True)
    torch.testing.assert_close(pool["dt_ring"], torch_pool["dt_ring"], rtol=1e-6, atol=1e-7, equal_nan=True)


@pytest.mark.parametrize("state", STATES, ids=str)
@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
@pytest.mark.parametrize(("dims", "window", "width"), SHAPES, ids=str)
def test_the_kernels_are_as_good_as_the_torch_ops(launched, dims, window, width, activation, state):
    if not HAS_GPU and dims != SMALL[2][0] and activation != state:
        pytest.skip("one shape in mixed dtypes is enough in the interpreter")
    check(Case(dims, window, width, 13 if HAS_GPU else 2, activation, state), prefetch=HAS_GPU)


def test_options_may_be_left_out(launched):
    check(Case(*SMALL[2], 3, torch.float32, torch.float32, options=False))


@pytest.mark.parametrize("shape", [SMALL[0], SMALL[3], *(LARGE if HAS_GPU else [])], ids=str)
def test_without_a_norm_the_second_kernel_gates(launched, shape):
    dims, window, width = shape
    case = Case(dims, window, width, 13 if HAS_GPU else 3, torch.float16, torch.float32)
    del case.weights["norm_weight"]
    case.options = {"dt_limit": LIMIT}
    check(case, prefetch=HAS_GPU)
    out = torch.full((case.own.shape[0], dims.heads * dims.head_dim), NAN, dtype=torch.float16, device=DEVICE)
    y = case.run("triton", out=out)[0]
    assert torch.equal(out.cpu(), y[-1])
    assert (y[:, case.own < 0] == 0).all()


@pytest.mark.parametrize("window", [1, 3])
def test_a_forked_request_owns_its_state_after_its_first_flush(launched, window):
    case = Case(Dims(2, 16, 1, 16), window, 3, 3, torch.float32, torch.float32, forked=True)
    case.pool["pending"].fill_(0 if window == 1 else window)
    if window > 1:
        for name in ("x_ring", "B_ring", "dt_ring"):
            case.pool[name] = case.pool[name].nan_to_num(0.25)
    check(case)


def test_forks_share_a_checkpoint_until_each_has_flushed(launched):
    """Three rows read one slot, which nobody writes; what their own held before is never read. Row 1 reads none."""
    window = 3
    case = Case(Dims(2, 16, 1, 16), window, 3, 5, torch.float32, torch.float32, forked=True)
    case.read[:] = case.read[0]
    case.read[1] = -1
    own = case.own[[0, 3, 4]].long()
    for name in ("state", "x_ring", "B_ring", "dt_ring"):
        case.pool[name][own] = NAN
    for slot, live in zip(own.tolist(), (3, 2, 1), strict=True):  # flushes at the first, second and third step
        place = (slot + torch.arange(live)) % (window + 1)
        case.pool["ring_start"][slot], case.pool["pending"][slot] = slot % (window + 1), live
        for i, name in enumerate(("x_ring", "B_ring", "dt_ring")):
            ring = case.pool[name]
            ring[slot, :, place] = torch.linspace(0.1, 0.5 + i, ring[slot, :, place].numel()).view_as(
                ring[slot, :, place]
            )
    check(case)
    y, pool = case.run("triton")
    assert (y[:, [1, 2]] == 0).all()
    assert pool["state"][own].isfinite().all()


def test_scratch_of_a_larger_batch_does(launched):
    case = Case(*SMALL[0], 2, torch.float32, torch.float32)
    d = case.d
    scratch = Scratch.allocate(5, d.heads, d.head_dim, d.groups, d.state_size, case.window, torch.float32, DEVICE)
    fresh = case.run("triton")[0].nan_to_num()
    assert torch.equal(fresh, case.run("triton", scratch=scratch)[0].nan_to_num())
    out = torch.empty(2, d.heads * d.head_dim, device=DEVICE)
    for backend in ("triton", "torch"):
        last = case.run(backend, scratch=scratch, out=out)[0][-1]
        assert torch.equal(out.cpu().nan_to_num(), last.nan_to_num())
    assert torch.equal(fresh, case.run("triton", scratch=scratch, out=out)[0].nan_to_num())


def test_what_does_not_fit_is_named():
    case = Case(*SMALL[0], 2, torch.float32, torch.float32)
    d = case.d
    small = Scratch.allocate(1, d.heads, d.head_dim, d.groups, d.state_size, case.window, torch.float32, DEVICE)
    with pytest.raises(ArgumentError, match="scratch is of 1 rows, expected at least 2"):
        case.run("triton", scratch=small)
    case.options["group_size"] = 7
    with pytest.raises(ArgumentError, match="group_size 7 does not divide 128 channels"):
        case.run("torch")
    case.projected = case.projected[..., 2:]
    with pytest.raises(ArgumentError, match="xBC has 190 channels, expected 128 of x and"):
        case.run("torch")


@pytest.mark.gpu
@pytest.mark.skipif(not HAS_GPU, reason="needs a CUDA device")
def test_a_graph_of_many_layers_replays_the_eager_steps(launched):
    """Layers in a row, prefetching: each must read nothing too early, and scratch must serve one after the other."""
    cases = [Case(*LARGE[0], 5, torch.bfloat16, torch.bfloat16, seed=seed) for seed in range(6)]
    eager = [case.run("triton", prefetch=True) for case in cases]
    place = lambda group: {k: v.to(DEVICE) for k, v in group.items()}  # noqa: E731
    pools, weights = [place(case.pool) for case in cases], [place(case.weights) for case in cases]
    d, window = cases[0].d, cases[0].window
    inputs = [case.projected[0].to(DEVICE) for case in cases]
    trackers = [(pool["ring_start"].clone(), pool["pending"].clone()) for pool in pools]
    own = [case.own.to(DEVICE) for case in cases]
    scratch = Scratch.allocate(5, d.heads, d.head_dim, d.groups, d.state_size, window, torch.bfloat16, DEVICE)
    inner, outputs = d.heads * d.head_dim, [None] * len(cases)

    def step():
        for i, case in enumerate(cases):
            z, xBC, dt = inputs[i].split([inner, inputs[i].shape[1] - inner - d.heads, d.heads], 1)
            outputs[i] = mixer_step(
                xBC, dt, z, **pools[i], **weights[i], **case.options, window=window, read_slots=own[i],
                scratch=scratch, prefetch=True, backend="triton",
            )  # fmt: skip

    saved = [{k: v.clone() for k, v in pool.items()} for pool in pools]
    step()
    torch.cuda.synchronize()
    for pool, before in zip(pools, saved, strict=True):
        for k, v in before.items():
            pool[k].copy_(v)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for t in range(cases[0].steps):
        for i, case in enumerate(cases):
            inputs[i].copy_(case.projected[t].to(DEVICE))
        graph.replay()
        for i, (_, pool) in enumerate(zip(trackers, pools, strict=True)):
            live = cases[i].own >= 0
            assert torch.equal(outputs[i].cpu()[live], eager[i][0][t][live]), f"layer {i}, step {t}"
            advance_trackers(
                pool["ring_start"], pool["pending"], own[i], tokens=1, accepted=1, window=window, ring_rows=window + 1
            )
