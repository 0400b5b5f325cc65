"""Mixtures of experts: equal to a loop over tokens, whatever the routing; the same on a GPU, in a CUDA graph."""

from dataclasses import replace

import pytest
import torch
from torch.nn.functional import silu

from statewise.config import MLPConfig, MoEConfig
from statewise.layers.moe import MoE, with_product
from statewise.ops.backend import resolve
from tests.ops.kernels import HAS_GPU

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
HIDDEN = 16


def mixture(gated=True, shared=True, experts=6, chosen=3, hidden=HIDDEN, inner=8, backend="torch", seed=0):
    beside = MLPConfig(inner_size=24, bias=False, gated=gated) if shared else None
    config = MoEConfig(experts=experts, chosen=chosen, inner_size=inner, gated=gated, shared=beside)
    device = CUDA if backend == "triton" else CPU
    ops, _ = resolve(backend.replace("interpreted", "triton"), device)
    layer = MoE(hidden, config, ops).double().requires_grad_(False)
    generator = torch.Generator().manual_seed(seed)
    for parameter in layer.parameters():
        parameter.normal_(std=parameter.shape[-1] ** -0.5, generator=generator)
    return layer


def rows(count, hidden=HIDDEN, seed=1):
    return torch.randn(count, hidden, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def one_by_one(layer, x):
    """Token by token, expert by expert."""
    config, experts = layer.config, layer.experts
    y = []
    for row in x:
        scores = layer.router.weight @ row
        best = scores.sort(descending=True).indices[: config.chosen].tolist()
        total = torch.zeros_like(row)
        for expert in best:
            up = experts.up_proj[expert] @ row
            inner = silu(up[: len(up) // 2]) * up[len(up) // 2 :] if config.gated else up.clamp(min=0) ** 2
            weight = scores[expert].exp() / scores[best].exp().sum()
            total += weight * (experts.down_proj[expert] @ inner)
        y.append(total if layer.shared is None else total + layer.shared(row))
    return torch.stack(y)


@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize(("experts", "chosen"), [(6, 3), (5, 1), (4, 4), (64, 2)])
def test_it_equals_a_loop_over_tokens(gated, shared, experts, chosen):
    layer, x = mixture(gated, shared, experts, chosen), rows(9)
    torch.testing.assert_close(layer(x), one_by_one(layer, x))
    torch.testing.assert_close(layer(x[:1]), one_by_one(layer, x[:1]))


def test_all_rows_may_choose_the_same_experts():
    layer, x = mixture(), rows(1).expand(7, -1)
    torch.testing.assert_close(layer(x), one_by_one(layer, x))


@pytest.mark.skipif(HAS_GPU, reason="the kernels are compiled here, not interpreted: see the GPU test")
def test_interpreted_kernels_give_what_the_torch_ops_do():
    layer, kernels = mixture(), mixture(backend="interpreted").float()
    x = rows(9).float()
    torch.testing.assert_close(kernels(x).double(), layer(x.double()), rtol=1e-4, atol=1e-5)


def test_a_row_of_nan_reaches_no_other():
    layer, x = mixture(), rows(8)
    expected = layer(x)
    spoiled = x.clone()
    spoiled[[2, 7]] = torch.nan
    y = layer(spoiled)
    live = [0, 1, 3, 4, 5, 6]
    torch.testing.assert_close(y[live], expected[live])
    assert y[[2, 7]].isnan().all()


BF16 = torch.bfloat16
LOOP = "a loop over them: PyTorch's grouped_mm does not run, "


def products(ops):
    """The backend whose product runs; "both": by length."""
    chosen = ops.grouped_linear.keywords
    return "both" if chosen.keys() == {"short", "long"} else chosen["backend"]


@pytest.mark.parametrize(
    ("backend", "device", "dtype", "hidden", "inner", "deterministic", "product", "reason"),
    [
        ("torch", CPU, BF16, 16, 8, False, "torch", LOOP + "the device is cpu"),
        ("torch", CPU, torch.float32, 16, 8, True, "torch", LOOP + "the device is cpu"),
        ("torch", CUDA, BF16, 16, 8, False, "torch", "PyTorch's grouped_mm"),
        ("torch", CUDA, BF16, 16, 8, True, "torch", "PyTorch's grouped_mm"),
        (
            "torch",
            CUDA,
            torch.float64,
            16,
            8,
            False,
            "torch",
            LOOP + "it multiplies bfloat16",
        ),
        ("triton", CUDA, BF16, 16, 8, False, "both", "a kernel of ours; PyTorch's grouped_mm from 128 rows of each on"),
        ("triton", CUDA, BF16, 16, 8, True, "triton", "a kernel of ours: deterministic is on"),
        ("triton", CUDA, torch.float16, 16, 8, False, "triton", "it multiplies bfloat16, and the dtype is float16"),
        ("triton", CUDA, BF16, 20, 8, False, "triton", "it reads multiples of 8 numbers, and rows have 20"),
        ("triton", CUDA, BF16, 16, 12, False, "triton", "it reads multiples of 8 numbers, and rows have 12"),
    ],
)
def test_which_product_runs_is_said_with_the_reason(
    backend, device, dtype, hidden, inner, deterministic, product, reason, monkeypatch
):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)  # so that no capability decides
    config = MoEConfig(experts=4, chosen=2, inner_size=inner, gated=True, shared=None)
    ops, _ = resolve(backend, device)
    ops, why = with_product(ops, hidden, config, dtype, device, deterministic=deterministic)
    assert ops.name == backend
    assert products(ops) == product
    assert reason in why


@pytest.mark.parametrize(("capability", "product"), [((8, 0), "triton"), ((9, 0), "both"), ((12, 0), "triton")])
def test_a_gpu_without_the_grouped_product_runs_ours(capability, product, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda device: capability)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda device: "a GPU")
    monkeypatch.setattr("statewise.ops.tuning.check", lambda device: None)
    config = MoEConfig(experts=4, chosen=2, inner_size=8, gated=True, shared=None)
    ops, why = with_product(resolve("triton", CUDA)[0], 16, config, BF16, CUDA, deterministic=False)
    assert products(ops) == product
    assert why.endswith("of each on" if product == "both" else f"and the device has {capability[0]}.{capability[1]}")


def test_long_groups_go_to_pytorch_and_short_ones_to_ours(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    ran = []
    ops, _ = resolve("triton", CUDA)
    ops = replace(ops, grouped_linear=lambda rows, weight, ends, backend="triton": ran.append(backend))
    config = MoEConfig(experts=4, chosen=2, inner_size=8, gated=True, shared=None)
    ops, _ = with_product(ops, 16, config, BF16, CUDA, deterministic=False)
    for count in (1, 511, 512, 4096):
        ops.grouped_linear(torch.empty(count, 16), torch.empty(4, 8, 16), torch.empty(4))
    assert ran == ["triton", "triton", "torch", "torch"]


@pytest.mark.gpu
@pytest.mark.skipif(not HAS_GPU, reason="needs a GPU")
@pytest.mark.parametrize("count", [1, 5, 128, 2100])
@pytest.mark.parametrize("experts", [8, 72])
@pytest.mark.parametrize("deterministic", [False, True])
def test_on_a_gpu_it_equals_float64_and_a_graph_holds_it(count, experts, deterministic):
    """The error is under twice that of the same in bfloat16 on a CPU, with the routing of the GPU's scores.

    deterministic: by our product and not PyTorch's.
    """
    exact = mixture(experts=experts, chosen=5, hidden=256, inner=64)
    on_gpu, on_cpu = (
        mixture(experts=experts, chosen=5, hidden=256, inner=64, backend=backend).bfloat16()
        for backend in ("triton", "torch")
    )
    exact.load_state_dict({name: weight.double() for name, weight in on_cpu.state_dict().items()})
    on_gpu = on_gpu.cuda()
    sizes = (256, on_gpu.config, torch.bfloat16, CUDA)
    on_gpu.experts.ops, _ = with_product(on_gpu.ops, *sizes, deterministic=deterministic)
    x = rows(count, 256).bfloat16()
    held = torch.zeros(count, 256, dtype=torch.bfloat16, device=CUDA)
    with torch.inference_mode():
        held.copy_(rows(count, 256, seed=2))
        on_gpu(held)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = on_gpu(held)
        held.copy_(x)  # other experts than at capture
        graph.replay()
        first = y.clone()
        graph.replay()
    assert torch.equal(first, y)
    chosen = [layer.router(each)[1].sort().values.cpu() for layer, each in ((on_gpu, held), (exact, x.double()))]
    same = (chosen[0] == chosen[1]).all(-1)  # scores that differ in their last bits may choose another expert
    assert same.float().mean() > 0.9
    expected = exact(x.double())[same]
    floor = (on_cpu(x)[same].double() - expected).square().mean().sqrt()
    assert (first.cpu().double()[same] - expected).square().mean().sqrt() < 2 * floor + 1e-3
