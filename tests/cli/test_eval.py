"""`statewise eval`: scores that are right, results that can be repeated, runs that can be killed."""

import json
import os
import signal
import subprocess
import sys
import time
import types

import pytest

from statewise.cli import main
from statewise.demo.questions import word_problems
from statewise.engine.llm import LLM, RequestOutput
from statewise.engine.text import load_tokenizer
from statewise.eval import run as eval_run
from statewise.eval.prompts import STOP, few_shot_prompts
from statewise.eval.provenance import hash_of, source_hash
from statewise.eval.questions import Question, read_questions, write_questions
from statewise.eval.run import special_stops

DOUBLE = ["--dtype", "float64", "--state-dtype", "float64"]


@pytest.fixture
def data(tmp_path, monkeypatch):
    """A folder like GSM8K's: eight questions, six examples."""
    monkeypatch.delenv("GSM8K_DIR", raising=False)
    folder = tmp_path / "data"
    folder.mkdir()
    write_questions(folder / "test.jsonl", [Question(f"{i} + 1?", f"Sum.\n#### {i + 1}") for i in range(8)])
    write_questions(folder / "train.jsonl", [Question(f"{i} + 2?", f"#### {i + 2}") for i in range(6)])
    return folder


@pytest.fixture
def scholar(monkeypatch):
    """In place of the model: right in both modes, but for some questions in one mode or the other.

    Question 0 is wrong in plain, 1 and 2 in checkpointed, 3 in both; 4 is right for the lenient filter alone; 5 is
    refused by both.
    """
    asked = []

    class Scholar:
        def __init__(self, model, config, quiet):
            self.plain = config.checkpoint_interval == 1
            self.tokenizer = load_tokenizer(model)

        def generate(self, prompts, params, on_finish):
            asked.append((self.plain, list(prompts), params))
            for place, prompt in enumerate(prompts):
                number = int(prompt.rpartition("Question: ")[2].split(" ")[0])
                wrong = number in ((0, 3) if self.plain else (1, 2, 3))
                text = f" So.\n#### {99 if wrong else number + 1}." if number != 4 else " It is 5"
                error = "too long" if number == 5 else None
                on_finish(RequestOutput(place, (1,), (number, wrong), "" if error else text, "stop", error))

    monkeypatch.setattr(eval_run, "LLM", Scholar)
    return asked


def test_both_modes_are_scored_and_compared(capsys, demo_folder, data, scholar, tmp_path):
    out = tmp_path / "results.json"
    flags = ["--data", str(data), "--against", "plain", "--output", str(out)]
    assert main(["eval", "gsm8k", str(demo_folder), *flags]) == 0
    results = json.loads(out.read_text())
    plain, other = results["scores"]["plain"], results["scores"]["checkpointed"]
    assert (plain["strict"]["right"], plain["flexible"]["right"], plain["strict"]["total"]) == (4, 5, 8)
    assert (other["strict"]["right"], other["flexible"]["right"], other["refused"]) == (3, 4, 1)
    assert plain["strict"]["stderr"] == pytest.approx((0.5 * 0.5 / 7) ** 0.5)
    comparison = results["comparison"]
    assert comparison["identical_answers"] == 4
    strict = comparison["strict"]
    assert [strict[k] for k in ("both", "only_plain", "only_checkpointed", "neither")] == [2, 2, 1, 3]
    assert strict["mcnemar_exact_p"] == 1
    assert strict["interval"][0] < strict["difference"] == -0.125 < strict["interval"][1]
    assert results["completions"][1] == {
        "index": 1,
        "expected": "2",
        "plain": {
            "text": " So.\n#### 2.",
            "tokens": 2,
            "finish_reason": "stop",
            "error": None,
            "strict": "2.",
            "flexible": "2.",
            "strict_right": True,
            "flexible_right": True,
        },
        "checkpointed": results["completions"][1]["checkpointed"],
    }
    assert not results["completions"][1]["checkpointed"]["strict_right"]
    printed = capsys.readouterr().out
    for piece in ("50.0% ± 18.9%", "62.5% ± 18.3%", "4 of 8", "-12.50%", "2 and 1", "question 6: too long"):
        assert piece in printed


