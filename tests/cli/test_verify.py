"""`verify` passes what is right and names what is wrong: ops with a deliberate bug are caught, with exit code 1."""

import json
import os
from dataclasses import replace

import pytest
import torch

from statewise.cli import main
from statewise.cli import verify as command
from statewise.ops.backend import resolve
from statewise.verify.bits import replays
from statewise.verify.checks import large
from statewise.verify.target import DEFAULT, MODELS, TINY, Target, read_shape
from tests.ops.kernels import HAS_GPU

CPU = torch.device("cpu")
TORCH_OPS, _ = resolve("torch", CPU)
SMALL = ["--shape", "4,16,2,16", "--checkpoint-interval", "3", "--prefill-lengths", "1", "5", "37"]
FLAGS = ["verify", "--device", "cpu", "--drift-tokens", "40", "--batch", "1", "11", *SMALL]
FLOAT32 = ["--dtype", "float32", "--state-dtype", "float32"]
ROW_DIM = 2  # of a ring


def verify(capsys, *flags):
    code = main([*FLAGS, *flags])
    return code, capsys.readouterr().out


def test_the_torch_ops_are_good(capsys, tmp_path):
    code, out = verify(capsys, "--state-dtype", "float32", "bfloat16", "--json", str(tmp_path / "v.json"))
    assert code == 0, out
    assert "12 cases, all good, 4 skipped, on the CPU, torch" in out
    cases = json.loads((tmp_path / "v.json").read_text())["cases"]
    assert len(cases) == 16
    assert {case["state_dtype"] for case in cases} == {"torch.float32", "torch.bfloat16"}
    drift = next(case for case in cases if case["check"] == "drift" and case["state_dtype"] == "torch.bfloat16")
    assert [point[0] for point in drift["points"]] == [1, 2, 4, 8, 16, 32, 40]
    _, output, state, plain_output, plain_state = drift["points"][-1]
    assert 0 < state < plain_state
    assert 0 < output < 1.25 * plain_output


@pytest.mark.parametrize("window", [1, 3, 16])
def test_any_interval(capsys, window):
    code, out = verify(capsys, *FLOAT32, "--checkpoint-interval", str(window))
    assert code == 0, out


@pytest.mark.skipif(HAS_GPU, reason="the kernels are compiled here, not interpreted")
def test_the_kernels_in_the_interpreter(capsys):
    assert os.environ["TRITON_INTERPRET"] == "1"
    small = ["--batch", "3", "--checkpoint-interval", "2", "--prefill-lengths", "1", "5", "--drift-tokens", "4"]
    checks = ["--check", "decode", "requests", "drift"]
    code, out = verify(capsys, *FLOAT32, "--backend", "triton", *small, *checks)
    assert code == 0, out
    assert "3 cases, all good, on the CPU" in out


@pytest.mark.gpu
@pytest.mark.skipif(not HAS_GPU, reason="needs a CUDA device")
def test_the_kernels_on_this_gpu(capsys):
    code = main(["verify", "--shape", "nemotron-3-nano-30b", "--state-dtype", "bfloat16", "--drift-tokens", "200"])
    out = capsys.readouterr().out
    assert code == 0, out
    assert "cases, all good" in out


# Ops with a bug each: name -> (which op, what takes its place, checks of which at least one must fail)


def no_advance_of_one_slot(ring_start, pending, slots, **options):
    TORCH_OPS.advance_trackers(ring_start, pending, torch.where(slots == slots.max(), -1, slots), **options)


def never_wraps(ring_start, pending, slots, **options):
    """The ring's start runs on, and is clamped at the last row."""
    TORCH_OPS.advance_trackers(ring_start, pending, slots, **(options | {"ring_rows": 10**6}))
    ring_start.clamp_(max=options["ring_rows"] - 1)


def row_off_by_one(*inputs, x_ring, ring_start, pending, read_slots, **options):
    """The new row of x lands one place further."""
    rows = x_ring.shape[ROW_DIM]
    own = read_slots[read_slots >= 0]
    place = ((ring_start[own] + pending[own]) % rows).long()
    ring = {"x_ring": x_ring, "ring_start": ring_start, "pending": pending, "read_slots": read_slots}
    y = TORCH_OPS.mixer_step(*inputs, **ring, **options)
    x_ring[own, :, (place + 1) % rows] = x_ring[own, :, place]
    x_ring[own, :, place] = 0
    return y


def offset_wraps(*inputs, read_slots, **options):
    return TORCH_OPS.mixer_step(*inputs, read_slots=torch.where(read_slots > 12, read_slots - 8, read_slots), **options)


def dead_rows_are_multiplied_by_zero(*inputs, x_ring, ring_start, pending, read_slots, **options):
    y = TORCH_OPS.mixer_step(
        *inputs, x_ring=x_ring, ring_start=ring_start, pending=pending, read_slots=read_slots, **options
    )
    live = read_slots >= 0
    dead = (0 * x_ring[read_slots.clamp(min=0)].sum(dim=(1, 2, 3))).to(y.dtype)
    return torch.where(live[:, None], y + dead[:, None], y)


