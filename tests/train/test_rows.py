"""What training reads: the same tokens that a prompt has, labels on the answers alone, a batch for every step."""

from dataclasses import replace

import pytest
import torch
from tokenizers import Tokenizer

from statewise.demo.kinds import NEVER_TRAINED, TRAINED
from statewise.demo.questions import dice_of, word_problems
from statewise.errors import ConfigError
from statewise.eval.prompts import MAX_TOKENS, few_shot_prompts
from tests.train.conftest import TINY
from train.rows import NO_LABEL, Steps, chosen_kinds, encoded
from train.tokenizer import EOS_ID


def test_pieces_have_the_tokens_of_the_few_shot_prompt(tokenizer: Tokenizer) -> None:
    problems = word_problems(300)
    for i in range(0, 300, 6):
        pieces = encoded(problems[i : i + 6], tokenizer)
        tokens = [token for prompt, answer in pieces for token in prompt + answer][: -len(pieces[-1][1])]
        [prompt] = few_shot_prompts([problems[i + 5]], problems[i : i + 5], 0, 0)
        examples = "".join(f"{one.prompt} {one.answer}\n\n" for one in problems[i : i + 5])
        assert tokens == tokenizer.encode(examples + prompt).ids


def test_labels_are_the_answers_and_the_end_of_each(tokenizer: Tokenizer) -> None:
    steps = Steps(replace(TINY, length=600, kinds=()), tokenizer, EOS_ID)
    tokens, labels = steps.row(dice_of("train", 4))
    assert len(tokens) == len(labels) == 600
    text = tokenizer.decode(tokens, skip_special_tokens=False)
    problems = [part.split("\nAnswer:") for part in text.removeprefix("Question: ").split("\n\nQuestion: ")]
    assert len(problems) > 3
    asked = [label for label in labels if label != NO_LABEL]
    answers = tokenizer.decode(asked, skip_special_tokens=False).split("<|eos|>")
    whole = len(problems) - 1  # the last problem is cut
    assert answers[:whole] == [answer for _, answer in problems[:whole]]
    for place, label in enumerate(labels[:-1]):
        assert label in (NO_LABEL, EOS_ID, tokens[place + 1])


def test_a_batch_depends_on_seed_and_step_alone(tokenizer: Tokenizer) -> None:
    steps = Steps(TINY, tokenizer, EOS_ID)
    for one, other in zip(steps[7], Steps(TINY, tokenizer, EOS_ID)[7], strict=True):
        assert one.dtype == torch.int64
        assert one.shape == (TINY.rows, TINY.length)
        assert torch.equal(one, other)
    assert not torch.equal(steps[7][0], steps[8][0])
    assert not torch.equal(steps[7][0], Steps(replace(TINY, seed=1), tokenizer, EOS_ID)[7][0])


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")  # of fork, in Python 3.12 and later
def test_workers_deliver_the_batches_in_order_from_any_step_on(tokenizer: Tokenizer) -> None:
    steps = Steps(TINY, tokenizer, EOS_ID)
    loader = iter(steps.loader(5, workers=2, pin=False))
    for step in (5, 6, 7):
        assert torch.equal(next(loader)[0], steps[step][0])


@pytest.mark.parametrize("split", ["held-out", "new-kinds"])
def test_the_longest_answers_end_within_the_tokens_of_an_evaluation(tokenizer: Tokenizer, split: str) -> None:
    """With the few merges of the tests' tokenizer; that of the model needs fewer tokens still."""
    problems = word_problems(600, split=split)
    assert max(len(answer) for _, answer in encoded(problems, tokenizer)) < MAX_TOKENS


def test_kinds_are_chosen_by_name() -> None:
    assert chosen_kinds(()) == TRAINED
    assert [kind.__name__ for kind in chosen_kinds(["ages", "fence"])] == ["ages", "fence"]
    with pytest.raises(ConfigError, match=NEVER_TRAINED[0].__name__):
        chosen_kinds([NEVER_TRAINED[0].__name__])
