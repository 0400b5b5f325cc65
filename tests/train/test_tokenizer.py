"""The trained model's tokenizer: digits apart, any text back, the same file every time, transformers reads it."""

import json
import re
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from statewise.demo.checkpoint import SPECIAL_TOKENS
from statewise.demo.names import made_up
from statewise.demo.people import KNOWN, RESERVED
from statewise.demo.questions import word_problems
from statewise.demo.wording import Dice
from statewise.engine.text import load_tokenizer
from train.presets import PRESETS
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


@pytest.fixture(scope="module")
def shipped_size() -> Tokenizer:
    """As the next model has it, from all problems that it is learned from."""
    return build_tokenizer(PRESETS["h200"].sizes.vocab_size)


def pieces(tokenizer: Tokenizer, text: str) -> list[str]:
    """Tokens, without the mark of a space in front."""
    return [piece.lstrip("\u0120") for piece in tokenizer.encode(text).tokens]


def made_up_names(count: int) -> list[str]:
    dice, real, forbidden = Dice(0), [person.name for person in KNOWN], re.compile("(?!)")
    return [made_up(dice, real, forbidden) for _ in range(count)]


def test_a_reserved_name_has_the_same_pieces_in_question_and_answer(shipped_size: Tokenizer) -> None:
    """Behind a space and at the start of a line; and each piece is one that made-up names have, so it can be copied."""
    names = made_up_names(40_000)
    made = Counter(piece for name in names for piece in pieces(shipped_size, name))
    for person in RESERVED:
        found = pieces(shipped_size, f" {person.name}")
        assert found == pieces(shipped_size, person.name)
        assert 2 < len(found) <= len(person.name)
        assert min(made[piece] for piece in found) > 50, person


def test_names_made_up_have_several_pieces(shipped_size: Tokenizer) -> None:
    made = made_up_names(2_000)
    lengths = [len(shipped_size.encode(f" {name}").ids) for name in made]
    assert sum(length == 1 for length in lengths) < 0.02 * len(made)
    assert 3 < sum(lengths) / len(made) < 5


def test_names_do_not_make_problems_longer(shipped_size: Tokenizer) -> None:
    """111 tokens a problem held 1,000 of them before names were made up."""
    for split in ("train", "held-out"):
        texts = [f"{problem.prompt} {problem.answer}\n\n" for problem in word_problems(1000, 99, split)]
        assert sum(len(one.ids) for one in shipped_size.encode_batch_fast(texts)) < 111_000


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