def wrong_in_a_large_batch(xBC, dt, z, **options):
    """Right up to 4 rows: the last head of the last row is off from there on."""
    y = TORCH_OPS.mixer_step(xBC, dt, z, **options)
    if len(y) > 4:
        y[-1, -1] *= 1.2
    return y


def writes_where_a_pad_points(*inputs, state, read_slots, **options):
    y = TORCH_OPS.mixer_step(*inputs, state=state, read_slots=read_slots, **options)
    if bool((read_slots < 0).any()):
        state[read_slots.min()] = 1.0  # slot -1 is the last one
    return y


def rounds_at_every_step(*inputs, state, read_slots, **options):
    y = TORCH_OPS.mixer_step(*inputs, state=state, read_slots=read_slots, **options)
    own = read_slots[read_slots >= 0]
    state[own] *= 1.003
    return y


def depends_on_the_order(xBC, dt, z, **options):
    y = TORCH_OPS.mixer_step(xBC, dt, z, **options)
    y[0] *= 1 + 1e-6
    return y


calls = iter(range(10**9))


def not_repeatable(xBC, dt, z, **options):
    return TORCH_OPS.mixer_step(xBC, dt, z, **options) * (1 + 1e-6 * (next(calls) % 2))


def starts_from_what_was_there(*inputs, has_initial_state, state, slots, **options):
    """A prefill that takes a fresh slot's state for its own; zeros in place of NaN, as memory often is."""
    state[slots] = state[slots].nan_to_num(0.1)
    everywhere = torch.ones_like(has_initial_state)
    return TORCH_OPS.ssd_prefill(*inputs, has_initial_state=everywhere, state=state, slots=slots, **options)


def forgets_the_window(*inputs, has_window, **options):
    return TORCH_OPS.causal_conv_prefill(*inputs, has_window=torch.zeros_like(has_window), **options)


def fails(*_, **__):
    raise RuntimeError("an illegal memory access\nat line 2")


BUGS = [
    ("advance_trackers", no_advance_of_one_slot, ["decode", "new requests", "slot moves"]),
    ("advance_trackers", never_wraps, ["decode", "new requests", "slot moves"]),
    ("mixer_step", row_off_by_one, ["decode", "new requests", "slot moves", "drift"]),
    ("mixer_step", offset_wraps, ["decode", "new requests"]),
    ("mixer_step", dead_rows_are_multiplied_by_zero, ["decode", "new requests", "slot moves", "same bits", "drift"]),
    ("mixer_step", wrong_in_a_large_batch, ["decode", "new requests", "slot moves"]),
    ("mixer_step", writes_where_a_pad_points, ["decode"]),
    ("mixer_step", rounds_at_every_step, ["decode", "drift"]),
    ("mixer_step", not_repeatable, ["same bits"]),
    ("mixer_step", fails, ["decode", "new requests", "slot moves", "same bits", "drift"]),
    ("ssd_prefill", starts_from_what_was_there, ["new requests"]),
    ("causal_conv_prefill", forgets_the_window, ["new requests"]),
]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("op", "bug", "caught"), BUGS, ids=lambda value: getattr(value, "__name__", None))
def test_a_bug_is_caught_and_named(capsys, monkeypatch, tmp_path, op, bug, caught, dtype):
    if dtype == "bfloat16" and bug is not_repeatable:
        pytest.skip("a change of 1e-6 is rounded away")
    broken = replace(TORCH_OPS, **{op: bug})
    monkeypatch.setattr(command, "resolve", lambda *_: (broken, "torch: with a bug"))
    code, out = verify(capsys, "--dtype", dtype, "--state-dtype", dtype, "--json", str(tmp_path / "v.json"))
    assert code == 1, out
    failed = {
        case["check"] for case in json.loads((tmp_path / "v.json").read_text())["cases"] if case["verdict"] == "FAILED"
    }
    assert set(caught) <= failed, out
    last = out.strip().splitlines()[-1]
    assert "cases FAILED, 2 skipped on the CPU" in last
    assert all(f"{check} at batch" in last for check in caught)


@pytest.mark.parametrize("bug", [None, depends_on_the_order])
def test_the_order_of_the_rows_changes_no_bits(capsys, monkeypatch, bug):
    ops = replace(TORCH_OPS, name="another", mixer_step=bug or TORCH_OPS.mixer_step)
    monkeypatch.setattr(command, "resolve", lambda *_: (ops, "another: of a test"))
    code, out = verify(capsys, *FLOAT32, "--shape", "tiny", "--batch", "16", "--check", "bits")
    assert code == (1 if bug else 0), out
    assert ("another order of the rows gives other bits at batch 16" in out) == bool(bug)


