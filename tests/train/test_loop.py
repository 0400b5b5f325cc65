"""The loop: the loss falls, a run repeats itself and goes on where it was cut, its folder answers questions."""

import json
import math
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from statewise.engine.llm import LLM
from statewise.errors import ConfigError, DataError
from tests.train.conftest import TINY, StartRun
from train.__main__ import finish, main
from train.evaluate import problems, score
from train.loop import Trainer
from train.optimizer import learning_rate, make_optimizer
from train.presets import PRESETS
from train.report import Log

SHORT = replace(TINY, steps=12, evaluate_every=100)


def losses(trainer: Trainer) -> list[float]:
    lines = [json.loads(line) for line in trainer.log.path.read_text().splitlines()]
    return [line["loss"] for line in lines if "loss" in line]


def test_the_loss_falls_and_the_log_says_how(start: StartRun) -> None:
    trainer = start("run")
    assert trainer.run()
    seen = losses(trainer)
    assert len(seen) == TINY.steps
    assert abs(seen[0] - math.log(512)) < 0.7
    assert sum(seen[-5:]) / 5 < 0.6 * seen[0]
    [look] = [line for line in trainer.log.lines if "exact_match" in line]
    assert look["step"] == 20
    assert 0 <= look["names_right"] <= 1


def test_a_run_that_was_cut_goes_on_as_if_it_had_not_been(start: StartRun) -> None:
    whole = start("whole", SHORT)
    assert whole.run()
    cut = start("cut", SHORT, stop_after=1e-9)  # stops at its first log line
    assert not cut.run()
    assert cut.progress.step == 1
    cut = start("cut", SHORT, checkpoint_every=1e-9)
    for _ in range(3):
        assert not cut.is_done
        cut = start("cut", SHORT, stop_after=1e-9)
        cut.run()
    assert start("cut", SHORT).run()
    assert losses(start("cut", SHORT)) == losses(whole)
    for name, weight in whole.model.state_dict().items():
        assert torch.equal(start("cut", SHORT).model.state_dict()[name], weight), name


def test_lines_behind_the_last_checkpoint_are_dropped(tmp_path: Path) -> None:
    log = Log(tmp_path / "log.jsonl", 0)
    for step in (1, 2, 3):
        log.add(step=step, loss=1.0)
    with log.path.open("a") as file:
        file.write('{"step": 4, "lo')  # the machine went off here
    assert [line["step"] for line in Log(tmp_path / "log.jsonl", 2).lines] == [1, 2]
    assert log.path.read_text().count("\n") == 2


def test_a_seed_repeats_a_run_and_another_does_not(start: StartRun) -> None:
    first, again, other = start("a", SHORT), start("b", SHORT), start("c", replace(SHORT, seed=1))
    for trainer in (first, again, other):
        trainer.run()
    assert losses(first) == losses(again)
    assert losses(first) != losses(other)