def test_what_is_asked_is_what_lm_eval_asks(capsys, demo_folder, data, scholar):
    assert main(["eval", "gsm8k", str(demo_folder), "--data", str(data), "--limit", "3"]) == 0
    [(_, prompts, params)] = scholar
    questions, examples = (read_questions(data / f"{name}.jsonl") for name in ("test", "train"))
    assert prompts == few_shot_prompts(questions[:3], examples, 5, 1234)
    assert (params.temperature, params.max_tokens, params.stop) == (0, 256, STOP)


def test_word_problems_with_examples_of_the_training_split(capsys, demo_folder, tmp_path):
    flags = ["--count", "4", "--num-fewshot", "2", "--max-tokens", "3", "--concurrency", "4"]
    out = tmp_path / "w.json"
    assert main(["eval", "word-problems", str(demo_folder), *flags, "--output", str(out)]) == 0
    run = json.loads(out.read_text())["run"]
    names = {"count": 4, "seed": 0, "split": "held-out", "num_fewshot": 2, "fewshot_seed": 1234}
    assert run["source"] == names
    questions = word_problems(4)
    prompts = few_shot_prompts(questions, word_problems(1000, 1234, "train"), 2, 1234)
    assert run["prompts_sha256"] == hash_of(prompts)
    assert "word-problems, 4 questions, 2-shot" in capsys.readouterr().out


def test_the_environment_names_the_data(capsys, demo_folder, data, scholar, monkeypatch):
    monkeypatch.setenv("GSM8K_DIR", str(data))
    assert main(["eval", "gsm8k", str(demo_folder), "--num-fewshot", "0"]) == 0
    assert scholar[0][1][7] == "Question: 7 + 1?\nAnswer:"


def test_the_hub_where_datasets_is_installed(capsys, demo_folder, scholar, monkeypatch):
    monkeypatch.delenv("GSM8K_DIR", raising=False)
    hub = types.ModuleType("datasets")
    hub.load_dataset = lambda name, config, split: [
        {"question": f"{i} + 1?", "answer": f"{name} {config} {split}\n#### {i + 1}"} for i in range(7)
    ]
    monkeypatch.setitem(sys.modules, "datasets", hub)
    assert main(["eval", "gsm8k", str(demo_folder), "--limit", "2"]) == 0
    assert "Answer: openai/gsm8k main train\n#### " in scholar[0][1][0]

    def unreachable(*_, **__):
        raise ConnectionError("no route")

    hub.load_dataset = unreachable
    assert main(["eval", "gsm8k", str(demo_folder)]) == 2
    assert "openai/gsm8k cannot be loaded from the hub: ConnectionError: no route" in capsys.readouterr().err


def test_a_finished_run_is_not_asked_again(capsys, demo_folder, data, scholar, tmp_path):
    flags = ["eval", "gsm8k", str(demo_folder), "--data", str(data), "--output", str(tmp_path / "r.json")]
    assert main(flags) == 0
    first = json.loads((tmp_path / "r.json").read_text())
    assert main(flags) == 0
    second = json.loads((tmp_path / "r.json").read_text())
    assert len(scholar) == 1
    assert second["completions"] == first["completions"]
    assert (len(first["sessions"]), len(second["sessions"])) == (1, 2)
    assert "8 of 8 are there" in capsys.readouterr().err


def test_killed_and_started_again(capsys, demo_folder, tmp_path):
    """The very process is killed, twice; in the end every question has been asked once and the results are the same."""
    flags = ["--count", "14", "--max-tokens", "6", "--concurrency", "2", "--against", "plain", *DOUBLE]
    command = ["eval", "word-problems", str(demo_folder), *flags]
    lines = tmp_path / "r.completions.jsonl"
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    for least in (3, 17):
        with subprocess.Popen(
            [sys.executable, "-m", "statewise", *command, "--output", str(tmp_path / "r.json")],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment,
        ) as process:
            while process.poll() is None and _completions(lines) < least:
                time.sleep(0.01)
            process.send_signal(signal.SIGKILL)
        assert least <= _completions(lines) < 28
    before = _completions(lines)
    with lines.open("a") as file:
        file.write('{"mode": "checkpointed", "ind')
    assert main([*command, "--output", str(tmp_path / "r.json")]) == 0
    assert _completions(lines) == 28 > before
    assert main([*command, "--output", str(tmp_path / "whole.json")]) == 0
    killed, whole = (json.loads((tmp_path / name).read_text()) for name in ("r.json", "whole.json"))
    assert killed["completions"] == whole["completions"]
    assert killed["comparison"] == whole["comparison"]
    assert killed["comparison"]["identical_answers"] == 14
    assert len(killed["sessions"]) == 3


