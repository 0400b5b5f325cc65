"""The gated norm and the convolution's step as kernels: against float64, strided and odd shapes, pads, dead memory."""

import pytest
import torch

from statewise.errors import ArgumentError, BackendError
from statewise.ops import causal_conv_step, gated_rms_norm
from tests.ops.kernels import ACTIVATIONS, DEVICE, HAS_GPU, assert_as_good

NAN = float("nan")
CPU = torch.device("cpu")
EXACT = "torch" if HAS_GPU else "reference"  # in float64; the reference's loops take minutes at full size
BOTH = pytest.mark.parametrize("dtype", ACTIVATIONS, ids=str)


def normal(g, *shape):
    return torch.randn(*shape, generator=g, dtype=torch.float64)


def sliced(t):
    """The same numbers as a column slice of something wider that is NaN elsewhere, as they come out of a projection."""
    wide = torch.full((*t.shape[:-1], 2 * t.shape[-1] + 16), NAN, dtype=t.dtype, device=t.device)
    wide[..., 16 : 16 + t.shape[-1]] = t
    return wide[..., 16 : 16 + t.shape[-1]]


def on(t, device):
    """The same slice of the same wider tensor on ``device``."""
    base = t.as_strided((t.untyped_storage().nbytes() // t.element_size(),), (1,), 0).to(device)
    return base.as_strided(t.shape, t.stride(), t.storage_offset())


# leading shape, channels, group size
SMALL_NORMS = [((5,), 12, 6), ((2, 3), 40, 20), ((), 24, None), ((1,), 2100, 700), ((3,), 6, 1)]
LARGE_NORMS = [
    ((7,), 8192, 1024),
    ((256,), 5120, None),
    ((33,), 16384, None),
    ((4, 5), 1536, 192),
    ((3,), 32768, None),
    ((1000,), 96, 6),
]
NORMS = SMALL_NORMS + LARGE_NORMS if HAS_GPU else SMALL_NORMS


@BOTH
@pytest.mark.parametrize("before", [False, True], ids=["gate first", "norm first"])
@pytest.mark.parametrize(("gated", "weighted"), [(True, True), (True, False), (False, True), (False, False)])
@pytest.mark.parametrize(("leading", "channels", "group_size"), NORMS, ids=str)
def test_the_norm_is_as_good_as_torch(leading, channels, group_size, gated, weighted, before, dtype):
    g = torch.Generator().manual_seed(channels)
    x = (3 * normal(g, *leading, channels)).to(dtype)
    z = sliced(normal(g, *leading, channels).to(dtype)) if gated else None
    weight = (1 + normal(g, channels) / 4).to(dtype) if weighted else None
    kwargs = {"group_size": group_size, "norm_before_gate": before}
    args = [x, z, weight]
    exact = gated_rms_norm(*(None if t is None else t.double() for t in args), **kwargs, backend=EXACT)
    same_dtype = gated_rms_norm(*args, **kwargs)
    for form in (x, sliced(x)):
        on_device = [None if t is None else on(t, DEVICE) for t in (form, z, weight)]
        y = gated_rms_norm(*on_device, **kwargs, backend="triton")
        assert (y.shape, y.dtype, y.is_contiguous()) == (x.shape, dtype, True)
        assert_as_good(y.cpu(), same_dtype, exact)


def test_a_mixed_norm_returns_the_dtype_of_x():
    g = torch.Generator().manual_seed(0)
    x, z, weight = normal(g, 3, 8).half(), normal(g, 3, 8).float(), normal(g, 8).float()
    y = gated_rms_norm(x.to(DEVICE), z.to(DEVICE), weight.to(DEVICE), eps=0.1, backend="triton")
    expected = gated_rms_norm(x, z, weight, eps=0.1)
    assert y.dtype == torch.float16
    torch.testing.assert_close(y.cpu(), expected, rtol=2e-3, atol=1e-4)


def test_a_norm_of_no_rows():
    assert gated_rms_norm(torch.ones(0, 8, device=DEVICE), backend="triton").shape == (0, 8)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.ones(4, 8, dtype=torch.float64), "float64 runs on the torch and reference backends"),
        (torch.ones(8, 4).T, r"x has strides \(1, 4\), the triton backend expects 1 in the last dimension"),
        (torch.ones(2, 3, 8).transpose(0, 1), r"x has strides \(8, 24, 1\), .* one stride from row to row"),
        (torch.ones(1, 65536), "group_size 65536, the triton backend takes up to 32768"),
    ],
)
def test_what_the_norm_cannot_take_is_named(x, message):
    with pytest.raises(ArgumentError, match=message):
        gated_rms_norm(x, None, torch.ones(x.shape[-1]), backend="triton")


def test_a_cpu_without_the_interpreter_is_named(monkeypatch):
    from statewise.ops import triton_common

    monkeypatch.setattr(triton_common, "INTERPRETED", False)
    triton_common.pdl_options.cache_clear()
    with pytest.raises(BackendError, match="the triton backend needs an NVIDIA GPU, and the tensors are on cpu; other"):
        gated_rms_norm(torch.ones(2, 8), backend="triton")


