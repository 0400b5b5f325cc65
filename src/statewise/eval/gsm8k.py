"""GSM8K (Cobbe et al., arXiv 2110.14168): from a folder, or from the hub where `datasets` is installed."""

import importlib
from pathlib import Path
from typing import Any

from statewise.errors import DataError
from statewise.eval.questions import Question, read_questions

HUB = ("openai/gsm8k", "main")


def read_gsm8k(split: str, folder: Path | None) -> list[Question]:
    """All questions of ``split``, "train" or "test", in the order of the data set.

    folder: holds train.jsonl and test.jsonl; None: the hub.  Raises DataError if there is no such data.
    """
    if folder is None:
        return _from_hub(split)
    if not folder.is_dir():
        raise DataError(f"data is {folder}, which is no folder; expected one with train.jsonl and test.jsonl")
    return read_questions(folder / f"{split}.jsonl")


def _from_hub(split: str) -> list[Question]:
    try:
        datasets: Any = importlib.import_module("datasets")
    except ImportError as error:
        raise DataError(
            "GSM8K is not here: name its folder, with train.jsonl and test.jsonl, by --data or the variable GSM8K_DIR, "
            "or install 'statewise[eval]' to take it from the Hugging Face hub"
        ) from error
    try:
        rows = datasets.load_dataset(*HUB, split=split)
        return [Question(row["question"], row["answer"]) for row in rows]
    except Exception as error:  # network, cache and format errors of several libraries
        raise DataError(
            f"{HUB[0]} cannot be loaded from the hub: {type(error).__name__}: {error}; "
            "--data takes a folder with train.jsonl and test.jsonl instead"
        ) from error
