"""Writes a tiny hybrid checkpoint with random weights, in the form released Nemotron-H models have.

The model is untrained and the text it produces is meaningless: it says nothing about quality. It is there to
run every kind of layer (Mamba-2, attention, MLP), the loader and the tokenizer without a download: 4.5 MiB,
readable by this package and by `transformers` alike.

    python -m statewise.demo.checkpoint FOLDER [--seed 0]

Names and shapes follow the `NemotronHForCausalLM` checkpoints on the Hugging Face Hub. One layer is
`x + mixer(norm(x))`, with the mixer given by the layer's letter in `hybrid_override_pattern`.
"""

import argparse
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

SPECIAL_TOKENS = ("<|bos|>", "<|eos|>", "<|pad|>")
BOS_ID, EOS_ID, PAD_ID = 256, 257, 258  # ids 0 to 255 are the bytes themselves


@dataclass(frozen=True)
class DemoSizes:
    """Sizes of the demo model; the fields carry the names they have in config.json."""

    hybrid_override_pattern: str = "M-M*-M-M*-M-"  # M: Mamba-2, -: MLP, *: attention
    vocab_size: int = 264  # 256 bytes and 3 special tokens, rounded up to a multiple of 8
    hidden_size: int = 128
    mamba_num_heads: int = 8
    mamba_head_dim: int = 32
    ssm_state_size: int = 64
    n_groups: int = 2
    conv_kernel: int = 4
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 32
    intermediate_size: int = 256

    @property
    def mamba_width(self) -> int:
        """Channels of x and of the gate z."""
        return self.mamba_num_heads * self.mamba_head_dim

    @property
    def conv_dim(self) -> int:
        """Channels of the convolution: x, then B and C of every group."""
        return self.mamba_width + 2 * self.n_groups * self.ssm_state_size


