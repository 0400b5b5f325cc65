"""The prefill kernels, scan and convolution, against float64: odd shapes, any lengths, pools; dead memory is NaN."""

import importlib
import itertools

import pytest
import torch

from statewise.errors import ArgumentError
from statewise.ops import causal_conv_prefill, ssd_prefill
from tests.ops.kernels import ACTIVATIONS, DEVICE, HAS_GPU, assert_as_good
from tests.strategies import Dims, Inputs, Options

NAN = float("nan")
ALL, NONE = Options(True, True, True, True), Options(False, False, False, False)
TWO_OPERANDS = 1e-5  # what two 16-bit operands leave of the error of a float32 final state

# heads, head_dim, groups, state_size; lengths; chunk_size
SMALL = [
    (Dims(2, 32, 1, 16), [5, 0, 33, 1], 16),
    (Dims(2, 80, 2, 24), [17, 3], 16),
    (Dims(3, 16, 1, 96), [40], 64),
    (Dims(4, 16, 2, 16), [50, 0, 16, 33], 16),
]
LARGE = [
    (Dims(128, 64, 8, 128), [1, 700, 0, 64, 65], None),
    (Dims(128, 64, 8, 128), [2000, 33, 128], 64),
    (Dims(128, 64, 8, 128), [8] * 20 + [200], None),
    (Dims(128, 64, 8, 128), [8] * 64, None),
    (Dims(16, 64, 1, 128), [30] * 9, None),
    (Dims(24, 80, 8, 128), [130, 63, 1000], 64),
    (Dims(32, 96, 2, 96), [300, 2, 129], 256),
    (Dims(8, 128, 1, 256), [400, 1], 64),
    (Dims(64, 32, 4, 16), [33, 3000], 32),
    (Dims(80, 64, 1, 64), [513] * 4, None),
    (Dims(4, 32, 2, 128), [40, 64, 130], 64),
    (Dims(4, 64, 2, 256), [40, 64, 130, 1], 64),
]
CASES = SMALL + LARGE if HAS_GPU else SMALL
WAYS = {"whole": None, "segments": 64 if HAS_GPU else 32}  # tokens a segment


@pytest.fixture(params=WAYS)
def way(request, monkeypatch):
    """The test runs with every sequence in one piece, and cut into segments."""
    module = importlib.import_module("statewise.ops.ssd_prefill.triton")
    monkeypatch.setattr(module, "segment_size", lambda length, programs, chunk, device: WAYS[request.param])


class Case:
    """A packed batch; every other sequence has no initial state, and NaN where it would be."""

    def __init__(self, d, lengths, present, dtype, seed=0):
        inputs = Inputs(d, (sum(lengths),), present, seed, torch.float64)
        g = torch.Generator().manual_seed(seed + 1)
        self.lengths = lengths
        self.cu_seqlens = torch.tensor([0, *lengths], dtype=torch.int32, device=DEVICE).cumsum(0, dtype=torch.int32)
        self.tokens = {name: getattr(inputs, name).to(DEVICE, dtype) for name in ("x", "dt", "B", "C")}
        self.A = inputs.A.float().to(DEVICE)
        self.options = {k: v.to(DEVICE) if torch.is_tensor(v) else v for k, v in inputs.options.items()}
        for name, kept in (("z", dtype), ("D", torch.float32), ("dt_bias", torch.float32)):
            if self.options[name] is not None:
                self.options[name] = self.options[name].to(kept)
        self.has = torch.arange(len(lengths), device=DEVICE) % 2 == 0
        initial = torch.randn(len(lengths), d.heads, d.head_dim, d.state_size, generator=g, dtype=torch.float64)
        self.initial = initial.float().to(DEVICE)
        self.initial[~self.has] = NAN

    def run(self, backend, wide=False, **kwargs):
        def cast(t):
            return t.double() if wide and torch.is_tensor(t) and t.is_floating_point() else t

        t = {name: cast(value) for name, value in self.tokens.items()}
        kwargs = {"initial_states": self.initial, "has_initial_state": self.has} | self.options | kwargs
        kwargs = {name: cast(value) for name, value in kwargs.items()}
        return ssd_prefill(t["x"], t["dt"], cast(self.A), t["B"], t["C"], self.cu_seqlens, backend=backend, **kwargs)

    def check(self, dtype, **kwargs):
        (y, final), torch_op = self.run("triton", **kwargs), self.run("torch", **kwargs)
        exact = self.run("torch" if HAS_GPU else "reference", wide=True, **kwargs)
        assert y.dtype == dtype
        assert final.dtype == torch.float32
        assert_as_good(y, torch_op[0], exact[0], floor=1e-6)
        assert_as_good(final, torch_op[1], exact[1], floor=1e-6 if dtype == torch.float32 else TWO_OPERANDS)
        return y, final


