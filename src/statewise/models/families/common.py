"""What all families share: ``config.json`` with errors that name the file, and the fields that they name alike."""

import copy
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch

from statewise.config import AttentionConfig, MambaConfig, ModelConfig, MoEConfig, is_int
from statewise.errors import CheckpointError, UnsupportedModelError


class HFConfig:
    """A ``config.json`` whose missing or impossible fields are errors that name the file."""

    def __init__(self, path: Path):
        self.path = path
        if not path.parent.is_dir():
            problem = "is not a folder" if path.parent.exists() else "does not exist"
            raise CheckpointError(f"model folder {path.parent} {problem}")
        if not path.is_file():
            raise CheckpointError(f"{path.parent} has no {path.name}; expected a Hugging Face checkpoint folder")
        try:
            self.values: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except (ValueError, OSError, RecursionError) as error:
            raise CheckpointError(f"{path} cannot be read as JSON: {error}") from error
        if not isinstance(self.values, dict):
            raise CheckpointError(f"{path} holds a {type(self.values).__name__}, expected an object")

    def with_values(self, **values: Any) -> Self:
        """The same with some fields set."""
        other = copy.copy(self)
        other.values = {**self.values, **values}
        return other

    def get(self, name: str, default: Any = None) -> Any:
        """The field, or ``default`` where it is missing or null."""
        value = self.values.get(name)
        return default if value is None else value

    def size(self, name: str, default: int | None = None) -> int:
        """A positive whole number. Raises CheckpointError if it is missing (without a default) or is none."""
        value = self.get(name, default)
        if value is None:
            raise CheckpointError(f"{self.path} has no {name!r}")
        if not is_int(value) or not 1 <= value < 2**31:
            raise CheckpointError(f"{self.path}: {name} is {value!r:.40}, expected a positive whole number")
        return value

    def number(self, name: str, default: float) -> float:
        """A positive number. Raises CheckpointError if it is none."""
        value = self.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise CheckpointError(f"{self.path}: {name} is {value!r:.40}, expected a positive number")
        return float(value)

    def expect(self, name: str, only: Any) -> None:
        """Raise UnsupportedModelError where a field that may be absent is there with another value than ``only``."""
        if self.get(name, only) != only:
            raise UnsupportedModelError(f"{self.path}: {name} is {self.get(name)!r}, supported is {only!r}")


Rename = Callable[[str, ModelConfig], str]


def without_prefix(name: str, _: ModelConfig) -> str:
    """Released files say ``backbone.``, or ``model.``, in front of all but the head."""
    return re.sub(r"^(backbone|model)\.", "", name)


@dataclass(frozen=True)
class Family:
    """How one architecture reads.

    rename: the name of a weight in a file -> its name in `HybridModel.state_dict`; a name that it does not know stays.
    ``[i]`` in the result: this is the i-th part of its rows.
    """

    read: Callable[[HFConfig], ModelConfig]
    rename: Rename = without_prefix


# Released names of the gated MLP behind a mixer, and of what stands outside of the layers, in Bamba and Falcon-H1.
FEED_FORWARD = {
    "pre_ff_layernorm": "norm",
    "feed_forward.gate_proj": "mixer.up_proj[0]",
    "feed_forward.up_proj": "mixer.up_proj[1]",
    "feed_forward.down_proj": "mixer.down_proj",
}
OUTER = {"embed_tokens.weight": "embeddings.weight", "final_layernorm.weight": "norm_f.weight"}


def with_feed_forward(mixer: Mapping[str, str]) -> Rename:
    """The names of Bamba and Falcon-H1. mixer: as `in_two_blocks` takes it."""

    def rename(name: str, config: ModelConfig) -> str:
        name = in_two_blocks(without_prefix(name, config), mixer, FEED_FORWARD)
        return OUTER.get(name, name)

    return rename


def in_two_blocks(name: str, mixer: Mapping[str, str], feed_forward: Mapping[str, str]) -> str:
    """A name within layers that are a mixer and a feed-forward block each, which here are two blocks.

    mixer, feed_forward: beginnings of names within a layer, and what stands for them in the block.
    """
    match = re.match(r"layers\.(\d+)\.(.*)", name)
    for block, rules in enumerate((mixer, feed_forward)):
        for begin, ours in rules.items():
            if match and match[2].startswith(begin):
                return f"layers.{2 * int(match[1]) + block}.{ours}{match[2].removeprefix(begin)}"
    return name


def shared_fields(hf: HFConfig, architecture: str, pattern: tuple[str, ...], **own: Any) -> dict[str, Any]:
    """The fields that most families name alike; ``own`` are those that this one does not."""
    dtype = str(hf.get("dtype", hf.get("torch_dtype", "float32"))).removeprefix("torch.")
    if dtype not in ("float32", "bfloat16", "float16"):
        raise UnsupportedModelError(f"{hf.path}: dtype is {dtype!r}, supported are float32, bfloat16 and float16")
    given = _generation_defaults(hf.path.parent).get("eos_token_id", hf.get("eos_token_id"))
    eos = given if isinstance(given, list) else [] if given is None else [given]
    if not all(isinstance(token, int) for token in eos):
        raise CheckpointError(f"{hf.path}: eos_token_id is {given!r}, expected token ids")
    if not any("mamba" in kind.split("+") for kind in pattern):
        raise UnsupportedModelError(f"{hf.path}: the model has no Mamba-2 layer")
    context = hf.get("max_position_embeddings")
    return {
        "architecture": architecture,
        "vocab_size": hf.size("vocab_size"),
        "hidden_size": hf.size("hidden_size"),
        "pattern": pattern,
        "norm_eps": float(hf.get("layer_norm_epsilon", 1e-5)),
        "residual_in_fp32": bool(hf.get("residual_in_fp32", architecture == "Mamba2ForCausalLM")),
        "tie_embeddings": bool(hf.get("tie_word_embeddings", False)),
        "max_context": None if context is None else hf.size("max_position_embeddings"),
        "dtype": getattr(torch, dtype),
        "eos_token_ids": tuple(eos),
    } | own


