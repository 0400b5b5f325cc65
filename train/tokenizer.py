"""The tokenizer of the trained model: byte-level BPE learned from the generator, every digit a token of its own."""

from collections.abc import Iterator
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from statewise.demo.checkpoint import SPECIAL_TOKENS, tokenizer_config, write_json
from statewise.demo.questions import dice_of, distinct_problems
from train.rows import SEPARATOR

BOS_ID, EOS_ID, PAD_ID = range(3)
PROBLEMS = 5_000  # the text that the merges are learned from
SEED = "tokenizer"


def build_tokenizer(vocab_size: int, problems: int = PROBLEMS) -> Tokenizer:
    """The same tokenizer every time: any text round-trips, and numbers come apart into digits.

    A number as one token would have to be learned number by number; as digits, addition is learned once.
    Raises ValueError if the vocabulary has no room for the bytes and the special tokens.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    least = len(alphabet) + len(SPECIAL_TOKENS)
    if vocab_size < least:
        raise ValueError(f"vocab_size is {vocab_size}, expected at least {least}")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        initial_alphabet=alphabet,
        special_tokens=[AddedToken(text, special=True, normalized=False) for text in SPECIAL_TOKENS],
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(problems), trainer)
    return tokenizer


def _texts(problems: int) -> Iterator[str]:
    stream = distinct_problems(dice_of("train", SEED), "train")
    for _, (_, problem) in zip(range(problems), stream, strict=False):
        yield f"{problem.prompt} {problem.answer}{SEPARATOR}"


def special_ids() -> dict[str, object]:
    """As config.json and generation_config.json name them."""
    return {"bos_token_id": BOS_ID, "eos_token_id": EOS_ID, "pad_token_id": PAD_ID}


def write_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """tokenizer.json and tokenizer_config.json. Raises OSError if they cannot be written."""
    tokenizer.save(str(folder / "tokenizer.json"))
    write_json(folder / "tokenizer_config.json", tokenizer_config())