@pytest.mark.parametrize("dtype", ACTIVATIONS)
@pytest.mark.parametrize(("d", "lengths", "chunk_size"), CASES)
@pytest.mark.usefixtures("way")
def test_prefill_is_as_good_as_the_torch_op(d, lengths, chunk_size, dtype):
    y, final = Case(d, lengths, ALL, dtype).check(dtype, chunk_size=chunk_size)
    assert y.isfinite().all()
    assert final.isfinite().all()


@pytest.mark.usefixtures("way")
def test_no_option_and_no_initial_state():
    case = Case(Dims(2, 20, 1, 16), [20, 0, 33], NONE, torch.float32)
    case.check(torch.float32, initial_states=None, has_initial_state=None, chunk_size=16)
    assert (case.run("triton", initial_states=None, has_initial_state=None)[1][1] == 0).all()
    case.initial.nan_to_num_(0.5)
    _, final = case.check(torch.float32, has_initial_state=None, chunk_size=16)
    assert torch.equal(final[1], case.initial[1]), "an empty sequence ends where it starts"


@pytest.mark.parametrize("name", ["D", "z", "dt_bias"])
@pytest.mark.usefixtures("way")
def test_each_option_may_be_absent(name):
    Case(Dims(1, 16, 1, 16), [18], ALL, torch.float32).check(torch.float32, **{name: None}, chunk_size=16)


@pytest.mark.usefixtures("way")
def test_a_sequence_is_the_same_in_any_batch():
    """Alone and permuted, bit for bit; so no sequence reaches another, NaN and all."""
    case = Case(Dims(2, 16, 1, 16), [21, 0, 16, 40], ALL, torch.float32)
    case.tokens["x"][21:37] = NAN  # sequence 2
    y, final = case.run("triton", chunk_size=16)
    order = [3, 1, 0]
    edges = case.cu_seqlens.tolist()
    rows = torch.cat([torch.arange(edges[i], edges[i + 1]) for i in order]).to(DEVICE)
    picked = Case.__new__(Case)
    picked.tokens = {k: v[rows] for k, v in case.tokens.items()}
    picked.options = case.options | {"z": case.options["z"][rows]}
    picked.A, picked.initial, picked.has = case.A, case.initial[order], case.has[order]
    lengths = torch.tensor([0] + [case.lengths[i] for i in order])
    picked.cu_seqlens = lengths.cumsum(0).to(DEVICE)  # int64, for once
    y_picked, final_picked = picked.run("triton", chunk_size=16)
    assert y_picked.isfinite().all()
    assert torch.equal(y_picked, y[rows])
    assert torch.equal(final_picked, final[order])


def test_views_of_a_projection_are_read_in_place():
    d, lengths = Dims(2, 16, 1, 16), [19, 2]
    case = Case(d, lengths, ALL, torch.float32)
    expected = case.run("triton")
    case.tokens["z"] = case.options["z"]
    sizes = [v[0].numel() for v in case.tokens.values()]
    packed = torch.cat([v.flatten(1) for v in case.tokens.values()], 1)
    views = {k: v.view(-1, *case.tokens[k].shape[1:]) if k == "dt" else v.unflatten(-1, case.tokens[k].shape[1:])
             for k, v in zip(case.tokens, packed.split(sizes, 1), strict=True) if k != "dt"}  # fmt: skip
    views["dt"] = packed.split(sizes, 1)[list(case.tokens).index("dt")]
    case.options["z"] = views.pop("z")
    case.tokens = views
    before = packed.clone()
    for got, want in zip(case.run("triton"), expected, strict=True):
        assert torch.equal(got, want)
    assert torch.equal(packed, before)