# batch, channels, width
SMALL_CONVS = [(1, 7, 1), (3, 5, 2), (4, 40, 3), (4, 300, 4), (2, 33, 5)]
LARGE_CONVS = [(1, 10240, 4), (64, 10240, 4), (257, 4352, 4), (16, 6145, 3), (5, 2048, 5), (1024, 512, 2)]
CONVS = SMALL_CONVS + LARGE_CONVS if HAS_GPU else SMALL_CONVS


class Conv:
    """Windows in padded pages, rows in slots here and there with a pad among them; what is free or dead is NaN."""

    def __init__(self, batch, channels, width, dtype, channels_last=False, index=torch.int64):
        g = torch.Generator().manual_seed(batch * channels + width)
        slots, page = batch + 3, channels * (width - 1)
        self.shape = (slots, channels, width - 1)
        self.stride = (page + 16, *((1, channels) if channels_last else (width - 1, 1)))
        self.slots = torch.randperm(slots, generator=g)[:batch].to(index)
        if batch > 1:
            self.slots[batch // 2] = -1
        own = self.slots[self.slots >= 0].long()
        self.memory = torch.full((slots, page + 16), NAN, dtype=dtype)
        self.memory[own, :page] = normal(g, len(own), page).to(dtype)
        x = normal(g, 3, batch, channels).to(dtype)
        x[:, self.slots < 0] = NAN
        self.x = sliced(x)
        self.weight, self.bias = normal(g, channels, width).to(dtype), normal(g, channels).to(dtype)

    def run(self, backend, double=False, device=CPU, activation="silu", with_bias=True):
        """Three steps. Returns the outputs and the pool's memory after them, on the CPU."""
        tensors = [t.double() if double else t.clone() for t in (self.memory, self.weight, self.bias)]
        memory, weight, bias = (t.to(device) for t in tensors)
        window, slots = memory.as_strided(self.shape, self.stride), self.slots.to(device)
        kwargs = {"bias": bias if with_bias else None, "activation": activation, "backend": backend}
        outputs = []
        for x in self.x.double() if double else on(self.x, device):
            outputs.append(causal_conv_step(x, weight, window, slots, **kwargs).cpu())
        return torch.stack(outputs), memory.cpu()


@BOTH
@pytest.mark.parametrize("channels_last", [False, True], ids=["taps last", "channels last"])
@pytest.mark.parametrize(("activation", "with_bias"), [("silu", True), (None, False)])
@pytest.mark.parametrize(("batch", "channels", "width"), CONVS, ids=str)
def test_the_convolution_step_is_as_good_as_torch(batch, channels, width, activation, with_bias, channels_last, dtype):
    case = Conv(batch, channels, width, dtype, channels_last, torch.int32 if with_bias else torch.int64)
    options = {"activation": activation, "with_bias": with_bias}
    exact, _ = case.run(EXACT, double=True, **options)
    same_dtype, expected_memory = case.run("torch", **options)
    y, memory = case.run("triton", device=DEVICE, **options)
    assert (y[:, case.slots < 0] == 0).all()
    assert_as_good(y, same_dtype, exact)
    torch.testing.assert_close(memory, expected_memory, rtol=0, atol=0, equal_nan=True)


def test_a_step_of_pads_only_and_a_step_of_no_rows():
    case = Conv(3, 5, 4, torch.float32)
    case.slots[:] = -1
    case.x[:] = NAN
    y, memory = case.run("triton", device=DEVICE)
    assert (y == 0).all()
    torch.testing.assert_close(memory, case.memory, rtol=0, atol=0, equal_nan=True)
    x, weight, window = torch.ones(0, 5), torch.ones(5, 4), torch.ones(2, 5, 3)
    assert causal_conv_step(x, weight, window, torch.ones(0, dtype=torch.int64), backend="triton").shape == (0, 5)


def test_what_the_step_cannot_take_is_named():
    x, weight, window, slots = torch.ones(2, 5), torch.ones(5, 4), torch.ones(2, 5, 3), torch.arange(2)
    with pytest.raises(ArgumentError, match="float64 runs on the torch and reference backends"):
        causal_conv_step(x.double(), weight, window, slots, backend="triton")
    with pytest.raises(ArgumentError, match="x has strides"):
        causal_conv_step(torch.ones(5, 2).T, weight, window, slots, backend="triton")


@pytest.mark.gpu
@pytest.mark.skipif(not HAS_GPU, reason="needs a CUDA device")
def test_a_window_far_into_the_pool_on_a_gpu():
    """Offsets pass 2^32 elements: a pool of 8.6 GB."""
    g = torch.Generator().manual_seed(0)
    channels, width = 10240, 4
    page = channels * (width - 1)
    slots = 2**32 // page + 2
    window = torch.empty(slots, channels, width - 1, dtype=torch.float16, device=DEVICE)
    x, weight = normal(g, 2, channels).half(), normal(g, channels, width).half()
    few = normal(g, 2, channels, width - 1).half()
    far = torch.tensor([slots - 1, 0], device=DEVICE)
    window[slots - 1], window[0] = few.to(DEVICE)
    y = causal_conv_step(x.to(DEVICE), weight.to(DEVICE), window, far, backend="triton")
    expected = causal_conv_step(x, weight, few, torch.arange(2))
    torch.testing.assert_close(y.cpu(), expected, rtol=2e-3, atol=2e-3)
    assert torch.equal(torch.stack([window[slots - 1], window[0]]).cpu(), few)
