"""The trained model's tokenizer: digits apart, any text back, the same file every time, transformers reads it."""

import json
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from statewise.demo.checkpoint import SPECIAL_TOKENS
from statewise.engine.text import load_tokenizer
from train.tokenizer import BOS_ID, EOS_ID, PAD_ID, build_tokenizer, special_ids, write_tokenizer

SHARED = build_tokenizer(400, problems=100)


@settings(max_examples=50, deadline=None)
@given(st.text())
@example("3 🍎 for $2.50 , don't\n\tpanic  ")
def test_any_text_round_trips(text: str) -> None:
    assert SHARED.decode(SHARED.encode(text).ids, skip_special_tokens=False) == text


def test_every_digit_is_a_token_of_its_own(tokenizer: Tokenizer) -> None:
    text = "It costs $1,234 <<12*30=360>>360 for 2025."
    assert [piece for piece in tokenizer.encode(text).tokens if any(map(str.isdigit, piece))] == [
        digit for digit in text if digit.isdigit()
    ]
    merged = [piece for piece in tokenizer.get_vocab() if len(piece) > 1 and any(map(str.isdigit, piece))]
    assert merged == []


def test_merges_shorten_the_problems(tokenizer: Tokenizer) -> None:
    text = "Question: How many dollars does each of them pay?\nAnswer: The bill is 8 + 4 = $<<8+4=12>>12."
    assert len(tokenizer.encode(text).ids) < 0.7 * len(text)


def test_the_same_file_every_time() -> None:
    assert build_tokenizer(400, problems=100).to_str() == SHARED.to_str()


def test_a_vocabulary_without_room_for_the_bytes_is_refused() -> None:
    with pytest.raises(ValueError, match="259"):
        build_tokenizer(258)


def test_the_folder_form_is_read_by_the_engine_and_by_transformers(tokenizer: Tokenizer, tmp_path: Path) -> None:
    write_tokenizer(tokenizer, tmp_path)
    assert load_tokenizer(tmp_path).to_str() == tokenizer.to_str()
    transformers = pytest.importorskip("transformers")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "nemotron_h"}))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    text = "Zoë has 3 🍎 , and\n\n212 don't . 日本 <|eos|>"
    assert theirs(text).input_ids == tokenizer.encode(text).ids
    assert theirs.decode(theirs(text).input_ids) == text
    assert (theirs.bos_token_id, theirs.eos_token_id, theirs.pad_token_id) == (BOS_ID, EOS_ID, PAD_ID)
    assert tuple(special_ids().values()) == tuple(map(tokenizer.token_to_id, SPECIAL_TOKENS))
