"""Scores of a run, both modes compared, and the report that holds all of it."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from statewise.eval.records import Completion, Records
from statewise.eval.run import Exam
from statewise.eval.scoring import Verdict, extract_strict, judge
from statewise.eval.significance import Paired, Proportion

FILTERS = ("strict", "flexible")
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Scored:
    """One mode's completions, in the order of the questions, with verdicts. One that was refused is wrong."""

    mode: str
    completions: Sequence[Completion]
    verdicts: Sequence[Verdict]

    def right(self, by: str) -> list[bool]:
        """Which questions are right. by: one of FILTERS."""
        return [verdict.strict_right if by == "strict" else verdict.flexible_right for verdict in self.verdicts]

    def score(self, by: str) -> Proportion:
        """How many are right."""
        return Proportion(sum(self.right(by)), len(self.verdicts))

    @property
    def refused(self) -> list[Completion]:
        """Those that could not be served."""
        return [one for one in self.completions if one.error is not None]

    @property
    def tokens(self) -> int:
        """Tokens generated."""
        return sum(len(one.token_ids) for one in self.completions)

    @property
    def cut(self) -> int:
        """Answers that ended because there was no room for more tokens."""
        return sum(one.finish_reason == "length" for one in self.completions)

    @property
    def seconds(self) -> float:
        """From the start to the last completion, loading left out, of every session together."""
        last: dict[int, float] = {}
        for one in self.completions:
            last[one.session] = max(last.get(one.session, 0.0), one.seconds)
        return sum(last.values())


def score(exam: Exam, records: Records, mode: str) -> Scored:
    """Judge one mode's completions; there is one for every question."""
    found = records.of(mode)
    completions = [found[i] for i in range(len(exam.questions))]
    verdicts = [judge(one.text, question.answer) for one, question in zip(completions, exam.questions, strict=True)]
    return Scored(mode, completions, verdicts)


def identical(first: Scored, second: Scored) -> int:
    """How many questions both modes answered with the same tokens."""
    pairs = zip(first.completions, second.completions, strict=True)
    return sum(a.error is None and b.error is None and a.token_ids == b.token_ids for a, b in pairs)


def paired(first: Scored, second: Scored, by: str) -> Paired:
    """Both modes' right and wrong answers, question by question."""
    return Paired.of(first.right(by), second.right(by))


def report(run: dict[str, Any], exam: Exam, records: Records, modes: Sequence[Scored]) -> dict[str, object]:
    """All that is needed to repeat the run and to check its scores, for JSON. The questions are in it as hashes."""
    questions = [
        {"index": i, "expected": extract_strict(asked.answer)} | {mode.mode: _answer(mode, i) for mode in modes}
        for i, asked in enumerate(exam.questions)
    ]
    whole: dict[str, object] = {"run": run, "sessions": records.sessions}
    whole["scores"] = {mode.mode: _scores(mode) for mode in modes}
    if len(modes) == 2:
        whole["comparison"] = _comparison(*modes)
    return whole | {"completions": questions}


def _scores(mode: Scored) -> dict[str, object]:
    scores = {by: mode.score(by) for by in FILTERS}
    return {
        **{by: asdict(s) | {"score": s.value, "stderr": s.stderr} for by, s in scores.items()},
        "refused": len(mode.refused),
        "ended_by_length": mode.cut,
        "tokens": mode.tokens,
        "seconds": mode.seconds,
    }


def _comparison(first: Scored, second: Scored) -> dict[str, object]:
    """The second mode against the first."""
    both: dict[str, object] = {"identical_answers": identical(first, second), "confidence": CONFIDENCE}
    for by in FILTERS:
        pair = paired(first, second, by)
        both[by] = {
            "both": pair.both,
            f"only_{first.mode}": pair.only_first,
            f"only_{second.mode}": pair.only_second,
            "neither": pair.neither,
            "difference": pair.difference,
            "interval": pair.interval(CONFIDENCE),
            "mcnemar_exact_p": float(pair.mcnemar()),
        }
    return both


def _answer(mode: Scored, index: int) -> dict[str, object]:
    one, verdict = mode.completions[index], mode.verdicts[index]
    kept = {"text": one.text, "tokens": len(one.token_ids), "finish_reason": one.finish_reason, "error": one.error}
    return kept | asdict(verdict)
