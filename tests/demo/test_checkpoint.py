"""The demo checkpoint: released names and shapes, readable by transformers, the same bytes every time."""

import json
import math
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from statewise.demo.checkpoint import SPECIAL_TOKENS, byte_tokenizer, main, write_demo_checkpoint
from statewise.demo.questions import word_problems

FILES = (
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
)
TOKENIZER = byte_tokenizer()
HIDDEN, INNER, CONV, HEADS = 128, 8 * 32, 8 * 32 + 2 * 2 * 64, 8
MIXER_SHAPES = {
    "M": {
        "in_proj.weight": (INNER + CONV + HEADS, HIDDEN),
        "conv1d.weight": (CONV, 1, 4),
        "conv1d.bias": (CONV,),
        "A_log": (HEADS,),
        "D": (HEADS,),
        "dt_bias": (HEADS,),
        "norm.weight": (INNER,),
        "out_proj.weight": (HIDDEN, INNER),
    },
    "*": {
        "q_proj.weight": (128, HIDDEN),
        "k_proj.weight": (64, HIDDEN),
        "v_proj.weight": (64, HIDDEN),
        "o_proj.weight": (HIDDEN, 128),
    },
    "-": {"up_proj.weight": (256, HIDDEN), "down_proj.weight": (HIDDEN, 256)},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_demo_checkpoint(tmp_path_factory.mktemp("demo") / "new" / "folder")


def expected_shapes(pattern: str) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {
        "backbone.embeddings.weight": (264, HIDDEN),
        "backbone.norm_f.weight": (HIDDEN,),
        "lm_head.weight": (264, HIDDEN),
    }
    for index, letter in enumerate(pattern):
        shapes[f"backbone.layers.{index}.norm.weight"] = (HIDDEN,)
        for name, shape in MIXER_SHAPES[letter].items():
            shapes[f"backbone.layers.{index}.mixer.{name}"] = shape
    return shapes


def test_all_files_are_there_and_small(folder: Path) -> None:
    assert tuple(sorted(path.name for path in folder.iterdir())) == FILES
    assert sum(path.stat().st_size for path in folder.iterdir()) < 8 * 2**20


def test_weights_have_the_released_names_and_shapes_in_float32(folder: Path) -> None:
    pattern = json.loads((folder / "config.json").read_text())["hybrid_override_pattern"]
    assert set(pattern) == {"M", "*", "-"}
    weights = load_file(folder / "model.safetensors")
    assert {name: tuple(weight.shape) for name, weight in weights.items()} == expected_shapes(pattern)
    assert all(weight.dtype == torch.float32 and weight.isfinite().all() for weight in weights.values())


def test_mamba_scalars_lie_in_the_ranges_of_the_paper(folder: Path) -> None:
    for name, weight in load_file(folder / "model.safetensors").items():
        if name.endswith("A_log"):
            assert ((weight.exp() >= 0.999) & (weight.exp() <= 16.001)).all()
        if name.endswith("dt_bias"):
            dt = torch.nn.functional.softplus(weight)
            assert ((dt >= 0.000999) & (dt <= 0.1001)).all()
        if name.endswith("mixer.D"):
            assert (weight == 1).all()


def test_config_never_lets_a_reader_clamp_dt(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    assert config["time_step_limit"] == [0.0, math.inf]
    assert config["time_step_min"] == 0.0


def test_the_same_seed_writes_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    write_demo_checkpoint(tmp_path, seed=1)
    other = (tmp_path / "model.safetensors").read_bytes()
    write_demo_checkpoint(tmp_path, seed=0)  # over the files of the other seed
    for name in FILES:
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes(), name
    assert (tmp_path / "model.safetensors").read_bytes() != other


def test_writing_leaves_the_global_random_state_alone(tmp_path: Path) -> None:
    before = torch.random.get_rng_state()
    write_demo_checkpoint(tmp_path)
    assert torch.equal(torch.random.get_rng_state(), before)


@settings(max_examples=50, deadline=None)
@given(st.text())
@example("3 🍎 for $2.50 , don't\n\tpanic  ")
def test_any_text_round_trips_through_its_bytes(text: str) -> None:
    ids = TOKENIZER.encode(text).ids
    assert TOKENIZER.decode(ids, skip_special_tokens=False) == text
    if not any(token in text for token in SPECIAL_TOKENS):
        assert bytes(ids) == text.encode("utf-8")


def test_special_tokens_have_the_ids_of_the_config(folder: Path) -> None:
    ids = TOKENIZER.encode("a<|bos|><|eos|><|pad|>é").ids
    assert ids == [97, 256, 257, 258, 0xC3, 0xA9]
    for name in ("config.json", "generation_config.json"):
        content = json.loads((folder / name).read_text())
        assert [content[f"{token}_token_id"] for token in ("bos", "eos", "pad")] == [256, 257, 258]


def test_the_command_line_writes_the_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main([str(tmp_path / "cli"), "--seed", "3"])
    assert tuple(sorted(path.name for path in (tmp_path / "cli").iterdir())) == FILES
    assert str(tmp_path / "cli") in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["/dev/null/cli"])
    assert "/dev/null/cli cannot be written: Not a directory" in capsys.readouterr().err


class InTransformers(NamedTuple):
    """The checkpoint as transformers reads it; `info` lists the keys it missed or did not expect."""

    model: object
    info: dict
    tokenizer: object


@pytest.fixture(scope="module")
def loaded(folder: Path) -> InTransformers:
    transformers = pytest.importorskip("transformers")
    model, info = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    return InTransformers(model, info, transformers.AutoTokenizer.from_pretrained(folder))


def test_transformers_finds_every_weight_and_runs(loaded: InTransformers) -> None:
    assert not any(loaded.info.values()), loaded.info
    assert type(loaded.model).__name__ == "NemotronHForCausalLM"
    assert loaded.model.dtype == torch.float32
    with torch.no_grad():
        logits = loaded.model(torch.arange(70)[None]).logits  # one chunk of 64 and a part of the next
    assert logits.shape == (1, 70, 264)
    assert logits.isfinite().all()


def test_transformers_keeps_the_weights_as_written(loaded: InTransformers, folder: Path) -> None:
    """It has initialisers for A_log, D, dt_bias and out_proj that must not run over what was loaded."""
    read = loaded.model.state_dict()
    for name, weight in load_file(folder / "model.safetensors").items():
        assert torch.equal(read[name.replace("backbone.", "model.")], weight), name


def test_the_tokenizer_of_transformers_agrees(loaded: InTransformers) -> None:
    text = "Zoë has 3 🍎 , and\n\t2 don't . 日本 <|eos|>"
    ids = loaded.tokenizer(text).input_ids
    assert ids == TOKENIZER.encode(text).ids
    assert loaded.tokenizer.decode(ids) == text
    special = loaded.tokenizer.bos_token_id, loaded.tokenizer.eos_token_id, loaded.tokenizer.pad_token_id
    assert special == (256, 257, 258)


def test_greedy_continuations_differ_and_do_not_collapse(loaded: InTransformers) -> None:
    questions = [problem.question for problem in word_problems(4)]
    prompts = torch.tensor([loaded.tokenizer(question).input_ids[:64] for question in questions])
    mask = torch.ones_like(prompts)
    output = loaded.model.generate(prompts, attention_mask=mask, max_new_tokens=64, do_sample=False)
    continuations = [tuple(tokens) for tokens in output[:, prompts.shape[1] :].tolist()]
    assert len(set(continuations)) == len(continuations)
    assert sum(len(set(tokens)) for tokens in continuations) / len(continuations) >= 15
