"""Stochastic rounding: words, rounding and bits of each backend, against exact fractions and published vectors."""

import math
from dataclasses import replace
from fractions import Fraction

import pytest
import torch

from statewise.errors import ArgumentError
from statewise.ops import checkpointed_step, state_step
from statewise.ops.rounding import page_words, philox, round_stochastically
from tests.ops.kernels import DEVICE, HAS_GPU
from tests.ops.rounding_kernel import round_page

DTYPES = [torch.float16, torch.bfloat16]
# mantissa bits, least exponent of a normal number, largest finite number, where round-to-nearest gives infinity
FORMATS = {
    torch.float16: (10, -14, 65504.0, 65520.0),
    torch.bfloat16: (7, -126, (2 - 2**-7) * 2.0**127, (2 - 2**-8) * 2.0**127),
}
VECTORS = [  # Random123, kat_vectors, philox4x32 10: counter, key, words
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]
EDGES = [0.0, -0.0, 1.0, -1.0, 2.0**-14, 2.0**-24, 2.0**-25, -(2.0**-26), 2.0**-126, -(2.0**-127), 2.0**-149, 65503.9]
EDGES += [65504.0, -65519.996, 65520.0, -65535.9, 65536.0, 3.3895e38, -3.3961e38, 3.3962e38, 3.4e38]
EDGES += [math.inf, -math.inf, math.nan]


def seed_of(value: int) -> torch.Tensor:
    return torch.tensor([value], device=DEVICE)


def bits(t: torch.Tensor) -> torch.Tensor:
    """The bits of 16-bit floats, every NaN the same."""
    return torch.where(t.isnan(), 0x7FFF, t.view(torch.int16).to(torch.int32))


def patterns(count: int) -> torch.Tensor:
    """Any float32 bits, numbers near float16's subnormals and near its largest, and the edges. On the CPU."""
    g = torch.Generator().manual_seed(0)
    anything = torch.randint(-(2**31), 2**31, (count,), generator=g).to(torch.int32).view(torch.float32)
    small = torch.randn(count, generator=g) * 2.0 ** torch.randint(-30, -12, (count,), generator=g)
    large = 65440 + 120 * torch.rand(count, generator=g)
    return torch.cat([anything, small, large, torch.randn(count, generator=g), torch.tensor(EDGES)])