def _completions(path):
    return path.read_bytes().count(b'{"mode"') if path.exists() else 0


def test_answers_are_those_of_the_engine(capsys, demo_folder, tmp_path):
    out = tmp_path / "r.json"
    flags = ["--count", "3", "--max-tokens", "8", *DOUBLE, "--output", str(out)]
    assert main(["eval", "word-problems", str(demo_folder), *flags]) == 0
    llm = LLM(demo_folder, quiet=True, dtype="float64", state_dtype="float64")
    params = eval_run.SamplingParams(temperature=0, max_tokens=8, stop=STOP)
    expected = llm.generate([question.prompt for question in word_problems(3)], params)
    found = json.loads(out.read_text())["completions"]
    assert [one["checkpointed"]["text"] for one in found] == [output.text for output in expected]
    assert "3 answers had no room to end" in capsys.readouterr().out


def test_stop_strings_that_are_special_tokens_are_stopped_at_too(demo_folder):
    tokenizer = load_tokenizer(demo_folder)
    assert special_stops(tokenizer, ("<|eos|>", "Question:", "x", "<|pad|>")) == (257, 258)
    assert special_stops(tokenizer, STOP) == ()


def refused(capsys, *arguments):
    assert main(["eval", *map(str, arguments)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err.strip().splitlines()[-1]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--limit", "0"], "limit is 0, expected at least 1"),
        (["--limit", "9"], "limit is 9, expected at most 8, the number of questions"),
        (["--num-fewshot", "7"], "num_fewshot is 7, expected 0 to 6, the number of examples"),
        (["--num-fewshot", "-1"], "num_fewshot is -1, expected 0 to 6"),
        (["--max-tokens", "0"], "max_tokens is 0, expected at least 1"),
        (["--concurrency", "0"], "concurrency is 0, expected at least 1"),
        (["--concurrency", "5000"], "concurrency is 5000, expected at most max_batched_tokens = 2048"),
        (["--against", "plain", "--checkpoint-interval", "1"], "checkpoint_interval is 1, the plain step itself"),
        (["--output", "/dev/null/x.json"], "output is /dev/null/x.json, which cannot be written"),
        (["--output", "."], "output is ., which cannot be written: Is a directory"),
        (["--max-context", "10"], "none of 8 questions could be served; question 1: the prompt has"),
    ],
)
def test_bad_options(capsys, demo_folder, data, flags, message):
    assert message in refused(capsys, "gsm8k", demo_folder, "--data", data, *flags)


@pytest.mark.parametrize("flags", [["--count", "0"], ["--count", "10001"], ["--count", "5", "--limit", "6"]])
def test_bad_counts(capsys, demo_folder, flags):
    assert "expected" in refused(capsys, "word-problems", demo_folder, *flags)


def test_data_that_is_not_there(capsys, demo_folder, data, monkeypatch):
    assert "which is no folder" in refused(capsys, "gsm8k", demo_folder, "--data", data / "none")
    (data / "train.jsonl").unlink()
    assert "train.jsonl cannot be read" in refused(capsys, "gsm8k", demo_folder, "--data", data)
    monkeypatch.setitem(sys.modules, "datasets", None)  # as if it were not installed
    assert "install 'statewise[eval]'" in refused(capsys, "gsm8k", demo_folder)


def test_data_that_is_nested_too_deeply(capsys, demo_folder, data):
    (data / "test.jsonl").write_text("[" * 100_000)
    assert "test.jsonl line 1 is not JSON" in refused(capsys, "gsm8k", demo_folder, "--data", data)


