"""The shipped model: its card's score comes out again, it fits, and transformers reads it and answers the same."""

import json
from pathlib import Path

import pytest
import torch

from statewise.demo.questions import word_problems
from statewise.demo.shipped import FOLDER
from statewise.engine.llm import LLM
from statewise.engine.request import SamplingParams
from statewise.eval.prompts import MAX_TOKENS, STOP
from statewise.eval.scoring import judge
from train.evaluate import names_are_right

RESULTS = Path(__file__).parents[2] / "train" / "results" / "scores.json"
GREEDY = SamplingParams(temperature=0, max_tokens=MAX_TOKENS, stop=STOP)


@pytest.fixture(scope="module")
def llm():
    """In float32 on the CPU, as the card's scores; all questions of a sample at once."""
    return LLM(FOLDER, quiet=True, dtype="float32", max_batch=100)


def test_it_is_small_enough_to_ship():
    assert sum(file.stat().st_size for file in FOLDER.iterdir()) < 12 * 2**20


def test_a_sample_has_the_score_of_the_card(llm):
    """The first 100 of the card's 1,000 held-out problems, right within one of as many as there; so with names."""
    held_out = json.loads(RESULTS.read_text())["scores"][0]
    right_there = held_out["in_order"][:100].count("1")
    questions = word_problems(100, seed=2)
    outputs = llm.generate([question.prompt for question in questions], GREEDY)
    right = sum(judge(o.text, q.answer).strict_right for o, q in zip(outputs, questions, strict=True))
    assert abs(right - right_there) <= 1
    assert right_there > 90
    names_there = held_out["names"]["in_order"][:100]
    names = [names_are_right(o.text, q.answer) for o, q in zip(outputs, questions, strict=True)]
    assert [one is None for one in names] == [one == "-" for one in names_there]
    assert abs(names.count(True) - names_there.count("1")) <= 1
    assert names.count(True) > 0.9 * (100 - names.count(None))
    card = (FOLDER / "README.md").read_text()
    assert f"| {held_out['right']} of {held_out['asked']} | {held_out['exact_match']:.1%} |" in card
    assert f"| {held_out['names']['right']} of {held_out['names']['asked']} |" in card


def test_transformers_reads_it_and_gives_the_same_answers(llm):
    transformers = pytest.importorskip("transformers")
    theirs, info = transformers.AutoModelForCausalLM.from_pretrained(
        FOLDER, trust_remote_code=False, dtype=torch.float32, output_loading_info=True
    )
    tokenizer = transformers.AutoTokenizer.from_pretrained(FOLDER, trust_remote_code=False)
    assert not any(info.values()), info
    questions = word_problems(3)
    for question, output in zip(questions, llm.generate([q.prompt for q in questions], GREEDY), strict=True):
        prompt = tokenizer(question.prompt, return_tensors="pt")
        assert tuple(prompt.input_ids[0].tolist()) == output.prompt_token_ids
        answer = theirs.generate(**prompt, do_sample=False, max_new_tokens=MAX_TOKENS)[0, prompt.input_ids.shape[1] :]
        assert tuple(answer.tolist()) == output.token_ids
        assert tokenizer.decode(answer, skip_special_tokens=True) == output.text