def random_words(*shape: int) -> torch.Tensor:
    return torch.randint(0, 2**32, shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(("counter", "key", "words"), VECTORS)
def test_philox_gives_the_published_words(counter, key, words):
    counter, key, words = ([torch.tensor(int(w, 16)) for w in text.split()] for text in (counter, key, words))
    assert philox(tuple(counter), tuple(key)).tolist() == [int(w) for w in words]


@pytest.mark.parametrize("shape", [(2, 3, 6), (3, 1, 5)])
def test_a_word_belongs_to_its_element(shape):
    """Quadruple by quadruple: counter (element / 4, slot, layer, 0), key the halves of the seed."""
    seed, layer, slots = -12345678901234, 3, [4, 0]
    words = page_words(torch.tensor([seed]), layer, torch.tensor(slots, dtype=torch.int32), torch.Size(shape))
    key = (torch.tensor(seed & 0xFFFFFFFF), torch.tensor(seed >> 32 & 0xFFFFFFFF))
    for row, slot in enumerate(slots):
        for element, word in enumerate(words[row].flatten().tolist()):
            counter = tuple(torch.tensor(c) for c in (element // 4, slot, layer, 0))
            assert word == philox(counter, key)[element % 4]


def by_hand(value: float, dtype: torch.dtype, word: int) -> float:
    """The definition, in exact fractions."""
    mantissa, least, largest, infinite = FORMATS[dtype]
    if math.isnan(value) or abs(value) >= infinite:
        return value * math.inf
    if abs(value) >= largest:
        return math.copysign(largest, value)
    exponent = max(math.frexp(value)[1] - 1, least) if value else least
    place = Fraction(2) ** (exponent - mantissa)
    units = (math.floor(Fraction(abs(value)) / place * 2**32) + word) >> 32
    return math.copysign(float(units * place), value)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rounding_is_its_definition(dtype):
    values = patterns(3000)
    words = random_words(len(values))
    words[::7], words[3::7] = 0, 2**32 - 1
    got = round_stochastically(values, dtype, words)
    exact = [by_hand(*item) for item in zip(values.tolist(), [dtype] * len(values), words.tolist(), strict=True)]
    assert torch.equal(bits(got), bits(torch.tensor(exact, dtype=torch.float64).to(dtype)))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_numbers_of_the_dtype_stay_as_they_are(dtype):
    every = torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype)
    got = round_stochastically(every.float(), dtype, random_words(len(every)))
    assert torch.equal(bits(got), bits(every))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_mean_is_the_value(dtype):
    """Over 2^18 words of as many counters, within 5 sigma of a coin that is thrown so often."""
    mantissa, least, largest, _ = FORMATS[dtype]
    last = 2.0 ** (least - mantissa)  # the last place of subnormals
    values = [1.0003, -2.71828, 1e-3, 0.9995 * largest, -0.9995 * largest]  # all but the first three are near an end
    values += [last * part for part in (0.5, 0.013, -0.9, 3.3, -77.7, 2.0**mantissa - 0.3, 2.0**mantissa + 0.3)]
    values = torch.tensor(values)
    zero = torch.zeros((), dtype=torch.int64)
    words = philox((torch.arange(2**16), zero, zero, zero), (zero + 11, zero + 7)).flatten()
    for value in values:
        drawn = round_stochastically(value.expand(len(words)), dtype, words).double()
        low, high = drawn.min(), drawn.max()
        assert low < value.double() < high, "not two neighbours"
        assert len(drawn.unique()) == 2
        part = (value.double() - low) / (high - low)
        sigma = (high - low) * (part * (1 - part) / len(words)).sqrt()
        assert (drawn.mean() - value.double()).abs() <= 5 * sigma


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("state_size", [128 if HAS_GPU else 32, 20, 18, 5])
def test_the_kernel_rounds_to_the_bits_of_torch(dtype, state_size):
    rows, slot, layer, seed = 2 * (400 if HAS_GPU else 40), 5, 3, -(2**62) - 12345
    values = patterns(rows * state_size)
    values = values[torch.randperm(len(values), generator=torch.Generator().manual_seed(2))[: rows * state_size - 24]]
    page = torch.cat([values, torch.tensor(EDGES)]).view(2, rows // 2, state_size).to(DEVICE)
    words = page_words(seed_of(seed), layer, torch.tensor([slot], device=DEVICE), page.shape)
    expected = round_stochastically(page[None], dtype, words)[0]
    assert torch.equal(bits(round_page(page, dtype, seed_of(seed), slot, layer)), bits(expected))


class Case:
    """Steps whose float32 states are exact, whatever the order of the sums: dyadic numbers, no decay, dt = 1."""

    def __init__(self, dtype, state_size=20, window=1, batch=3):
        g = torch.Generator().manual_seed(0)

        def dyadic(*shape):
            return (torch.randint(-256, 257, shape, generator=g) / 64).to(DEVICE)

        heads, head_dim, groups, slots, ring = 2, 5, 1, 6, window + 1
        self.window = window
        self.slots = torch.tensor([4, -1, 1, 0, 3][:batch], device=DEVICE)
        self.args = (
            dyadic(batch, 1, heads, head_dim),
            torch.zeros(batch, 1, heads, device=DEVICE),
            torch.zeros(heads, device=DEVICE),
            dyadic(batch, 1, groups, state_size),
            dyadic(batch, 1, groups, state_size),
        )
        self.state = dyadic(slots, heads, head_dim, state_size).to(dtype)
        self.ring = {
            "x_ring": dyadic(slots, heads, ring, head_dim),
            "B_ring": dyadic(slots, groups, ring, state_size),
            "dt_ring": torch.ones(slots, heads, ring, device=DEVICE),
            "ring_start": torch.arange(slots, dtype=torch.int32, device=DEVICE) % ring,
            "pending": torch.full((slots,), window, dtype=torch.int32, device=DEVICE),
        }

    def step(self, backend, seed=9, layer=2, slots=None):
        """Outputs and states after one step, which flushes every row."""
        state, ring = self.state.clone(), {name: t.clone() for name, t in self.ring.items()}
        seed = None if seed is None else seed_of(seed)
        y = checkpointed_step(
            *self.args, state, **ring, window=self.window, read_slots=self.slots if slots is None else slots,
            dt_limit=(1.0, 1.0), rand_seed=seed, rand_layer=layer, backend=backend,
        )  # fmt: skip
        return y, state


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("state_size", [20, 18])
@pytest.mark.parametrize(("window", "fused"), [(1, None), (2, True), (2, False)])
def test_every_backend_writes_the_same_bits(dtype, state_size, window, fused, monkeypatch):
    from statewise.ops.checkpointed_step import triton as step

    chosen = step.launch_parameters
    monkeypatch.setattr(step, "launch_parameters", lambda *a: replace(chosen(*a), fused=fused))
    case = Case(dtype, state_size, window)
    expected = case.step("torch")
    wide = torch.promote_types(dtype, torch.float32)
    exact = Case(dtype, state_size, window)
    exact.state = exact.state.to(wide)
    _, unrounded = exact.step("torch", seed=None)
    own = case.slots[case.slots >= 0]
    words = page_words(seed_of(9), 2, own, case.state.shape[1:])
    assert torch.equal(expected[1][own], round_stochastically(unrounded[own], dtype, words))
    assert not torch.equal(expected[1][own].float(), unrounded[own]), "nothing was there to round"
    rest = [s for s in range(len(case.state)) if s not in own.tolist()]
    assert torch.equal(expected[1][rest], case.state[rest]), "another slot was written"
    for backend in ("reference", "triton"):
        assert torch.equal(bits(case.step(backend)[1]), bits(expected[1])), backend


@pytest.mark.parametrize("backend", ["torch", "reference", "triton"])
def test_outputs_are_those_of_the_unrounded_state(backend):
    case = Case(torch.bfloat16)
    assert torch.equal(case.step(backend)[0], case.step(backend, seed=None)[0])


@pytest.mark.parametrize(("backend", "window"), [("torch", 1), ("triton", 1), ("torch", 3), ("triton", 3)])
def test_step_layer_and_slot_change_the_bits_and_nothing_else_does(backend, window):
    case = Case(torch.float16, window=window)
    _, first = case.step(backend)
    assert torch.equal(case.step(backend)[1], first)
    for other in ({"seed": 10}, {"seed": 9 + 2**32}, {"layer": 3}):
        assert not torch.equal(case.step(backend, **other)[1], first), other
    # The same row in another slot, with the same state and ring there.
    for t in (case.state, case.ring["x_ring"], case.ring["B_ring"], case.ring["ring_start"]):
        t[5] = t[4]
    _, moved = case.step(backend, slots=torch.tensor([5, -1, 1], device=DEVICE))
    assert not torch.equal(moved[5], first[4])
    assert torch.equal(moved[:4], first[:4])


@pytest.mark.parametrize("backend", ["torch", "triton"] if HAS_GPU else ["torch"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_small_updates_are_kept_on_average(dtype, backend):
    """200 steps that each add an eighth of a last place to 1: to nearest all are lost."""
    place = torch.finfo(dtype).eps
    start = torch.ones(2, 4, 16, 32, dtype=dtype, device=DEVICE)
    args = (torch.full((2, 4, 16), place / 8, device=DEVICE), torch.zeros(2, 4, device=DEVICE))
    args += (torch.zeros(4, device=DEVICE), *torch.ones(2, 2, 4, 32, device=DEVICE))
    options = {"read_slots": torch.arange(2, device=DEVICE), "dt_limit": (1.0, 1.0), "backend": backend}
    nearest, state, seed = start.clone(), start.clone(), seed_of(0)
    for _ in range(200):
        state_step(*args, nearest, **options)
        state_step(*args, state, rand_seed=seed, **options)
        seed += 1
    assert torch.equal(nearest, start)
    sigma = place * math.sqrt(200 * 1 / 8 * 7 / 8 / state.numel())
    assert abs(state.double().mean() - (1 + 200 * place / 8)) <= 5 * sigma


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"state": torch.zeros(2, 2, 3, 4)}, "float32 state; only float16 and bfloat16"),
        ({"rand_seed": torch.zeros(1, dtype=torch.int32)}, "torch.int32, expected torch.int64"),
        ({"rand_seed": torch.zeros((), dtype=torch.int64)}, "shape"),
        ({"rand_layer": -1}, "rand_layer is -1, expected a whole number"),
        ({"rand_seed": torch.zeros(1, dtype=torch.int64, device="meta")}, "rand_seed is on meta, expected cpu"),
    ],
)
def test_what_cannot_be_rounded_is_an_error(changed, message):
    state = changed.pop("state", torch.zeros(2, 2, 3, 4, dtype=torch.float16))
    args = (torch.zeros(1, 2, 3), torch.zeros(1, 2), torch.zeros(2), *torch.zeros(2, 1, 1, 4))
    options = {"read_slots": torch.zeros(1, dtype=torch.int64), "rand_seed": torch.zeros(1, dtype=torch.int64)}
    with pytest.raises(ArgumentError, match=message):
        state_step(*args, state, **(options | changed))


@pytest.mark.gpu
@pytest.mark.skipif(not HAS_GPU, reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_graph_draws_anew_when_the_seed_is_changed_in_place(dtype):
    case, seed = Case(dtype, 128, batch=5), seed_of(9)
    x, dt, A, B, C = case.args
    args, state = (x[:, 0], dt[:, 0], A, B[:, 0], C[:, 0]), case.state.clone()
    options = {"read_slots": case.slots, "dt_limit": (1.0, 1.0), "rand_seed": seed, "rand_layer": 2}
    state_step(*args, state, **options, backend="triton")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        state_step(*args, state, **options, backend="triton")
    drawn = []
    for value in (9, 10, 9):
        seed.fill_(value)
        state.copy_(case.state)
        graph.replay()
        drawn.append(state.clone())
        assert torch.equal(bits(state), bits(case.step("torch", seed=value)[1]))
    assert torch.equal(drawn[0], drawn[2])
    assert not torch.equal(drawn[0], drawn[1])