def test_a_compiled_run_trains_as_another_does(start: StartRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    said: list[str] = []
    compiled, plain = start("a", SHORT, compile=True, say=said.append), start("b", SHORT)
    with torch._dynamo.config.patch(error_on_recompile=True):  # the clock would pay for it
        assert compiled.run()
    assert plain.run()
    assert sum("compiled in" in line for line in said) == 1
    assert losses(compiled) == pytest.approx(losses(plain), rel=1e-4)


def test_a_folder_of_another_preset_is_refused(start: StartRun) -> None:
    start("run", SHORT).run()
    config = start("run", SHORT).model_folder / "config.json"
    before = config.read_text()
    other = replace(SHORT, sizes=replace(SHORT.sizes, hidden_size=64))
    for preset in (replace(SHORT, seed=2), other):
        with pytest.raises(ConfigError, match="another preset"):
            start("run", preset)
    assert config.read_text() == before  # else the weights beside it would be lost


@pytest.mark.parametrize("content", [b"", b"notes", b"PK\x03\x04"])
def test_a_checkpoint_that_cannot_be_read_is_a_line(start: StartRun, content: bytes) -> None:
    start("run", SHORT).checkpoint.write_bytes(content)
    with pytest.raises(ConfigError, match=r"checkpoint\.pt cannot be read"):
        start("run", SHORT)


@pytest.mark.parametrize("line", ["notes", "5", '{"loss": 1}', '{"step": "a"}'])
def test_a_log_that_is_none_is_a_line(tmp_path: Path, line: str) -> None:
    log = Log(tmp_path / "log.jsonl", 0)
    log.add(step=1, loss=1.0)
    log.path.write_text(log.path.read_text() + line + "\n")
    before = log.path.read_text()
    with pytest.raises(DataError, match=r"log\.jsonl line 2 is"):
        Log(log.path, 5)
    assert log.path.read_text() == before


def test_minutes_decide_the_steps_once(start: StartRun) -> None:
    trainer = start("run", SHORT, minutes=1e-9)
    assert trainer.run()
    assert trainer.progress.total == trainer.progress.step == SHORT.warmup + 1
    assert start("run", SHORT, minutes=5).is_done
    with pytest.raises(ConfigError, match="warm-up"):
        start("other", replace(SHORT, warmup=2), minutes=1)


def test_a_loss_that_is_no_number_stops_the_run(start: StartRun) -> None:
    trainer = start("run", SHORT)
    trainer.model.norm_f.weight.data.fill_(torch.nan)
    with pytest.raises(FloatingPointError, match="step 1"):
        trainer.run()
    assert not trainer.checkpoint.exists()


def test_only_matrices_and_convolutions_decay(start: StartRun) -> None:
    model = start("run").model
    names = {id(weight): name for name, weight in model.named_parameters()}
    decayed, kept = make_optimizer(model, TINY).param_groups
    assert decayed["weight_decay"] == TINY.weight_decay
    assert kept["weight_decay"] == 0
    assert all(names[id(weight)].endswith("weight") and "norm" not in names[id(weight)] for weight in decayed["params"])
    leaves = {names[id(weight)].rpartition(".")[2] for weight in kept["params"]}
    assert leaves == {"A_log", "D", "dt_bias", "bias", "weight"}
    assert len(decayed["params"]) + len(kept["params"]) == len(names)


def test_the_rate_warms_up_and_falls_to_zero() -> None:
    preset = replace(TINY, learning_rate=1.0, warmup=4)
    rates = [learning_rate(step, 24, preset) for step in range(25)]
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    assert rates[4:] == sorted(rates[4:], reverse=True)
    assert rates[4] == 1.0
    assert rates[14] == pytest.approx(0.5)
    assert rates[24] == 0


def test_the_finished_folder_answers_and_its_card_says_how_well(start: StartRun) -> None:
    trainer = start("run", SHORT)
    trainer.run()
    scores = finish(trainer, "tiny")
    folder = trainer.model_folder
    card = (folder / "README.md").read_text()
    assert "$" not in card.replace("$N", "")
    for one in scores:
        names = f"{one.names_right} of {one.named}"
        assert f"| {one.name} | {one.right} of {one.asked} | {one.share:.1%} | {names} |" in card
    assert "python -m train --preset tiny --device cpu --workers 0 --steps 12 --seed 0\n" in card
    assert f"at the\nend {losses(trainer)[-1]:.1e} nats a token" in card
    results = json.loads((trainer.options.folder / "scores.json").read_text())
    assert [one["asked"] for one in results["scores"]] == [4, 4, 4, 4]
    assert [one["names"]["asked"] for one in results["scores"]] == [one.named for one in scores]
    assert (trainer.options.folder / "loss.png").read_bytes().startswith(b"\x89PNG")
    asked = problems(TINY, "held-out", 6)
    assert {kind for kind, _ in asked} == {"single_purchase"}
    assert score(LLM(folder, quiet=True), "again", asked).asked == 6


def test_the_command_line_refuses_what_cannot_be(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for flags, said in (
        (["--steps", "0"], "steps is 0"),
        (["--kinds", "ages,sums"], "sums"),
        (["--minutes", "-1"], "minutes is -1, expected more than 0"),
        (["--minutes", "inf"], "minutes is inf, expected more than 0, and a number"),
        (["--minutes", "1", "--steps", "9"], "minutes and steps both decide how long the run is"),
        (["--seed", str(2**70)], f"seed is {2**70}, expected 0 to"),
        (["--stop-after", "0"], "stop_after is 0, expected more than 0"),
        (["--workers", "-1"], "workers is -1, expected at least 0"),
        (["--backend", "none"], "backend 'none' cannot run here"),
        (["--gsm8k", str(tmp_path / "none")], "which is no folder"),
        (["--out", "/dev/null/x"], "/dev/null/x cannot be written: Not a directory"),
        *([] if torch.cuda.is_available() else [(["--device", "cuda"], "no GPU")]),
    ):
        assert main(["--preset", "tiny", "--out", str(tmp_path / "x"), *flags]) == 2
        captured = capsys.readouterr()
        assert said in captured.err
        assert captured.out == ""  # nothing was trained


def test_presets_evaluate_at_log_lines() -> None:
    with pytest.raises(ConfigError, match="multiple of 100"):
        replace(PRESETS["h200"], evaluate_every=30)