def test_a_model_that_is_not_there(capsys, data, tmp_path):
    assert "does not exist" in refused(capsys, "gsm8k", tmp_path / "none", "--data", data)


def test_results_of_another_run(capsys, demo_folder, data, scholar, tmp_path):
    out = tmp_path / "r.json"
    start = ["gsm8k", demo_folder, "--data", data, "--output", out]
    assert main(["eval", *map(str, start)]) == 0
    capsys.readouterr()
    before = out.read_bytes()
    message = refused(capsys, *start, "--max-tokens", "7")
    assert "r.completions.jsonl is of another run: sampling.max_tokens is 256 there and 7 here" in message
    (tmp_path / "r.completions.jsonl").unlink()
    assert "r.json is of another run: sampling.max_tokens" in refused(capsys, *start, "--max-tokens", "7")
    assert out.read_bytes() == before
    for content in ("{}", '{"run": 5}', "[" * 100_000):
        out.write_text(content)
        assert "holds something else than results" in refused(capsys, *start)


def test_results_that_the_disk_does_not_take(capsys, demo_folder, data, scholar, tmp_path):
    """The completions are kept: with room again, the same command writes the results and asks nothing."""
    out = tmp_path / "r.json"
    in_the_way = tmp_path / "r.json.new"
    in_the_way.mkdir()
    start = ["gsm8k", demo_folder, "--data", data, "--output", out]
    assert "r.json cannot be written: Is a directory; the completions are kept" in refused(capsys, *start)
    in_the_way.rmdir()
    assert main(["eval", *map(str, start)]) == 0
    assert len(scholar) == 1
    assert json.loads(out.read_text())["scores"]["checkpointed"]["strict"]["total"] == 8


def test_a_run_of_another_task_is_told_by_its_task(capsys, demo_folder, data, scholar, tmp_path):
    out = tmp_path / "r.json"
    assert main(["eval", "gsm8k", str(demo_folder), "--data", str(data), "--output", str(out)]) == 0
    capsys.readouterr()
    message = refused(capsys, "gsm8k", demo_folder, "--data", data, "--output", out, "--limit", "3")
    assert "of another run: questions is 8 there and 3 here; answers_sha256 is" in message
    message = refused(capsys, "word-problems", demo_folder, "--output", out)
    assert "questions is 8 there and 1000 here; task is 'gsm8k' there and 'word-problems' here" in message


def test_output_that_is_no_file_is_left_alone(capsys, demo_folder, data, scholar, tmp_path):
    pipe = tmp_path / "r.json"
    os.mkfifo(pipe)
    message = refused(capsys, "gsm8k", demo_folder, "--data", data, "--output", pipe)
    assert "expected a file: results take its place" in message
    assert pipe.is_fifo()


def test_results_say_what_code_and_versions_made_them(capsys, demo_folder, data, scholar, tmp_path):
    out = tmp_path / "r.json"
    assert main(["eval", "gsm8k", str(demo_folder), "--data", str(data), "--output", str(out)]) == 0
    results = json.loads(out.read_text())
    assert results["run"]["versions"].keys() == {"statewise", "torch", "python", "triton", "tokenizers"}
    [session] = results["sessions"]
    assert session["source_sha256"] == source_hash()
    assert len(session["source_sha256"]) == 64


def test_another_model_in_the_same_folder(capsys, broken, data, scholar, tmp_path):
    start = ["gsm8k", broken, "--data", data, "--output", tmp_path / "r.json"]
    assert main(["eval", *map(str, start)]) == 0
    capsys.readouterr()
    weights = broken / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x01")
    assert "is of another run: model_sha256.weights is" in refused(capsys, *start)


def test_another_end_of_text_in_the_same_folder(capsys, broken, data, scholar, tmp_path):
    """`generation_config.json` may name it, and so decides the answers."""
    start = ["gsm8k", broken, "--data", data, "--output", tmp_path / "r.json"]
    assert main(["eval", *map(str, start)]) == 0
    capsys.readouterr()
    (broken / "generation_config.json").write_text('{"eos_token_id": 35}')
    assert "is of another run: model_sha256.generation_config is" in refused(capsys, *start)