def test_nothing_to_do():
    case = Case(Dims(1, 16, 1, 16), [0, 0], ALL, torch.float32)
    y, final = case.run("triton")
    assert y.shape == (0, 1, 16)
    assert torch.equal(final[0], case.initial[0])
    assert (final[1] == 0).all()


STATES_KEPT = [torch.float32, torch.float16, torch.bfloat16]


@pytest.mark.parametrize("kept", STATES_KEPT)
@pytest.mark.parametrize("backend", ["reference", "torch", "triton"])
@pytest.mark.usefixtures("way")
def test_states_pass_through_the_slots_of_a_pool(backend, kept):
    """As through tensors of their own, rounded; a padded sequence reads and writes nothing; a free slot stays NaN."""
    lengths, slots = [20, 0, 7, 33, 0], torch.tensor([5, 2, -1, 0, 3], device=DEVICE)
    case = Case(Dims(2, 16, 1, 16), lengths, ALL, torch.float32)
    pages = torch.full((7, 2, 16 * 16 + 3), NAN, device=DEVICE, dtype=kept)  # padded pages
    pool = pages[:, :, : 16 * 16].unflatten(-1, (16, 16))
    own, live = slots >= 0, (slots >= 0) & case.has
    pool[slots[live]] = case.initial[live].to(kept)
    expected_y, expected = case.run("reference", initial_states=pool[slots.clamp(min=0)].float(), wide=True)
    options = {"initial_states": None, "state": pool, "slots": slots, "chunk_size": 16}
    y, returned = case.run(backend, **options)
    assert returned is pool
    edges = case.cu_seqlens.tolist()
    for i, (begin, end) in enumerate(itertools.pairwise(edges)):
        want = expected_y[begin:end] if own[i] else torch.zeros_like(y[begin:end]).double()
        torch.testing.assert_close(y[begin:end].double(), want, atol=1e-4, rtol=1e-4)
    rounding = {torch.float32: 1e-4, torch.float16: 1e-3, torch.bfloat16: 1e-2}[kept]
    torch.testing.assert_close(pool[slots[own]].double(), expected[own], atol=rounding, rtol=rounding)
    free = [slot for slot in range(7) if slot not in slots.tolist()]
    assert pool[free].isnan().all()
    assert pages[:, :, 16 * 16 :].isnan().all()