def write_demo_checkpoint(folder: Path, seed: int = 0) -> Path:
    """Writes config, weights and tokenizer of the demo model into `folder` and returns `folder`.

    The folder is made if it is missing; files of the same names are replaced. With the same seed and the same
    version of torch the weights are the same to the byte.

    Raises:
        OSError: the folder cannot be made or written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    sizes = DemoSizes()
    write_json(folder / "config.json", nemotron_h_config(sizes, _special_ids()))
    write_json(folder / "generation_config.json", _special_ids())
    write_json(folder / "tokenizer_config.json", tokenizer_config())
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    weights = demo_weights(sizes, torch.Generator().manual_seed(seed))
    # transformers refuses a file that does not name the framework it was written by.
    (folder / "model.safetensors").write_bytes(save(weights, metadata={"format": "pt"}))
    return folder


def demo_weights(sizes: DemoSizes, generator: torch.Generator) -> dict[str, Tensor]:
    """All weights of the model by their released names, float32 on the CPU, drawn from `generator`."""
    mixers = {"M": _mamba_mixer, "*": _attention_mixer, "-": _mlp_mixer}
    embeddings = torch.randn(sizes.vocab_size, sizes.hidden_size, generator=generator)
    weights = {"backbone.embeddings.weight": embeddings}
    for index, letter in enumerate(sizes.hybrid_override_pattern):
        layer = f"backbone.layers.{index}"
        weights[f"{layer}.norm.weight"] = _norm(sizes.hidden_size, generator)
        for name, weight in mixers[letter](sizes, generator):
            weights[f"{layer}.mixer.{name}"] = weight
    weights["backbone.norm_f.weight"] = _norm(sizes.hidden_size, generator)
    weights["lm_head.weight"] = _linear(sizes.vocab_size, sizes.hidden_size, generator, gain=2.0)
    return weights


def _mamba_mixer(sizes: DemoSizes, generator: torch.Generator) -> Iterator[tuple[str, Tensor]]:
    """One Mamba-2 mixer, with A, dt and D drawn as in Dao and Gu, arXiv 2405.21060 (`state-spaces/mamba`)."""
    heads, width, conv_dim = sizes.mamba_num_heads, sizes.mamba_width, sizes.conv_dim
    rows = width + conv_dim + heads  # z, then x B C, then dt
    # With gain 1 the skip D x hides the state; with 2 most greedy choices change if the state is dropped.
    yield "in_proj.weight", _linear(rows, sizes.hidden_size, generator, gain=2.0)
    bound = 1 / math.sqrt(sizes.conv_kernel)
    yield "conv1d.weight", _uniform(-bound, bound, (conv_dim, 1, sizes.conv_kernel), generator)
    yield "conv1d.bias", _uniform(-bound, bound, (conv_dim,), generator)
    yield "A_log", _uniform(1.0, 16.0, (heads,), generator).log()
    yield "D", torch.ones(heads)
    dt = _uniform(math.log(0.001), math.log(0.1), (heads,), generator).exp()
    yield "dt_bias", dt + torch.log(-torch.expm1(-dt))  # softplus(dt_bias) == dt
    yield "norm.weight", _norm(width, generator)
    yield "out_proj.weight", _linear(sizes.hidden_size, width, generator)


def _attention_mixer(sizes: DemoSizes, generator: torch.Generator) -> Iterator[tuple[str, Tensor]]:
    """Grouped-query attention; Nemotron-H has no position embedding, so these are all its weights."""
    queries, keys = sizes.num_attention_heads * sizes.head_dim, sizes.num_key_value_heads * sizes.head_dim
    yield "q_proj.weight", _linear(queries, sizes.hidden_size, generator)
    yield "k_proj.weight", _linear(keys, sizes.hidden_size, generator)
    yield "v_proj.weight", _linear(keys, sizes.hidden_size, generator)
    yield "o_proj.weight", _linear(sizes.hidden_size, queries, generator)


def _mlp_mixer(sizes: DemoSizes, generator: torch.Generator) -> Iterator[tuple[str, Tensor]]:
    """`down(relu(up(x)) ** 2)`."""
    yield "up_proj.weight", _linear(sizes.intermediate_size, sizes.hidden_size, generator)
    yield "down_proj.weight", _linear(sizes.hidden_size, sizes.intermediate_size, generator)


def _linear(rows: int, columns: int, generator: torch.Generator, gain: float = 1.0) -> Tensor:
    """(rows, columns), normal with std gain / sqrt(columns): inputs of size 1 give outputs of size `gain`."""
    return torch.randn(rows, columns, generator=generator) * (gain / math.sqrt(columns))


def _norm(width: int, generator: torch.Generator) -> Tensor:
    """(width,), near 1 and not equal: a norm that skips or misplaces its weight must show."""
    return _uniform(0.8, 1.2, (width,), generator)


def _uniform(low: float, high: float, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return low + (high - low) * torch.rand(shape, generator=generator)


def byte_tokenizer() -> Tokenizer:
    """A tokenizer whose ids 0 to 255 are the bytes of the text's UTF-8 form: any text round-trips.

    Special tokens are recognised when spelled out in a text, and never added by themselves.
    """
    vocabulary = {symbol: byte for byte, symbol in enumerate(_byte_symbols())}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    # Without merges a split into words changes nothing, so the text stays whole.
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    specials = [AddedToken(text, special=True, normalized=False) for text in SPECIAL_TOKENS]
    tokenizer.add_special_tokens(specials)
    return tokenizer


def _byte_symbols() -> Iterator[str]:
    """The character that stands for each byte in a byte-level vocabulary, in byte order (GPT-2's table).

    Printable bytes stand for themselves as Latin-1; the others take the code points from 256 on.
    """
    spare = 256
    for byte in range(256):
        if 0x21 <= byte <= 0x7E or 0xA1 <= byte <= 0xAC or byte >= 0xAE:
            yield chr(byte)
        else:
            yield chr(spare)
            spare += 1


def _special_ids() -> dict[str, object]:
    return {"bos_token_id": BOS_ID, "eos_token_id": EOS_ID, "pad_token_id": PAD_ID}


def tokenizer_config() -> dict[str, object]:
    """tokenizer_config.json of a tokenizer with `SPECIAL_TOKENS`, none of which is added to a text."""
    bos, eos, pad = SPECIAL_TOKENS
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": bos,
        "eos_token": eos,
        "pad_token": pad,
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 4096,
    }


def nemotron_h_config(sizes: DemoSizes, special: dict[str, object]) -> dict[str, object]:
    """config.json of a model of these sizes, in float32 with a head of its own. special: the ids of its tokens."""
    return {
        "architectures": ["NemotronHForCausalLM"],
        "model_type": "nemotron_h",
        "num_hidden_layers": len(sizes.hybrid_override_pattern),
        **vars(sizes),
        **special,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "chunk_size": 64,
        "expand": sizes.mamba_width // sizes.hidden_size,
        "hidden_dropout": 0.0,
        "initializer_range": 0.02,
        "layer_norm_epsilon": 1e-5,
        "mamba_hidden_act": "silu",
        "mamba_proj_bias": False,
        "max_position_embeddings": 4096,
        "mlp_bias": False,
        "mlp_hidden_act": "relu2",
        "rescale_prenorm_residual": False,
        "residual_in_fp32": False,
        "tie_word_embeddings": False,
        "time_step_floor": 1e-4,
        # Becomes Infinity, which Python's json writes and reads and JSON proper does not have.
        "time_step_limit": [0.0, math.inf],
        "time_step_max": 0.1,
        # Released: 0.001. transformers raises dt to time_step_min, in a prefill and not in a decode step;
        # others clamp it to time_step_limit. dt is positive, so with 0 nothing is clamped and all agree.
        "time_step_min": 0.0,
        "torch_dtype": "float32",
        "use_bias": False,
        "use_cache": True,
        "use_conv_bias": True,
    }


def write_json(path: Path, content: dict[str, object]) -> None:
    """The same bytes on every platform."""
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8", newline="\n")


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line: writes the checkpoint and says where."""
    parser = argparse.ArgumentParser(description="Write a tiny untrained Nemotron-H checkpoint.")
    parser.add_argument("folder", type=Path, help="folder to write into; made if missing")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random weights (default 0)")
    options = parser.parse_args(arguments)
    try:
        print(f"wrote {write_demo_checkpoint(options.folder, options.seed)}")
    except OSError as error:
        parser.error(f"{options.folder} cannot be written: {error.strerror}")


if __name__ == "__main__":
    main()
