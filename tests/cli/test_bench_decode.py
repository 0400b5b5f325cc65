"""`statewise bench decode` on a CPU: what it prints, writes and refuses."""

import json

import pytest

from statewise.bench.decode import OURS, PLAIN
from statewise.cli import main

SMALL = ["--context", "20", "--tokens", "8", "--checkpoint-interval", "4", "--max-batched-tokens", "64"]
ARGUMENTS = ["bench", "decode", "--device", "cpu", "--bandwidth", "1e9", "--matrix-rate", "1e9", *SMALL]


def test_both_modes_at_each_batch_the_ceiling_first(tmp_path, capsys):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    files = [tmp_path / "decode.json", tmp_path / "decode.png"]
    options = ["--batch", "1", "3"]
    outputs = ["--json", str(files[0]), "--plot", str(files[1])]
    assert main([*ARGUMENTS, "--preset", "tiny-hybrid", *options, *outputs]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("tiny-hybrid, 4.46 MiB of weights in float32, prompts of 20 tokens")
    assert captured.out.index("ceiling: bytes of a step over 0.001 TB/s (as given)") < captured.out.index("decode, flo")
    assert "than their operations at 0.001 T/s (as given)" in captured.out
    assert " of bound " in captured.out
    assert "float32, batch 3: statewise " in captured.err
    assert files[1].read_bytes().startswith(b"\x89PNG")

    report = json.loads(files[0].read_text())
    assert report["options"]["preset"] == "tiny-hybrid"
    assert report["first_plan"]["backend"].startswith("torch")
    needed, _, budget = report["first_plan"]["caches"].partition(" of ")
    assert needed == budget
    assert (report["bandwidth"], report["bandwidth_from"]) == (1e9, "as given")
    assert (report["matrix_rate"], report["matrix_rate_from"]) == (1e9, "as given")
    assert [(row["state_dtype"], row["batch"]) for row in report["rows"]] == [("float32", 1), ("float32", 3)]
    for row in report["rows"]:
        assert row["took_turns"]
        assert row["left_out"] == {}
        assert set(row["ratios"]) == {f"{PLAIN} / {OURS}"}
        (products,) = row["products"]
        excess = max(0, products["operations"] - products["bytes"]) / 1e6
        assert (excess > 0) == (row["batch"] == 3)  # 2 operations a weight and row, 4 bytes a weight
        for name in (OURS, PLAIN):
            run, ceiling = row["runs"][name], row["ceilings"][name]
            assert ceiling["step_ms"] == pytest.approx(sum(ceiling["bytes"].values()) / 1e6)
            assert ceiling["bound_ms"] == pytest.approx(ceiling["step_ms"] + excess)
            assert run["share_of_ceiling"] == pytest.approx(ceiling["step_ms"] / run["step_ms"])
            assert run["share_of_bound"] == pytest.approx(ceiling["bound_ms"] / run["step_ms"])
            assert run["tokens_per_second"] == pytest.approx(row["batch"] / run["step_ms"] * 1e3)
            assert len(run["steps_ms"]) == 8
            assert run["step_p50_ms"] <= run["step_p99_ms"] == max(run["steps_ms"])
            assert 0 < run["first_token_p50_ms"] <= run["first_token_last_ms"]


def test_shares_and_state_dtypes(tmp_path, capsys):
    options = ["--batch", "1", "--tokens", "2", "--state-dtype", "float32", "bfloat16", "--shares"]
    file = tmp_path / "decode.json"
    assert main([*ARGUMENTS, "--preset", "tiny-mamba2", *options, "--json", str(file)]) == 0
    out = capsys.readouterr().out
    assert (
        out.index("decode, float32 state") < out.index("decode, bfloat16 state") < out.index("shares of a step, eager")
    )
    rows = json.loads(file.read_text())["rows"]
    wide, narrow = (row["ceilings"][OURS]["bytes"]["states"] for row in rows)
    assert wide == 2 * narrow
    for row in rows:
        assert list(row["shares"]) == ["mamba", "head, sampling and the rest"]
        assert sum(row["shares"].values()) == pytest.approx(1)


def test_rates_that_are_not_given_are_measured(capsys):
    arguments = ["bench", "decode", "--device", "cpu", "--preset", "tiny-mamba2", "--batch", "1", *SMALL]
    assert main([*arguments, "--dtype", "bfloat16"]) == 0
    out = capsys.readouterr().out
    assert "TB/s (measured with a copy)" in out
    assert "T/s (measured with a product in bfloat16)" in out


def test_a_checkpoint_folder(demo_folder, capsys):
    assert main([*ARGUMENTS, "--model", str(demo_folder), "--batch", "2"]) == 0
    assert "statewise plain" in capsys.readouterr().out


def test_a_batch_that_does_not_fit_is_left_out_with_the_reason(monkeypatch, capsys):
    def memory(device, weight_bytes=0):
        return 4 * 2**20 if weight_bytes else 2**40

    monkeypatch.setattr("statewise.cli.bench_decode._memory", memory)
    assert main([*ARGUMENTS, "--preset", "tiny-hybrid", "--batch", "1", "64"]) == 0
    out = capsys.readouterr().out
    assert "statewise plain" in out
    assert "left out at batch 64, float32 state: statewise: needs " in out
    assert "there is room for 3.4 MiB" in out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--preset", "nemotron"], "preset is 'nemotron', expected one of nemotron-h-8b, "),
        (["--model", "/no/such/folder"], "model folder /no/such/folder does not exist"),
        (["--preset", "tiny-hybrid", "--batch", "0"], "batch is 0, expected at least 1"),
        (["--preset", "tiny-hybrid", "--batch", "65"], "max_batched_tokens is 64, expected at least max_batch = 65"),
        (["--preset", "tiny-hybrid", "--tokens", "0"], "tokens is 0, expected at least 1"),
        (["--preset", "tiny-hybrid", "--batch", "1", "--context", "9000"], "but the model's own limit is 8192"),
        (["--preset", "tiny-hybrid", "--bandwidth", "-1"], "bandwidth is -1.0, expected bytes a second"),
        (["--preset", "tiny-hybrid", "--matrix-rate", "0"], "matrix_rate is 0.0, expected operations a second"),
        (["--preset", "tiny-hybrid", "--checkpoint-interval", "1"], "checkpoint_interval is 1, the plain step itself"),
        (["--preset", "tiny-hybrid", "--state-dtype", "int8"], "state_dtype is 'int8', expected one of float32"),
        (["--preset", "tiny-hybrid", "--device", "tpu"], "device is 'tpu', expected cpu or cuda"),
        (["--preset", "tiny-hybrid", "--vllm", "seed=1"], "vllm options are given, but vllm is no --peer"),
        (["--preset", "tiny-hybrid", "--json", "/no/such/file"], "json is /no/such/file, which cannot be written"),
    ],
)
def test_mistakes_are_told_before_any_work(options, message, capsys):
    assert main([*ARGUMENTS, *options]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err


@pytest.mark.parametrize("options", [[], ["--preset", "a", "--model", "b"], ["--preset", "a", "--peer", "none"]])
def test_flags_that_do_not_go_together(options, capsys):
    with pytest.raises(SystemExit) as ended:
        main([*ARGUMENTS, *options])
    assert ended.value.code == 2
    assert "error: " in capsys.readouterr().err


def test_weights_that_do_not_fit_are_an_error(monkeypatch, capsys):
    monkeypatch.setattr("statewise.cli.bench_decode._memory", lambda device, weight_bytes=0: 2**20)
    assert main([*ARGUMENTS, "--preset", "tiny-hybrid", "--batch", "1"]) == 2
    assert "the weights take 4.46 MiB, but cpu has 1 MiB" in capsys.readouterr().err


def test_a_peer_that_cannot_be_imported_is_an_error_at_the_start(monkeypatch, capsys):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main([*ARGUMENTS, "--preset", "tiny-hybrid", "--peer", "vllm"]) == 2
    assert "peer vllm cannot be imported here: not installed" in capsys.readouterr().err
