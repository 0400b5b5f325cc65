"""Exact match of a checkpoint folder on generated problems and on GSM8K, answered by the engine itself.

Beside it, on generated problems, stand the names: an answer names people rightly if the names in it are those of the
reference answer, in the same order (`names_in`: capitalised words, but for those that the generator writes anyway). It
counts where the reference answer names somebody, whether the number is right or wrong.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from statewise.demo.names import names_in
from statewise.demo.questions import dice_of, distinct_problems, word_problems
from statewise.engine.llm import LLM
from statewise.engine.request import SamplingParams
from statewise.eval.gsm8k import read_gsm8k
from statewise.eval.prompts import FEWSHOT_SEED, MAX_TOKENS, STOP, few_shot_prompts
from statewise.eval.questions import Question
from statewise.eval.scoring import judge
from train.presets import Preset

SHOTS = 5
EXAMPLES = 500  # solved training problems that few-shot prompts draw from
FEW_SHOT_LIMIT, TRAINED_LIMIT, NEW_KINDS_LIMIT, GSM8K_LIMIT = 200, 200, 400, 200


@dataclass(frozen=True)
class Score:
    """Which answers are right by the strict filter of lm-evaluation-harness, in the order of the questions."""

    name: str
    answers: tuple[tuple[str, bool], ...]  # kind, whether it is right
    names: tuple[bool | None, ...] = ()  # whether an answer's are right, None where nobody is named; (): not asked

    @property
    def right(self) -> int:
        """How many are right."""
        return sum(is_right for _, is_right in self.answers)

    @property
    def asked(self) -> int:
        """How many there are."""
        return len(self.answers)

    @property
    def share(self) -> float:
        """Exact match, 0 to 1."""
        return self.right / self.asked

    @property
    def by_kind(self) -> dict[str, tuple[int, int]]:
        """Of each kind, right and asked."""
        count: dict[str, tuple[int, int]] = {}
        for kind, is_right in self.answers:
            right, asked = count.get(kind, (0, 0))
            count[kind] = (right + is_right, asked + 1)
        return count

    @property
    def names_right(self) -> int:
        """How many answers have the reference's names."""
        return sum(is_right is True for is_right in self.names)

    @property
    def named(self) -> int:
        """How many reference answers name somebody."""
        return sum(is_right is not None for is_right in self.names)

    @property
    def names_share(self) -> float | None:
        """Of those that name somebody, 0 to 1; None if none does."""
        return self.names_right / self.named if self.named else None

    def to_json(self) -> dict[str, Any]:
        """Everything; in_order has a 1 or a 0 a question (`-`: nobody named), so that a sample can be checked again."""
        counts = {"right": self.right, "asked": self.asked, "exact_match": self.share}
        names = {"right": self.names_right, "asked": self.named, "in_order": _in_order(self.names)}
        in_order = _in_order([is_right for _, is_right in self.answers])
        return {"name": self.name, **counts, "by_kind": self.by_kind, "in_order": in_order, "names": names}


def _in_order(rights: Sequence[bool | None]) -> str:
    return "".join("-" if is_right is None else str(int(is_right)) for is_right in rights)


Labelled = Sequence[tuple[str, Question]]


def problems(preset: Preset, split: str, count: int, seed: int = 1) -> Labelled:
    """`count` problems of the split with the names of their kinds, of the preset's kinds if it names some."""
    stream: Iterable[tuple[str, Question]] = distinct_problems(dice_of(split, seed), split)
    if preset.kinds and split != "new-kinds":
        stream = (pair for pair in stream if pair[0] in preset.kinds)
    return list(islice(stream, count))


def open_model(folder: Path, device: str, backend: str) -> LLM:
    """The engine on a checkpoint folder, in float32, so that a CPU finds the same scores again.

    backend "torch" compiles nothing, which suits a look in between.
    """
    return LLM(folder, quiet=True, device=device, backend=backend, dtype="float32", max_batch=128)


def score(
    llm: LLM,
    name: str,
    asked: Labelled,
    examples: Sequence[Question] = (),
    shots: int = 0,
    names_count: bool = True,
) -> Score:
    """Greedy answers to all questions at once, with so many solved examples before each.

    names_count: False for problems that are not the generator's, in which capitalised words are no names.
    """
    prompts = few_shot_prompts([question for _, question in asked], examples, shots, FEWSHOT_SEED)
    params = SamplingParams(temperature=0, max_tokens=MAX_TOKENS, stop=STOP)
    outputs = llm.generate(prompts, params)
    rights = [
        one.error is None and judge(one.text, q.answer).strict_right for one, (_, q) in zip(outputs, asked, strict=True)
    ]
    answers = tuple(zip((kind for kind, _ in asked), rights, strict=True))
    names = [names_are_right(one.text, q.answer) for one, (_, q) in zip(outputs, asked, strict=True)]
    return Score(name, answers, tuple(names) if names_count else ())


def names_are_right(completion: str, answer: str) -> bool | None:
    """Whether a completion has the names of the worked solution, in the same order; None if that names nobody."""
    names = names_in(answer)
    return names_in(completion) == names if names else None


def report_scores(llm: LLM, preset: Preset, gsm8k: Path | None) -> list[Score]:
    """What the card says. gsm8k: the folder of its files; None: it is left out.

    Raises DataError if GSM8K's files cannot be read.
    """
    count = preset.report_on
    held_out = problems(preset, "held-out", count, seed=2)
    examples = word_problems(EXAMPLES, seed=2, split="train")
    scores = [
        score(llm, "held-out problems of the trained kinds, zero-shot", held_out),
        score(llm, "the same, 5-shot", held_out[:FEW_SHOT_LIMIT], examples, SHOTS),
        score(
            llm, "problems like those trained, zero-shot", problems(preset, "train", min(count, TRAINED_LIMIT), seed=2)
        ),
        score(llm, "kinds never trained, zero-shot", problems(preset, "new-kinds", min(count, NEW_KINDS_LIMIT))),
    ]
    if gsm8k is not None:
        asked = [("gsm8k", question) for question in read_gsm8k("test", gsm8k)[:GSM8K_LIMIT]]
        scores.append(score(llm, "GSM8K test, 5-shot", asked, read_gsm8k("train", gsm8k), SHOTS, names_count=False))
    return scores
