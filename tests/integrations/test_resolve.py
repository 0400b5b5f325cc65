"""Which backend runs and why, and what is refused: no GPU is needed to say so."""

import sys
from dataclasses import replace

import pytest
import torch

from statewise.config import MambaConfig
from statewise.errors import BackendError
from statewise.ops.backend import Needs, obstacles, resolve
from tests.integrations import fake_flashinfer

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
MIXER = MambaConfig(
    heads=8,
    head_dim=64,
    state_size=128,
    groups=2,
    conv_width=4,
    dt_limit=(0.0, float("inf")),
    proj_bias=False,
    conv_bias=True,
)
NEEDS = Needs(mamba=MIXER, dtype=torch.bfloat16, state_dtype=torch.float32, checkpoint_interval=16, max_batch=8)


@pytest.fixture(autouse=True)
def _as_users_run(monkeypatch):
    pytest.importorskip("triton", reason="Triton is not installed")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    fake_flashinfer.remove(monkeypatch)


@pytest.fixture
def gpu(monkeypatch):
    """An NVIDIA GPU, whether one is here or not."""
    return lambda *capability: pretend(monkeypatch, capability)


def pretend(monkeypatch, capability):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA Test")
    monkeypatch.setattr(torch.version, "hip", None)


def refusal(name, device=CUDA, needs=NEEDS) -> str:
    with pytest.raises(BackendError) as error:
        resolve(name, device, needs)
    return str(error.value)


def test_auto_on_a_cpu_is_torch():
    chosen, reason = resolve("auto", CPU)
    assert (chosen.name, reason) == ("torch", "torch: the device is cpu, and triton needs an NVIDIA GPU")


