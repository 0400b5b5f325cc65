"""Answers out of completions, and whether they are right: as lm-evaluation-harness 0.4.13 does for its task `gsm8k`.

Both filters are its regular expressions, `group_select` and all, then the first of one completion. "Right" is its
`exact_match` with the task's options: case is ignored and so are commas, dollar signs, everything up to a last `#### `
and a full stop at the end; what is left must be equal as text, so 18.00 is not 18.
"""

import re
from dataclasses import dataclass

_STRICT = re.compile(r"#### (\-?[0-9\.\,]+)")
_FLEXIBLE = re.compile(r"(-?[$0-9.,]{2,})|(-?[0-9]+)")
_IGNORED = tuple(re.compile(pattern) for pattern in (",", r"\$", r"(?s).*#### ", r"\.$"))
INVALID = "[invalid]"  # what its filters give where they find nothing


@dataclass(frozen=True)
class Verdict:
    """What each filter takes out of a completion, and whether that is the answer."""

    strict: str
    flexible: str
    strict_right: bool
    flexible_right: bool


def judge(completion: str, answer: str) -> Verdict:
    """answer: the worked solution that ends in `#### N`."""
    strict, flexible = extract_strict(completion), extract_flexible(completion)
    return Verdict(strict, flexible, is_exact_match(strict, answer), is_exact_match(flexible, answer))


def extract_strict(completion: str) -> str:
    """The number behind the first `#### `, or INVALID."""
    found = _STRICT.findall(completion)
    return found[0].strip() if found else INVALID


def extract_flexible(completion: str) -> str:
    """The last thing that looks like a number, or INVALID."""
    found = _FLEXIBLE.findall(completion)
    return next(group for group in found[-1] if group).strip() if found else INVALID


def is_exact_match(prediction: str, reference: str) -> bool:
    """Whether both are equal once what does not count is gone."""
    return _normal(prediction) == _normal(reference)


def _normal(text: str) -> str:
    for pattern in _IGNORED:
        text = pattern.sub("", text)
    return text.lower()
