"""Prompts, filters and matching are those of lm-evaluation-harness, as it did them itself (lm_eval_gsm8k.json)."""

import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from statewise.errors import ConfigError
from statewise.eval.gsm8k import read_gsm8k
from statewise.eval.prompts import FEWSHOT_SEED, STOP, few_shot_prompts
from statewise.eval.provenance import hash_of
from statewise.eval.questions import Question
from statewise.eval.scoring import INVALID, extract_flexible, extract_strict, is_exact_match, judge
from statewise.eval.significance import Proportion
from tests.eval import make_lm_eval_fixture

RECORDED = json.loads(make_lm_eval_fixture.FIXTURE.read_text(encoding="utf-8"))
CASES = RECORDED["cases"]
# Of the 1,319 prompts that lm-evaluation-harness 0.4.13 built from GSM8K's own files, 5-shot, seed 1234.
GSM8K_PROMPTS = "de32066e1a03dbc77320b45297ffa7e32e920c87c18ad24e54390c404bce9d3f"


def test_every_recorded_verdict_is_ours():
    for case in CASES:
        verdict = asdict(judge(case["completion"], case["answer"]))
        assert verdict == {name: case[name] for name in verdict}, case["completion"]


def test_the_recorded_cases_can_tell_right_from_wrong():
    """Both filters are right and wrong many times, and disagree; what the issue names is among the completions."""
    kinds = {(case["strict_right"], case["flexible_right"]) for case in CASES}
    assert kinds == {(a, b) for a in (True, False) for b in (True, False)}
    said = [case["completion"] for case in CASES]
    for piece in (",", "$", "-5", "3.5", "18.", "%", "\u2212", "#### 19\n#### 18", "The answer is eighteen"):
        assert any(piece in text for text in said)
    assert make_lm_eval_fixture.cases() == [{"completion": c["completion"], "answer": c["answer"]} for c in CASES]


@pytest.mark.parametrize("by", ["strict", "flexible"])
def test_score_and_standard_error_are_the_recorded_ones(by):
    score = Proportion(sum(case[f"{by}_right"] for case in CASES), len(CASES))
    assert [score.value, score.stderr] == pytest.approx(RECORDED["scores"][by], rel=1e-12)


def test_prompts_are_the_recorded_ones():
    examples = [Question(**row) for row in RECORDED["examples"]]
    questions = [Question(f"Number {i}?", case["answer"]) for i, case in enumerate(CASES)]
    prompts = few_shot_prompts(questions, examples, 5, FEWSHOT_SEED)
    assert prompts[: len(RECORDED["prompts"])] == RECORDED["prompts"]
    assert few_shot_prompts(questions[:7], examples, 5, FEWSHOT_SEED) == prompts[:7]


def test_answers_end_where_the_task_says():
    assert RECORDED["generation"] == {"until": list(STOP), "do_sample": False, "temperature": 0.0}


def test_no_examples_is_the_question_alone():
    question = Question("Why?", "#### 1")
    assert few_shot_prompts([question], [], 0, 1) == [question.prompt]


@pytest.mark.parametrize("count", [-1, 3])
def test_more_examples_than_there_are(count):
    with pytest.raises(ConfigError, match=f"num_fewshot is {count}, expected 0 to 2, the number of examples"):
        few_shot_prompts([Question("a", "b")], [Question("c", "d")] * 2, count, 1)


def test_filters_by_hand():
    text = "First #### 1,000. then #### 7, or $-3.5%"
    assert (extract_strict(text), extract_flexible(text)) == ("1,000.", "-3.5")
    assert (extract_strict("none"), extract_flexible("none")) == (INVALID, INVALID)
    assert is_exact_match("1,000.", "so\n#### 1000")
    assert not is_exact_match("18.00", "#### 18")


@pytest.mark.gsm8k
def test_prompts_of_gsm8k_itself():
    folder = Path(os.environ.get("GSM8K_DIR", ""))
    if not (folder / "train.jsonl").is_file():
        pytest.skip("GSM8K's files are not here: set GSM8K_DIR to the folder with train.jsonl and test.jsonl")
    prompts = few_shot_prompts(read_gsm8k("test", folder), read_gsm8k("train", folder), 5, FEWSHOT_SEED)
    assert hash_of(prompts) == GSM8K_PROMPTS


@pytest.mark.skipif(not importlib.util.find_spec("lm_eval"), reason="lm_eval is not installed: statewise[eval]")
def test_the_record_is_what_lm_eval_says_now():
    done = subprocess.run(
        [sys.executable, make_lm_eval_fixture.__file__, "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
