"""The benchmark without a GPU: the floor, the picture, and what it says where there is nothing to time."""

import json
import sys

import pytest
import torch
from triton.errors import TritonError

from statewise.bench.contenders import Contender
from statewise.bench.op import Row, check
from statewise.bench.plot import plot
from statewise.bench.workload import Shape, Workload, floor_bytes, layers_for
from statewise.cli import main
from statewise.errors import BackendError, ConfigError
from tests.cli.test_bad_input import refused
from tests.ops.kernels import HAS_GPU

ROWS = [
    Row(batch, dtype, batch * floor, {"statewise": batch * floor * 1.2, "statewise plain": batch * floor * 2.0})
    for dtype, floor in (("float32", 1.0), ("bfloat16", 0.5))
    for batch in (1, 16, 256)
]


def test_the_floor_counts_every_byte_once():
    shape = Shape(heads=2, head_dim=4, groups=1, state_size=8, window=4)
    state = 2 * 4 * 8 * 4
    row = 2 * 4 * 2 + 8 * 2 + 2 * 4  # x, B and dt of one token
    inputs_and_output = 2 * (2 * 4 * 2) + 2 * (8 * 2) + 2 * 2
    expected = state * 1.25 + 2.5 * row + row + inputs_and_output
    assert floor_bytes(shape, 3, torch.float32) == 3 * expected


def test_what_is_wrong_is_left_out_by_name_and_if_it_is_ours_nothing_is_reported():
    names = {"statewise": 0.001, "peer": 0.5, "broken peer": RuntimeError("no such kernel"), "good peer": 0.01}

    def error(contender, batch):
        if isinstance(names[contender.name], Exception):
            raise names[contender.name]
        return names[contender.name] * (batch == 16)

    found, said = [Contender(name, "plain", name == "statewise", None) for name in names], []
    assert [c.name for c in check(found, error, (1, 16), said.append)] == ["statewise", "good peer"]
    assert said == [
        "left out: peer is wrong here, relative error 5.0e-01 against float64",
        "left out: broken peer does not run here: no such kernel",
    ]
    names["statewise"] = 0.04
    with pytest.raises(BackendError, match="statewise: wrong or not able to run on this GPU, so nothing is reported"):
        check(found, error, (1, 16), said.append)


@pytest.mark.parametrize("problem", [AssertionError(), TritonError("out of resource: registers\nand more")])
def test_a_peer_may_fail_in_any_way(problem):
    def error(contender, batch):
        raise problem

    said = []
    assert check([Contender("peer", "plain", False, None)], error, (1,), said.append) == []
    line = str(problem).splitlines()[0] if str(problem) else "AssertionError()"
    assert said == [f"left out: peer does not run here: {line}"]


def test_the_layers_outgrow_the_cache():
    for batch in (1, 16, 1024):
        layers = layers_for(Shape(), batch, torch.bfloat16)
        assert 2 <= layers <= 64
        assert layers * batch * 128 * 64 * 128 * 2 > 120e6


def test_the_picture_is_drawn(tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    plot(ROWS, tmp_path / "bench.png", "a title")
    assert (tmp_path / "bench.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ConfigError, match="which cannot be written: No such file or directory"):
        plot(ROWS, tmp_path / "none" / "bench.png", "a title")


@pytest.fixture
def measured(monkeypatch, tmp_path):
    """A GPU on which batch 4 does not fit, and every other takes 2 us. What was measured: (batch, replays)."""
    taken = []

    def measure(found, w, floor, replays):
        if w.batch == 4:
            raise torch.OutOfMemoryError
        taken.append((w.batch, replays))
        return Row(w.batch, str(w.state_dtype), floor, {contender.name: 2.0 for contender in found})

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA Test")
    monkeypatch.setattr("statewise.bench.op.check", lambda found, *_: [c for c in found if c.ours])
    monkeypatch.setattr(Workload, "__init__", lambda w, *a: vars(w).update(batch=a[1], state_dtype=a[2]))
    monkeypatch.setattr("statewise.bench.op.measure", measure)
    return taken


@pytest.mark.parametrize(("window", "replays"), [(16, 48), (5, 50), (64, 64)])
def test_whole_windows_are_timed_and_what_does_not_fit_is_left_out(measured, capsys, tmp_path, window, replays):
    flags = ["--batch", "1", "4", "8", "--state-dtype", "float16", "--checkpoint-interval", str(window)]
    assert main(["bench", "op", *flags, "--json", str(tmp_path / "b.json")]) == 0
    assert capsys.readouterr().err == "batch 4 is left out: it does not fit in the GPU's memory\n"
    assert measured == [(1, replays), (8, replays)]
    assert [row["batch"] for row in json.loads((tmp_path / "b.json").read_text())["rows"]] == [1, 8]


def test_where_nothing_fits_there_is_an_error(measured, capsys):
    assert main(["bench", "op", "--batch", "4", "--state-dtype", "float32"]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == "statewise: error: no batch fits in the GPU's memory, so nothing was measured"


@pytest.mark.parametrize("what", ["op", "mixer"])
@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--batch", "1", "0"], "batch is 0, expected a whole number, at least 1"),
        (["--heads", "12"], "12 heads do not divide into 8 groups"),
        (["--head-dim", "-64"], "head_dim is -64, expected a whole number, at least 1"),
        (["--checkpoint-interval", "1"], "checkpoint_interval is 1, expected a whole number, 2 to 64"),
        (["--checkpoint-interval", "65"], "checkpoint_interval is 65, expected a whole number, 2 to 64"),
        (["--bandwidth", "0"], "bandwidth is 0.0, expected bytes a second"),
        (["--bandwidth", "inf"], "bandwidth is inf, expected bytes a second"),
        (["--json", "/none/b.json"], "json is /none/b.json, which cannot be written: No such file or directory"),
        (["--json", "/" + "long" * 100], "which cannot be written: File name too long"),
    ],
)
def test_mistakes_are_told_before_a_gpu_is_looked_for(capsys, what, flags, message):
    assert message in refused(capsys, "bench", what, *flags)


def test_a_picture_needs_matplotlib_and_says_so_first(capsys, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    message = refused(capsys, "bench", "op", "--plot", tmp_path / "b.png")
    assert "plot needs matplotlib: pip install 'statewise[bench]'" in message
    assert not (tmp_path / "b.png").exists()


@pytest.mark.skipif(HAS_GPU, reason="there is a GPU")
def test_without_a_gpu_there_is_nothing_to_time(capsys):
    assert main(["bench", "op"]) == 2
    assert capsys.readouterr().err == "statewise: error: bench times kernels on a CUDA GPU, and torch sees none here\n"