def test_auto_on_a_cpu_is_torch_with_the_interpreter_too(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert resolve("auto", CPU)[0].name == "torch"
    assert resolve("triton", CPU)[0].name == "triton"


def test_auto_on_an_nvidia_gpu_is_triton(gpu):
    gpu(9, 0)
    chosen, reason = resolve("auto", CUDA, NEEDS)
    assert (chosen.name, reason) == ("triton", "triton: the device is NVIDIA Test, compute capability 9.0")
    assert chosen.checkpointed_step.keywords == {"backend": "triton"}


def test_a_plan_for_another_machine_says_what_it_did_not_check(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    chosen, reason = resolve("auto", CUDA)
    assert chosen.name == "triton"
    assert reason == "triton: the device is an NVIDIA GPU (none is here: its compute capability is not checked)"


@pytest.mark.parametrize("double", ["dtype", "state_dtype"])
def test_auto_in_float64_is_torch(gpu, double):
    gpu(9, 0)
    needs = replace(NEEDS, **{double: torch.float64})
    chosen, reason = resolve("auto", CUDA, needs)
    assert chosen.name == "torch"
    assert reason == "torch: triton cannot run, its kernels sum in float32 and float64 is asked for"
    assert "'triton' cannot run here: its kernels sum in float32 and float64" in refusal("triton", needs=needs)


def test_an_old_gpu_runs_torch(gpu):
    gpu(7, 5)
    chosen, reason = resolve("auto", CUDA, NEEDS)
    why = "it needs compute capability 8.0 and the device is NVIDIA Test, compute capability 7.5"
    assert (chosen.name, reason) == ("torch", f"torch: triton cannot run, {why}")
    assert f"'triton' cannot run here: {why}; possible: auto; torch" in refusal("triton")


def test_a_gpu_without_triton_runs_torch(gpu, monkeypatch):
    gpu(9, 0)
    monkeypatch.setitem(sys.modules, "triton", None)
    assert resolve("auto", CUDA, NEEDS)[1] == "torch: triton cannot run, the package triton is not installed"
    fake_flashinfer.install(monkeypatch)
    assert "cannot run here: the rest runs on triton, the package triton is not installed" in refusal("flashinfer")


def test_a_gpu_of_another_maker_runs_torch(gpu, monkeypatch):
    gpu(9, 4)
    monkeypatch.setattr(torch.version, "hip", "7.0")
    assert "it needs an NVIDIA GPU and this PyTorch is built for AMD's" in resolve("auto", CUDA)[1]


def test_a_refusal_lists_what_can_run_and_why_the_rest_cannot():
    assert refusal("mystery", CPU) == (
        "backend 'mystery' cannot run here; possible: auto; torch (vectorised PyTorch, any device); "
        "reference (loops over time, for checking; very slow); not possible: "
        "triton (it needs an NVIDIA GPU and the device is cpu); "
        "flashinfer (it needs an NVIDIA GPU and the device is cpu)"
    )


def test_flashinfer_is_there_by_name(gpu, monkeypatch):
    gpu(9, 0)
    calls = fake_flashinfer.install(monkeypatch)
    chosen, reason = resolve("flashinfer", CUDA, NEEDS)
    assert chosen.name == "flashinfer"
    assert reason == (
        "flashinfer: asked for; 0.7.4 runs the decode step (compiled for minutes when a shape is new), "
        "Triton kernels the rest"
    )
    for op in ("ssd_prefill", "causal_conv_prefill", "causal_conv_step", "gated_rms_norm", "advance_trackers"):
        assert getattr(chosen, op).keywords == {"backend": "triton"}
    assert calls == []


def test_flashinfer_is_imported_only_when_asked_for(gpu, monkeypatch):
    gpu(9, 0)
    fake_flashinfer.install(monkeypatch, checkpointing_ssu=fake_flashinfer.old_checkpointing_ssu)
    assert obstacles(CUDA, NEEDS)["flashinfer"] is None  # its signature is not looked at
    assert resolve("auto", CUDA, NEEDS)[0].name == "triton"


def test_flashinfer_that_is_not_installed():
    message = refusal("flashinfer")
    assert "cannot run here: the package flashinfer is not installed: pip install 'statewise[flashinfer]'" in message
    assert "possible: auto; torch (vectorised PyTorch, any device); triton (Triton kernels, NVIDIA GPUs)" in message


def test_flashinfer_without_a_gpu(monkeypatch):
    fake_flashinfer.install(monkeypatch)
    assert "cannot run here: it needs an NVIDIA GPU and the device is cpu" in refusal("flashinfer", CPU)


def test_the_old_flashinfer_of_the_same_name(monkeypatch):
    old = fake_flashinfer.old_checkpointing_ssu
    fake_flashinfer.install(monkeypatch, version="0.6.15", checkpointing_ssu=old)
    message = refusal("flashinfer")
    assert (
        "flashinfer 0.6.15 has the checkpointing_ssu of 0.6, with two buffers (old_x, cache_buf_idx) in place of "
        "rings; 0.7 or later is needed: pip install 'statewise[flashinfer]'"
    ) in message
    assert "flashinfer (" not in message.split("possible: ")[1]


def test_a_flashinfer_without_the_function(monkeypatch):
    fake_flashinfer.install(monkeypatch, version="0.6.8")
    monkeypatch.delattr(sys.modules["flashinfer.mamba"], "checkpointing_ssu")
    assert "flashinfer 0.6.8 has no checkpointing_ssu; 0.7 or later is needed" in refusal("flashinfer")


def test_a_flashinfer_with_other_arguments(monkeypatch):
    def renamed(state, x, dt, A, B, C, D, z, dt_bias, dt_softplus, state_batch_indices, out):
        raise AssertionError("must not be called")

    fake_flashinfer.install(monkeypatch, version="0.9.0", selective_state_update=renamed)
    assert (
        "flashinfer 0.9.0: selective_state_update has no argument dst_state_batch_indices, pad_slot_id, algorithm; "
        "0.7.4 has"
    ) in refusal("flashinfer")


def test_a_flashinfer_that_cannot_be_imported(monkeypatch):
    fake_flashinfer.install(monkeypatch)
    monkeypatch.setitem(sys.modules, "flashinfer.mamba", None)
    assert "cannot run here: flashinfer cannot be imported: " in refusal("flashinfer")


@pytest.mark.parametrize(
    ("mixer", "needs", "message"),
    [
        ({}, {"checkpoint_interval": 17}, "checkpoint_interval is 17, it takes 1 to 16"),
        ({"head_dim": 80}, {}, "the head dim is 80, it takes 64"),
        ({"state_size": 96}, {}, "the state size is 96, it takes multiples of 64"),
        ({"dt_limit": (0.001, 0.1)}, {}, r"the model clamps dt to (0.001, 0.1), it does not clamp"),
        ({}, {"dtype": torch.float16}, "activations are torch.float16, it takes torch.bfloat16"),
        ({}, {"stochastic_rounding": True}, "states are to be rounded stochastically, it rounds them to nearest"),
        (
            {},
            {"state_dtype": torch.float64},
            "the state is torch.float64, it takes torch.float32, torch.float16, torch.b",
        ),
        (
            {"head_dim": 32},
            {"dtype": torch.float32},
            "the head dim is 32, it takes 64; activations are torch.float32, it takes torch.bfloat16;",
        ),
    ],
)
def test_what_flashinfer_cannot_run_is_told_at_start(monkeypatch, mixer, needs, message):
    fake_flashinfer.install(monkeypatch)
    asked = replace(NEEDS, mamba=replace(MIXER, **mixer), **needs)
    assert message in refusal("flashinfer", needs=asked)


def test_flashinfer_needs_a_shape(monkeypatch):
    fake_flashinfer.install(monkeypatch)
    assert "it takes some shapes only and none is given" in refusal("flashinfer", needs=None)
