"""A tokenizer learned from few problems, and a preset that trains in seconds."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from train.loop import Options, Trainer
from train.presets import PRESETS, Preset
from train.tokenizer import build_tokenizer, write_tokenizer

TINY = replace(PRESETS["tiny"], sizes=replace(PRESETS["tiny"].sizes, vocab_size=512))
StartRun = Callable[..., Trainer]


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return build_tokenizer(512, problems=300)


@pytest.fixture
def start(tokenizer: Tokenizer, tmp_path: Path) -> StartRun:
    """Makes the trainer of a folder below tmp_path."""

    def trainer(folder: str, preset: Preset = TINY, **options: object) -> Trainer:
        (tmp_path / folder / "model").mkdir(parents=True, exist_ok=True)
        write_tokenizer(tokenizer, tmp_path / folder / "model")
        options = {"folder": tmp_path / folder, "device": torch.device("cpu"), "say": lambda _: None} | options
        return Trainer(preset, Options(**options))

    return trainer