def test_the_batch_and_the_step_are_named(capsys, monkeypatch):
    broken = replace(TORCH_OPS, mixer_step=wrong_in_a_large_batch)
    monkeypatch.setattr(command, "resolve", lambda *_: (broken, "torch: with a bug"))
    code, out = verify(capsys, *FLOAT32, "--batch", "2", "4", "8", "--check", "decode")
    assert code == 1
    assert [" ok" in line for line in out.splitlines() if line.startswith("4,16,2,16  ")] == [True, True, False]
    assert "batch 8: 1 of 7 rows beyond the bound first at step 1" in out
    assert "1 of 3 cases FAILED on the CPU" in out


def target(ops, window=3):
    name, mamba = read_shape("4,16,2,16")
    shared = {"name": name, "mamba": mamba, "dtype": torch.float32, "state_dtype": torch.float32, "device": CPU}
    return Target(**shared, window=window, ops=ops)


class Replay:
    """In place of a CUDA graph: a step that is called again. Like a capture, it has run the step once before."""

    def __init__(self, step, keeps=False):
        self.replay = step if not keeps else lambda: None
        step()


def test_replays_are_compared_with_eager_steps():
    right = replays(target(TORCH_OPS), 5, Replay)
    assert right.verdict == "ok", right
    frozen = replays(target(TORCH_OPS), 5, lambda step: Replay(step, keeps=True))
    assert frozen.verdict == "FAILED"
    assert "outputs differ first at step 1 at batch 5; the caches differ afterwards" in frozen.note


PAST = 16 * 4 * 16 * 16  # elements, of 16 slots


def high_slots_wrap(*inputs, read_slots, **options):
    return TORCH_OPS.mixer_step(
        *inputs, read_slots=torch.where(read_slots > 16, read_slots - 16, read_slots), **options
    )


def prefill_wraps(*inputs, slots, **options):
    return TORCH_OPS.ssd_prefill(*inputs, slots=slots % 16, **options)


def test_slots_on_both_sides_of_a_mark_are_used():
    right = large(target(TORCH_OPS), past=PAST)
    assert right.verdict == "ok", right
    assert right.batch == 10  # 0, 1; 7 to 9; 15 to 17; 20 and 21
    assert right.note == "slots up to 21"


@pytest.mark.parametrize("bug", [{"mixer_step": high_slots_wrap}, {"ssd_prefill": prefill_wraps}])
def test_an_offset_that_wraps_past_a_mark_is_caught(bug):
    assert large(target(replace(TORCH_OPS, **bug)), past=PAST).verdict == "FAILED"


def test_shapes_are_named_or_given():
    assert read_shape("nemotron-h-8b")[0] == "nemotron-h-8b, nemotron-3-super-120b, codestral-mamba-7b"
    kinds = [read_shape(name)[1] for name in DEFAULT]
    assert all(kind not in kinds[:i] for i, kind in enumerate(kinds)), "no shape is checked twice"
    for name, numbers in (MODELS | TINY).items():
        _, mamba = read_shape(name)
        assert (mamba.heads, mamba.head_dim, mamba.groups, mamba.state_size) == numbers
        assert mamba.heads % mamba.groups == 0


def test_where_no_case_can_run_it_is_not_called_good(capsys):
    code, out = verify(capsys, *FLOAT32, "--check", "graph", "large")
    assert code == 1
    assert out.splitlines()[-1].startswith("nothing was verified, 2 skipped, on the CPU, torch")


def test_a_folder_gives_its_own_mixer(capsys, demo_folder):
    flags = ["--device", "cpu", *FLOAT32, "--check", "decode", "--batch", "3"]
    assert main(["verify", "--model", str(demo_folder), *flags]) == 0
    assert "8,32,2,64: NemotronHForCausalLM in" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--shape", "tin"], "shape is 'tin', expected HEADS,HEAD_DIM,GROUPS,STATE_SIZE or one of nemotron-h-8b,"),
        (["--shape", "4,16,0,16"], "shape is '4,16,0,16', expected HEADS"),
        (["--shape", "4,16,3,16"], "shape is '4,16,3,16': 4 heads do not divide into 3 groups"),
        (["--batch", "0"], "batch is 0, expected at least 1"),
        (["--checkpoint-interval", "65"], "checkpoint_interval is 65, expected 1 to 64"),
        (["--backend", "flashinfer"], "backend 'flashinfer' cannot run here"),
        (["--json", "no/such/folder/v.json"], "json is no/such/folder/v.json, which cannot be written"),
    ],
)
def test_mistakes_are_told_in_a_line(capsys, flags, message):
    assert main([*FLAGS, *flags]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""


@pytest.mark.skipif(HAS_GPU, reason="there is a GPU")
def test_without_a_gpu_it_says_what_else_can_be_done(capsys):
    assert main(["verify"]) == 2
    message = capsys.readouterr().err
    assert message.startswith("statewise: error: verify runs on a CUDA GPU, and torch sees none here; --device cpu")
    assert message.count("\n") == 1
