"""Drift: states that are rounded less often stay nearer to the exact ones, and the command says what it measured."""

import json

import pytest
import torch

from statewise.cli import main
from statewise.config import EngineConfig
from statewise.eval.drift import Way, measure, measured_at, ways
from statewise.eval.drift_model import measure_model, texts_of
from statewise.ops.backend import resolve
from statewise.verify.target import Target, mixer

CPU = torch.device("cpu")
BF16, F32 = torch.bfloat16, torch.float32


def run(*options):
    return main(["eval", "drift", "--shape", "4,32,2,16", "--tokens", "150", *options])


def target(**changes):
    ops, _ = resolve("torch", CPU)
    given = {"name": "small", "mamba": mixer(8, 32, 2, 16), "dtype": F32, "state_dtype": F32, "window": 16}
    return Target(**(given | changes), device=CPU, ops=ops)


def test_points_are_spread_over_decades_and_end_at_the_last_token():
    assert measured_at(1) == [1]
    assert measured_at(120) == [1, 2, 5, 10, 20, 50, 100, 120]
    assert measured_at(100)[-2:] == [50, 100]


def test_only_16_bit_states_are_also_rounded_stochastically():
    found = ways([F32, BF16], [1, 16])
    assert found == [Way(F32, 1, False), Way(F32, 16, False)] + [
        Way(BF16, window, stochastic) for stochastic in (False, True) for window in (1, 16)
    ]
    assert found[-1].name == "bfloat16, stochastic"


def test_a_state_that_is_written_less_often_is_nearer_to_the_exact_one():
    found = ways([F32, BF16], [1, 16])
    last = {way: points[-1] for way, points in measure(target(), found, 200, 2, (1e-3, 1e-1)).items()}
    exact = [last[way] for way in found if way.state_dtype == F32]
    assert all(0 < point.state < 1e-6 and 0 < point.output < 1e-6 for point in exact)
    for stochastic in (False, True):
        plain, ours = (last[Way(BF16, window, stochastic)] for window in (1, 16))
        assert ours.state < 0.5 * plain.state
        assert 1e-4 < ours.state <= ours.worst_head < plain.worst_head < 0.1


def test_the_gain_is_larger_where_a_head_remembers_for_long():
    slow = {"mamba": mixer(4, 16, 1, 16), "window": 64}
    found = [Way(BF16, 1, False), Way(BF16, 64, False)]
    last = {way: points[-1] for way, points in measure(target(**slow), found, 600, 1, (1e-6, 1e-5)).items()}
    assert last[found[1]].state < 0.2 * last[found[0]].state


def test_the_command_prints_a_table_and_writes_what_it_measured(tmp_path, capsys):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    files = ["--json", str(tmp_path / "drift.json"), "--plot", str(tmp_path / "drift.png")]
    assert run("--state-dtype", "bfloat16", "--checkpoint-interval", "1", "16", *files) == 0
    printed = capsys.readouterr()
    assert "after 150 tokens" in printed.out
    assert "bfloat16, stochastic" in printed.out
    assert "torch: the device is cpu" in printed.err
    report = json.loads((tmp_path / "drift.json").read_text())
    assert [(way["window"], way["stochastic"]) for way in report["ways"]] == [
        (1, False),
        (16, False),
        (1, True),
        (16, True),
    ]
    assert [point["token"] for point in report["ways"][0]["drift"]] == [1, 2, 5, 10, 20, 50, 100, 150]
    assert (tmp_path / "drift.png").read_bytes().startswith(b"\x89PNG")


def test_a_model_with_states_written_less_often_is_nearer_to_the_exact_one(demo_folder):
    texts = texts_of(demo_folder, [["Two and two", "make four " * 20], ["Ten and ten", "make twenty " * 20]], 100)
    found = ways([F32, BF16], [1, 4, 16])
    with torch.inference_mode():
        drifts = measure_model(demo_folder, found, texts, EngineConfig(), lambda _: None)
    assert all([point.token for point in points] == measured_at(100) for points in drifts.values())
    last = {way: points[-1] for way, points in drifts.items()}
    for way in found[:3]:
        assert 0 < last[way].state <= last[way].worst_head < 1e-4
        assert last[way].logits < 1e-4
        assert last[way].flips == 0
    for stochastic in (False, True):
        plain, *ours = (last[Way(BF16, window, stochastic)] for window in (1, 4, 16))
        assert plain.state > ours[0].state > ours[1].state > 1e-4
        assert plain.logits > ours[1].logits > 1e-5
        assert plain.kl > ours[1].kl > 0


def test_texts_that_are_too_short_are_refused(demo_folder):
    with pytest.raises(ValueError, match="documents have 7 tokens, expected at least 8"):
        texts_of(demo_folder, [["one two three"], ["one two"]], 8)


def test_the_command_measures_the_logits_of_a_model(tmp_path, capsys):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    options = ["--tokens", "20", "--rows", "2", "--state-dtype", "bfloat16", "--checkpoint-interval", "1", "16"]
    files = ["--json", str(tmp_path / "d.json"), "--plot", str(tmp_path / "d.picture")]  # a PNG whatever its name
    assert main(["eval", "drift", "--model", "demo", *options, *files]) == 0
    printed = capsys.readouterr().out
    for title in ("relative error of the states after 20 tokens", "relative error of the logits, tokens 10 to 20"):
        assert title in printed
    report = json.loads((tmp_path / "d.json").read_text())
    assert report["ways"][0]["drift"][-1].keys() == {"token", "state", "worst_head", "logits", "kl", "flips"}
    assert (tmp_path / "d.picture").read_bytes().startswith(b"\x89PNG")
    assert main(["eval", "drift", "--model", "demo", "--dtype", "bfloat16"]) == 2
    assert "dt_range and dtype are for a mixer with random weights" in capsys.readouterr().err
    assert main(["eval", "drift", "--model", "demo", "--rows", "99"]) == 2
    assert "99 rows of 10000 tokens need 19899 problems; there are 10000" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--tokens", "0"], "tokens is 0, expected at least 1"),
        (["--rows", "0"], "rows is 0, expected at least 1"),
        (["--checkpoint-interval", "65"], "checkpoint_interval is 65, expected 1 to 64"),
        (["--dt-range", "0.1", "0.01"], "dt_range is 0.1 to 0.01, expected two positive numbers, the smaller first"),
        (["--dt-range", "0.1", "inf"], "dt_range is 0.1 to inf, expected two positive numbers"),
        (["--dt-range", "0", "1"], "dt_range is 0 to 1, expected two positive numbers"),
        (["--shape", "nemotron"], "shape is 'nemotron', expected HEADS,HEAD_DIM,GROUPS,STATE_SIZE or one of"),
        (["--json", "/nowhere/drift.json"], "json is /nowhere/drift.json, which cannot be written"),
    ],
)
def test_what_cannot_be_measured_is_said_before_it_is(options, message, capsys):
    assert run(*options) == 2
    assert message in capsys.readouterr().err


def test_a_picture_without_matplotlib_is_refused_before_anything_is_measured(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert run("--plot", str(tmp_path / "drift.png")) == 2
    captured = capsys.readouterr()
    assert "plot needs matplotlib: pip install 'statewise[bench]'" in captured.err
    assert captured.out == ""
