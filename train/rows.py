"""What the model reads: rows of solved problems one after the other, in the form of a few-shot prompt.

A row is what lm-evaluation-harness makes of GSM8K, `Question: ...\\nAnswer: ...`, parted by blank lines: its first
problem is a zero-shot prompt, its second a one-shot prompt, and so on, so that one row trains every number of examples.
The loss is on the answers alone. What the questions say is drawn at random, so nothing can be learned from guessing it,
and its gradient would be noise. After an answer the end of the text is what the model shall say, though in the row
another question follows: with examples in the prompt or without, an answer ends the same way.
"""

import os
from collections.abc import Sequence
from itertools import count

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from statewise.demo.kinds import TRAINED, Kind
from statewise.demo.questions import dice_of, draw
from statewise.demo.wording import Dice
from statewise.errors import ConfigError
from statewise.eval.questions import Question
from train.presets import Preset

SEPARATOR = "\n\n"
NO_LABEL = -100  # as torch's cross entropy ignores it


Batch = tuple[Tensor, Tensor]


class Steps(Dataset[Batch]):
    """The batch of every step, a function of seed and step alone: any worker may make it, and a resumed run meets it.

    A batch is tokens and labels, (rows, length), int64. A label is the token that shall follow; NO_LABEL: nothing is
    asked.
    """

    def __init__(self, preset: Preset, tokenizer: Tokenizer, end: int):
        """end: the token that ends a text."""
        self.preset, self.tokenizer, self.end = preset, tokenizer, end
        self.kinds = chosen_kinds(preset.kinds)

    def __getitem__(self, step: int) -> Batch:
        dice, preset = dice_of("train", f"rows {self.preset.seed} {step}"), self.preset
        rows = [self.row(dice) for _ in range(preset.rows)]
        tokens, labels = (torch.tensor(side, dtype=torch.int64) for side in zip(*rows, strict=True))
        return tokens, labels

    def loader(self, start: int, workers: int, pin: bool) -> DataLoader[Batch]:
        """The batches from step ``start`` on, without end, made ahead by so many processes; 0: when asked for."""
        return DataLoader(
            self,
            batch_size=None,
            sampler=count(start),
            num_workers=workers,
            pin_memory=pin,
            prefetch_factor=4 if workers else None,
            worker_init_fn=_one_of_many,
        )

    def row(self, dice: Dice) -> tuple[list[int], list[int]]:
        """Tokens and labels of one row, cut to its length: the last problem may be a part of one."""
        tokens: list[int] = []
        labels: list[int] = []
        while len(tokens) < self.preset.length:
            # Problems of some 100 tokens: a few more than needed are drawn, so that one call encodes them all.
            problems = [draw(dice.choice(self.kinds), dice, "train") for _ in range(self.preset.length // 100 + 1)]
            for prompt, answer in encoded(problems, self.tokenizer, is_first=not tokens):
                tokens += prompt + answer
                # The label of a token is the next one; the prompt's last token has the answer's first.
                labels += [NO_LABEL] * (len(prompt) - 1) + answer + [self.end]
        return tokens[: self.preset.length], labels[: self.preset.length]


def _one_of_many(_: int) -> None:
    """A worker takes one thread: there are others."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"


def encoded(
    problems: Sequence[Question], tokenizer: Tokenizer, is_first: bool = True
) -> list[tuple[list[int], list[int]]]:
    """Prompt and answer of each problem as tokens, to be laid one after the other. is_first: no blank line before.

    The tokens are those of the whole text: no token crosses the places where it is cut, since a colon stands before the
    answer and a digit before the blank line.
    """
    parts = [
        text
        for i, problem in enumerate(problems)
        for text in (f"{'' if is_first and i == 0 else SEPARATOR}{problem.prompt}", f" {problem.answer}")
    ]
    ids = [encoding.ids for encoding in tokenizer.encode_batch_fast(parts)]
    return list(zip(ids[::2], ids[1::2], strict=True))


def chosen_kinds(names: Sequence[str]) -> tuple[Kind, ...]:
    """The kinds of these names, all that are trained if there are none. Raises ConfigError for an unknown one."""
    by_name = {kind.__name__: kind for kind in TRAINED}
    unknown = [name for name in names if name not in by_name]
    if unknown:
        raise ConfigError(f"kinds are {', '.join(unknown)}, expected some of {', '.join(by_name)}")
    return tuple(by_name[name] for name in names) or TRAINED
