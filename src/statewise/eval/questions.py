"""Questions in the form of GSM8K (Cobbe et al., arXiv 2110.14168): JSON lines with ``question`` and ``answer``."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from statewise.errors import DataError


@dataclass(frozen=True)
class Question:
    """One problem; ``answer`` is the worked solution, a step a line, then ``#### N``."""

    question: str
    answer: str

    @property
    def prompt(self) -> str:
        """The question as a zero-shot prompt, in the words of lm-evaluation-harness."""
        return f"Question: {self.question}\nAnswer:"


def read_questions(path: Path, limit: int | None = None) -> list[Question]:
    """The first ``limit`` questions of a file, all without a limit.

    Raises DataError for a missing or empty file, or a line that is no question, naming the line.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")  # not splitlines: U+2028 is no line end in JSON
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"questions file {path} cannot be read: {error}") from error
    questions: list[Question] = []
    for number, line in enumerate(lines, 1):
        if limit is not None and len(questions) >= limit:
            break
        if line.strip():
            questions.append(_parse(path, number, line))
    if not questions:
        raise DataError(f"questions file {path} holds no questions")
    return questions


def _parse(path: Path, number: int, line: str) -> Question:
    expected = 'a JSON object with the strings "question" and "answer"'
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} line {number} is not JSON: {error}; expected {expected}") from error
    question, answer = (record.get(key) if isinstance(record, dict) else None for key in ("question", "answer"))
    if not isinstance(question, str) or not isinstance(answer, str):
        raise DataError(f"{path} line {number} holds {line[:60]!r}, expected {expected}")
    return Question(question, answer)


def write_questions(path: Path, questions: Iterable[Question]) -> None:
    """Write one JSON object a line, in UTF-8. Raises OSError if the file cannot be written."""
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for question in questions:
            file.write(json.dumps(asdict(question), ensure_ascii=False) + "\n")
