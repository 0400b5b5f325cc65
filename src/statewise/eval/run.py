"""Ask a model questions and keep its completions: one mode, or two on the same questions."""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from statewise.config import EngineConfig
from statewise.engine.llm import LLM, RequestOutput
from statewise.engine.plan import make_plan
from statewise.engine.request import SamplingParams
from statewise.errors import RequestError
from statewise.eval.prompts import STOP
from statewise.eval.provenance import hash_of, model_hashes, versions
from statewise.eval.questions import Question
from statewise.eval.records import Completion, Records
from statewise.models.families import read_config


@dataclass(frozen=True)
class Exam:
    """Questions, the prompts that ask them, and what the prompts were made from."""

    task: str
    questions: Sequence[Question]
    prompts: Sequence[str]
    source: dict[str, object]  # how the prompts come about: number of examples, seeds
    max_tokens: int


def describe_run(exam: Exam, model: Path, modes: dict[str, EngineConfig]) -> dict[str, Any]:
    """All that decides the answers. Two runs with equal descriptions may share their completions.

    Raises CheckpointError for a model that cannot be read.
    """
    return {
        "task": exam.task,
        "source": exam.source,
        "questions": len(exam.questions),
        "prompts_sha256": hash_of(exam.prompts),
        "answers_sha256": hash_of([question.answer for question in exam.questions]),
        "sampling": {"temperature": 0, "max_tokens": exam.max_tokens, "stop": list(STOP)},
        "model_sha256": model_hashes(model),
        "versions": versions(),
        "modes": {name: _describe_mode(model, config) for name, config in modes.items()},
    }


def _describe_mode(model: Path, config: EngineConfig) -> dict[str, object]:
    """The options, and what those that say "auto" come to."""
    plan = make_plan(read_config(model), config)
    resolved = {"backend": plan.backend, "dtype": str(plan.dtype).removeprefix("torch."), "max_batch": plan.slots}
    return asdict(config) | {"resolved": resolved | {"max_context": plan.max_context}}


def answer(
    exam: Exam, model: Path, mode: str, config: EngineConfig, records: Records, on_finish: Callable[[], None]
) -> None:
    """Ask what has no completion yet, greedily, and record each answer as it comes. No model is loaded if all is there.

    A question that cannot be served, say one that does not fit the context, is recorded with its error and no text.
    Raises RequestError if that is so for every one of them.
    """
    done = records.of(mode)
    left = [i for i in range(len(exam.prompts)) if i not in done]
    if left:
        llm = LLM(model, config, quiet=True)
        params = SamplingParams(
            temperature=0, max_tokens=exam.max_tokens, stop=STOP, stop_token_ids=special_stops(llm.tokenizer, STOP)
        )
        session, start = len(records.sessions), time.perf_counter()

        def keep(output: RequestOutput) -> None:
            error = str(output.error) if output.error else None
            seconds = time.perf_counter() - start
            index = left[output.index]
            records.add(
                Completion(
                    mode, index, output.text, output.token_ids, output.finish_reason, error, session, round(seconds, 3)
                )
            )
            on_finish()

        llm.generate([exam.prompts[i] for i in left], params, keep)
    done = records.of(mode)
    if all(one.error for one in done.values()):
        raise RequestError(f"none of {len(done)} questions could be served; question 1: {done[0].error}")


def special_stops(tokenizer: Tokenizer, stops: Sequence[str]) -> tuple[int, ...]:
    """The special tokens among the stop strings. They are not part of the text, so the text cannot show them."""
    added = tokenizer.get_added_tokens_decoder()
    return tuple(sorted(number for number, token in added.items() if token.special and token.content in stops))
