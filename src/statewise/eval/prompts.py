"""Few-shot prompts as lm-evaluation-harness 0.4.13 builds them for its task `gsm8k` (version 3.0).

Its task names no sampler, so the default one runs: one `random.Random(1234)` for the whole task, from which every
question in turn draws its own examples out of the training set. So the examples differ from question to question, and
a question's examples depend on its place in the test set, not on how many questions are asked.
"""

import random
from collections.abc import Sequence

from statewise.errors import ConfigError
from statewise.eval.questions import Question

FEWSHOT_SEED = 1234  # lm-evaluation-harness' default
STOP = ("Question:", "</s>", "<|im_end|>")  # where its task ends an answer, besides the model's own end of text
MAX_TOKENS = 256  # its default where a task names none


def few_shot_prompts(questions: Sequence[Question], examples: Sequence[Question], count: int, seed: int) -> list[str]:
    """A prompt for each question: ``count`` worked examples, then the question.

    examples: what to draw from, drawn anew for each question from one stream that ``seed`` starts.
    Raises ConfigError if ``count`` is negative or more than there are examples.
    """
    if count < 0 or count > len(examples):
        raise ConfigError(f"num_fewshot is {count}, expected 0 to {len(examples)}, the number of examples")
    draws = random.Random(seed)
    prompts = []
    for question in questions:
        drawn = draws.sample(examples, count) if count else []
        prompts.append("".join(f"{one.prompt} {one.answer}\n\n" for one in drawn) + question.prompt)
    return prompts
