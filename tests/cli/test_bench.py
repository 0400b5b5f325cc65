"""The benchmark without a GPU: the floor, the picture, and what it says where there is nothing to time."""

import pytest
import torch

from statewise.bench.contenders import Contender
from statewise.bench.op import Row, check
from statewise.bench.plot import plot
from statewise.bench.workload import Shape, floor_bytes, layers_for
from statewise.cli import main
from statewise.errors import BackendError, ConfigError
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


@pytest.mark.skipif(HAS_GPU, reason="there is a GPU")
def test_without_a_gpu_there_is_nothing_to_time(capsys):
    assert main(["bench", "op"]) == 2
    assert capsys.readouterr().err == "statewise: error: bench times kernels on a CUDA GPU, and torch sees none here\n"