@pytest.mark.parametrize("backend", ["reference", "torch", "triton"])
@pytest.mark.usefixtures("way")
def test_no_sequence_continues_from_a_pool_unless_it_says_so(backend):
    case = Case(Dims(2, 16, 1, 16), [20, 3], NONE, torch.float32)
    pool = torch.full((3, 2, 16, 16), NAN, device=DEVICE)
    slots = torch.tensor([2, 0], device=DEVICE, dtype=torch.int32)
    y, _ = case.run(backend, initial_states=None, has_initial_state=None, state=pool, slots=slots)
    expected = case.run("reference", initial_states=None, has_initial_state=None)
    torch.testing.assert_close(y, expected[0], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(pool[[2, 0]], expected[1], atol=1e-4, rtol=1e-4)
    assert pool[1].isnan().all()


def test_states_come_from_one_place():
    case = Case(Dims(2, 16, 1, 16), [4], NONE, torch.float32)
    pool, slots = torch.zeros(1, 2, 16, 16, device=DEVICE), torch.zeros(1, dtype=torch.int32, device=DEVICE)
    with pytest.raises(ArgumentError, match="state and slots are given together"):
        case.run("torch", initial_states=None, state=pool)
    with pytest.raises(ArgumentError, match="state or initial_states, not both"):
        case.run("torch", state=pool, slots=slots)


@pytest.mark.parametrize("change", ["double", "mixed", "strided"])
def test_what_cannot_run_says_so(change):
    case = Case(Dims(2, 16, 1, 16), [4], NONE, torch.float32)
    if change == "double":
        case.tokens = {k: v.double() for k, v in case.tokens.items()}
    elif change == "mixed":
        case.tokens["B"] = case.tokens["B"].half()
    else:
        case.tokens["x"] = case.tokens["x"].mT.contiguous().mT
    with pytest.raises(ArgumentError, match="the triton backend"):
        case.run("triton")


CHANNELS = 1000 if HAS_GPU else 130


@pytest.mark.parametrize("dtype", ACTIVATIONS)
@pytest.mark.parametrize("width", [1, 2, 3, 4])
@pytest.mark.parametrize("activation", ["silu", None])
def test_the_convolution_is_as_good_as_the_torch_op(width, activation, dtype):
    """Sequences shorter than the window, empty, padded, continued; foreign slots stay NaN."""
    lengths = [1, 0, 17, 2, 40, 0, 3] + ([2000, 33] if HAS_GPU else [])
    slots = [4, 0, 7, -1, 2, 9, 5] + ([1, 11] if HAS_GPU else [])
    g = torch.Generator().manual_seed(width)
    packed = torch.randn(sum(lengths), CHANNELS + 7, generator=g).to(DEVICE, dtype)
    x = packed[:, 5 : 5 + CHANNELS]  # strided
    weight = torch.randn(CHANNELS, width, generator=g).to(DEVICE, dtype)
    bias = torch.randn(CHANNELS, generator=g).to(DEVICE, dtype) if activation else None
    edges = torch.tensor([0, *lengths]).cumsum(0).to(DEVICE, torch.int32)
    has = torch.arange(len(lengths)) % 3 != 2
    live = [s for s, h in zip(slots, has.tolist(), strict=True) if h and s >= 0]
    window = torch.full((12, CHANNELS, width - 1), NAN)
    window[live] = torch.randn(len(live), CHANNELS, width - 1, generator=g)
    window = window.to(DEVICE, dtype)
    kept = {
        name: window.to(kind, copy=True)
        for name, kind in (("triton", dtype), ("torch", dtype), ("exact", torch.double))
    }

    def run(backend, w, *args):
        slot = torch.tensor(slots, dtype=torch.int32, device=DEVICE)
        return causal_conv_prefill(
            *args, edges, window=w, slots=slot, has_window=has.to(DEVICE), activation=activation, backend=backend,
            bias=None if bias is None else bias.to(args[0].dtype),
        )  # fmt: skip

    y, y_torch = run("triton", kept["triton"], x, weight), run("torch", kept["torch"], x, weight)
    exact = run("torch", kept["exact"], x.double(), weight.double())
    assert y.dtype == dtype
    assert_as_good(y, y_torch, exact)
    assert torch.equal(kept["triton"].nan_to_num(99), kept["torch"].nan_to_num(99))
    for begin, end, slot in zip(edges[:-1].tolist(), edges[1:].tolist(), slots, strict=True):
        if slot < 0:
            assert (y[begin:end] == 0).all()


def test_the_convolution_without_a_cache_and_in_two_parts():
    g = torch.Generator().manual_seed(0)
    x, weight = torch.randn(37, 6, generator=g).to(DEVICE), torch.randn(6, 4, generator=g).to(DEVICE)

    def run(part, **kwargs):
        edges = torch.tensor([0, len(part)], device=DEVICE)
        return causal_conv_prefill(part, weight, edges, backend="triton", **kwargs)

    whole = run(x)
    for cut in (0, 1, 2, 3, 20, 37):
        cache = {"window": torch.full((2, 6, 3), NAN, device=DEVICE), "slots": torch.tensor([1], device=DEVICE)}
        first = run(x[:cut], **cache)
        second = run(x[cut:], **cache, has_window=torch.tensor([True], device=DEVICE))
        torch.testing.assert_close(torch.cat([first, second]), whole)
        assert torch.equal(cache["window"][1], x[-3:].T)
        assert cache["window"][0].isnan().all()