def _generation_defaults(folder: Path) -> Mapping[str, Any]:
    """``generation_config.json``, which wins over ``config.json`` where both name the end of a text; {} without one."""
    path = folder / "generation_config.json"
    return HFConfig(path).values if path.is_file() else {}


def _limit(hf: HFConfig) -> tuple[float, float]:
    """``time_step_limit``. transformers 5 writes infinity as {"__float__": "Infinity"}, released files as Infinity."""
    given = hf.get("time_step_limit", (0.0, math.inf))
    try:
        low, high = (float(value["__float__"] if isinstance(value, dict) else value) for value in given)
    except (TypeError, ValueError, KeyError) as error:
        raise CheckpointError(f"{hf.path}: time_step_limit is {given!r}, expected two numbers") from error
    if not 0 <= low <= high:
        raise CheckpointError(f"{hf.path}: time_step_limit is {given!r}, expected 0 <= low <= high")
    return low, high


def mamba_config(
    hf: HFConfig,
    heads: str,
    head_dim: str,
    state_size: str,
    bias: str,
    groups: str = "n_groups",
    conv_width: str = "conv_kernel",
    conv_bias: str = "use_conv_bias",
) -> MambaConfig:
    """The mixer, from the fields with these names and those that every family names alike."""
    mamba = MambaConfig(
        heads=hf.size(heads),
        head_dim=hf.size(head_dim),
        state_size=hf.size(state_size),
        groups=hf.size(groups, 8),
        conv_width=hf.size(conv_width, 4),
        dt_limit=_limit(hf),
        proj_bias=bool(hf.get(bias, False)),
        conv_bias=bool(hf.get(conv_bias, True)),
    )
    if mamba.heads % mamba.groups:
        raise CheckpointError(f"{hf.path}: {mamba.heads} Mamba heads do not divide into {mamba.groups} groups")
    return mamba


def ibm_mamba_config(hf: HFConfig) -> MambaConfig:
    """The mixer by the names of Bamba and Granite; "auto" is the head size that makes ``mamba_expand`` hidden sizes.

    One group, as in all releases: with more, transformers norms over all channels and vLLM over each group.
    """
    inner = int(hf.get("mamba_expand", 2) * hf.size("hidden_size"))
    hf.expect("mamba_n_groups", 1)
    hf = hf.with_values(mamba_n_groups=1)
    if hf.get("mamba_d_head", "auto") == "auto":
        hf = hf.with_values(mamba_d_head=inner // hf.size("mamba_n_heads"))
    names = {"groups": "mamba_n_groups", "conv_width": "mamba_d_conv", "conv_bias": "mamba_conv_bias"}
    mamba = mamba_config(hf, "mamba_n_heads", "mamba_d_head", "mamba_d_state", "mamba_proj_bias", **names)
    if mamba.inner_size != inner:
        raise CheckpointError(
            f"{hf.path}: mamba_n_heads * mamba_d_head is {mamba.inner_size}, but mamba_expand * hidden_size is {inner}"
        )
    return mamba


def attention_config(hf: HFConfig, head_dim: int | None = None, **more: Any) -> AttentionConfig:
    """Attention layers, by the names that the families share. head_dim: None: the hidden size's part.  more: fields."""
    heads = hf.size("num_attention_heads")
    attention = AttentionConfig(
        heads=heads,
        kv_heads=hf.size("num_key_value_heads", heads),
        head_dim=hf.size("hidden_size") // heads if head_dim is None else head_dim,
        **more,
    )
    if attention.heads % attention.kv_heads:
        raise CheckpointError(f"{hf.path}: {heads} attention heads do not divide among {attention.kv_heads} KV heads")
    return attention


def expect_choice(hf: HFConfig, moe: MoEConfig) -> None:
    """Raise CheckpointError where a token cannot choose so many experts, or groups of them."""
    groups, chosen = (1, 1) if moe.sigmoid is None else (moe.sigmoid.groups, moe.sigmoid.chosen_groups)
    if moe.experts % groups or chosen > groups:
        raise CheckpointError(
            f"{hf.path}: {moe.experts} experts are in {groups} groups, of which a token takes {chosen}"
        )
    if moe.chosen > moe.experts // groups * chosen:
        raise CheckpointError(
            f"{hf.path}: num_experts_per_tok is {moe.chosen}, of {moe.experts // groups * chosen} experts"
        )
    if chosen < groups and moe.experts // groups < 2:
        raise CheckpointError(f"{hf.path}: groups of one expert, expected two at least")
