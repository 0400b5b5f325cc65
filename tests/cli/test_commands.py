"""The commands do what they say: same tokens in both modes, predicted writes, a stream that equals the text."""

import json
import os
from pathlib import Path

import pytest

from statewise.cli import COMMANDS, main
from statewise.demo.questions import word_problems
from statewise.engine.llm import LLM
from statewise.engine.request import SamplingParams
from statewise.eval.questions import write_questions
from statewise.eval.scoring import extract_strict


def test_demo_prints_a_table_that_says_the_answers_are_the_same(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    report_file = tmp_path / "report.json"
    assert main(["demo", "--limit", "6", "--json", str(report_file)]) == 0
    captured = capsys.readouterr()
    assert captured.out.count("6/6") == 4
    assert captured.out.count("plain: right") == captured.out.count("checkpointed 16: right") == 2
    assert "as the rule predicts" in captured.out
    assert max(map(len, captured.out.partition("One state write")[0].splitlines())) <= 80
    assert "…" not in captured.out
    assert captured.err.count("slots     50 x") == 2
    plain, checkpointed = json.loads(report_file.read_text())["modes"]
    assert plain["state_writes"] == plain["predicted_state_writes"] == plain["counters"]["decode_rows"]
    assert checkpointed["state_writes"] == checkpointed["predicted_state_writes"] < plain["state_writes"] / 16
    assert plain["is_right"] == checkpointed["is_right"] == [True] * plain["right"] == [True] * 6
    assert checkpointed["state_bytes_per_token"] < plain["state_bytes_per_token"]
    assert plain["answers"] == checkpointed["answers"]
    for number in (f"{plain['state_writes']:,}", f"{checkpointed['state_writes']:,}"):
        assert number in captured.out


def test_demo_keeps_its_model_and_questions_for_other_programs(capsys, tmp_path):
    assert main(["demo", "--limit", "2", "--max-tokens", "4", "--keep", str(tmp_path / "m"), "--json"]) == 0
    first = json.loads(capsys.readouterr().out)
    questions = str(tmp_path / "m" / "questions.jsonl")
    flags = ["--questions", questions, "--max-tokens", "4", "--json", "--concurrency", "1"]
    for model in (str(tmp_path / "m"), "demo"):
        assert main(["compare", model, *flags]) == 0
        second = json.loads(capsys.readouterr().out)
        assert [m["answers"] for m in first["modes"]] == [m["answers"] for m in second["modes"]]


def test_demo_is_the_name_of_the_shipped_model(capsys, tmp_path, monkeypatch):
    """Wherever commands run: a folder called demo in the working directory is ./demo."""
    (tmp_path / "demo").mkdir()
    monkeypatch.chdir(tmp_path)
    flags = ["--temperature", "0", "--max-tokens", "99", "--stop", "Question:", "-p", word_problems(1)[0].prompt]
    assert main(["generate", "demo", "-q", *flags]) == 0
    assert extract_strict(capsys.readouterr().out) == extract_strict(word_problems(1)[0].answer)
    assert main(["generate", "./demo", *flags]) == 2
    assert "demo has no config.json" in capsys.readouterr().err


def test_shown_answers_obey_no_control_characters(capsys, demo_folder, tmp_path):
    path = tmp_path / "q.jsonl"
    write_questions(path, [type(word_problems(1)[0])("\x1b[31mHow [bold]many?", "#### 1")])
    assert main(["compare", str(demo_folder), "--questions", str(path), "--max-tokens", "8", "--show", "3"]) == 0
    out = capsys.readouterr().out
    assert "Question 1: \\x1b[31mHow [bold]many?" in out
    assert "right" not in out


def test_compare_goes_on_past_a_question_that_does_not_fit(capsys, demo_folder, tmp_path):
    questions = word_problems(3)
    path = tmp_path / "q.jsonl"
    write_questions(path, [questions[0], type(questions[0])("x" * 5000, "#### 1"), questions[1]])
    assert main(["compare", str(demo_folder), "--questions", str(path), "--max-tokens", "4"]) == 0
    out = capsys.readouterr().out
    assert "1 questions could not be served; question 2: the prompt has" in out
    assert "2/2" in out


def test_both_modes_get_what_both_can_have(capsys, demo_folder, tmp_path):
    """A budget in which plain alone would have a longer context: no answer may end early in one mode only."""
    path = tmp_path / "q.jsonl"
    write_questions(path, [type(word_problems(1)[0])("Hi", "#### 1")])
    flags = ["--questions", str(path), "--memory", "520KiB", "--max-tokens", "30"]
    assert main(["compare", str(demo_folder), *flags]) == 0
    captured = capsys.readouterr()
    assert "1/1" in captured.out
    assert captured.err.count("context   32 tokens a request") == 2


def test_generate_streams_what_the_api_returns(capsys, demo_folder):
    flags = ["--temperature", "0.7", "--seed", "5", "--max-tokens", "30"]
    assert main(["generate", str(demo_folder), "-p", "Two and two", *flags]) == 0
    captured = capsys.readouterr()
    params = SamplingParams(temperature=0.7, seed=5, max_tokens=30)
    [output] = LLM(demo_folder, quiet=True).generate("Two and two", params)
    assert captured.out == output.text + "\n"
    assert "backend   torch" in captured.err


def test_info_needs_no_weights(capsys, broken):
    (broken / "model.safetensors").unlink()
    (broken / "tokenizer.json").unlink()
    assert main(["info", str(broken), "--memory", "8MiB", "--state-dtype", "bfloat16"]) == 0
    out = capsys.readouterr().out
    assert "M-M*-M-M*-M-" in out
    assert "in bfloat16, written once in 16 tokens" in out
    assert "warning        max_batch is 64, but there are" in out
    assert "a token and request; the plain step moves" in out


def test_info_says_how_many_requests_fit(capsys, demo_folder):
    flags = ["--memory", "4MiB", "--max-batch", "3", "--typical-length", "1000"]
    assert main(["info", str(demo_folder), *flags]) == 0
    table = capsys.readouterr().out.partition("tokens a request")[2].partition("tokens a request")[2].splitlines()
    assert [line.split() for line in table[1:6]] == [
        ["512", "2", "state", "slots", "4"],
        ["1000", "2", "state", "slots", "2"],
        ["2048", "1", "KV", "blocks", "1"],
        ["4096", "0", "context", "of", "3120", "0"],
        ["at", "most:", "with", "--typical-length", "set", "to", "the", "tokens,", "and", "any", "--max-batch"],
    ]


def test_generate_takes_biases(capsys, demo_folder):
    flags = ["--temperature", "0", "--max-tokens", "3", "--logit-bias", "65=100", "--logit-bias", "66=-1.5"]
    assert main(["generate", str(demo_folder), "-q", "-p", "Two", *flags]) == 0
    assert capsys.readouterr().out == "AAA\n"


EVERY = [
    *sorted(COMMANDS.keys() - {"bench", "eval"}),
    *(f"bench {what}" for what in ("op", "mixer", "prefill", "decode")),
    *(f"eval {what}" for what in ("gsm8k", "word-problems", "drift")),
]


@pytest.mark.parametrize("command", EVERY)
def test_every_command_has_help(capsys, command):
    with pytest.raises(SystemExit, match="0"):
        main([*command.split(), "--help"])
    out = capsys.readouterr().out
    assert "--checkpoint-interval" in out
    assert "None" not in out


@pytest.mark.gsm8k
def test_gsm8k_test_questions(capsys, demo_folder):
    """A few of GSM8K's own questions, every answer the same in both modes."""
    path = Path(os.environ.get("GSM8K_DIR", "")) / "test.jsonl"
    if not path.is_file():
        pytest.skip("GSM8K's files are not here: set GSM8K_DIR to the folder that holds test.jsonl")
    flags = ["--limit", "12", "--max-tokens", "24", "--json"]
    assert main(["compare", str(demo_folder), "--questions", str(path), *flags]) == 0
    modes = json.loads(capsys.readouterr().out)["modes"]
    assert modes[1]["identical"] == 12
