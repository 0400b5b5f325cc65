"""The model in training: how its weights begin, how it runs over whole rows, how it becomes a checkpoint folder."""

import math
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor, nn

from statewise.config import ModelConfig
from statewise.demo.checkpoint import DemoSizes, nemotron_h_config, write_json
from statewise.layers.attention import Attention
from statewise.layers.mamba2 import Mamba2Mixer
from statewise.layers.mlp import MLP
from statewise.models.families import read_config
from statewise.models.hybrid import Block, HybridModel
from statewise.ops.backend import resolve
from train.rows import NO_LABEL
from train.tokenizer import special_ids

DT_MIN, DT_MAX, DT_FLOOR = 1e-3, 1e-1, 1e-4
EMBEDDING_STD = 0.02
WIDE = ("A_log", "D", "dt_bias")  # float32 in every file: the decay is exponential in them
PREFIX = "backbone."  # of the released names


def write_config(sizes: DemoSizes, folder: Path, dtype: torch.dtype) -> ModelConfig:
    """config.json and generation_config.json as transformers writes them; returns what this package reads in them.

    The head has weights of its own: transformers has no tied ones for this family.
    """
    name = str(dtype).removeprefix("torch.")
    changes: dict[str, object] = {"torch_dtype": name, "dtype": name}
    write_json(folder / "config.json", nemotron_h_config(sizes, special_ids()) | changes)
    write_json(folder / "generation_config.json", special_ids())
    return read_config(folder)


def new_model(config: ModelConfig, seed: int, device: torch.device) -> HybridModel:
    """The model with its first weights, float32 on `device`, drawn on the CPU: the same ones on every device.

    A, dt and D as in Dao and Gu, arXiv 2405.21060 (`state-spaces/mamba`). What a layer adds to the residual is scaled
    by 1 / sqrt(layers), as in GPT-2, so that the sum does not grow with the depth.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.device("meta"):
        model = HybridModel(config, resolve("torch", device)[0])
    model.to_empty(device="cpu")
    for name, weight in model.named_parameters():
        first_values(name, weight.data, generator, len(config.pattern))
    return model.to(device)


def first_values(name: str, weight: Tensor, generator: torch.Generator, layers: int) -> None:
    """Fill one weight, told by its released name, in place."""
    leaf = name.removesuffix(".weight").rpartition(".")[2]
    if leaf == "A_log":
        weight.uniform_(1, 16, generator=generator).log_()
    elif leaf == "dt_bias":
        dt = weight.uniform_(math.log(DT_MIN), math.log(DT_MAX), generator=generator).exp().clamp(min=DT_FLOOR)
        weight.copy_(dt + torch.log(-torch.expm1(-dt)))  # softplus(dt_bias) == dt
    elif leaf == "D" or leaf.startswith("norm"):
        weight.fill_(1)
    elif leaf == "embeddings":
        weight.normal_(0, EMBEDDING_STD, generator=generator)
    elif leaf == "bias":  # of the convolution
        weight.zero_()
    else:
        bound = 1 / math.sqrt(weight[0].numel())  # of torch's own Linear and Conv1d
        weight.uniform_(-bound, bound, generator=generator)
        if leaf in ("out_proj", "o_proj", "down_proj"):
            weight.div_(math.sqrt(layers))


def forward(model: HybridModel, tokens: Tensor) -> Tensor:
    """Rows of one length from their first token, (B, T), to what the head reads, (B, T, hidden). No cache is used."""
    residual = model.embeddings(tokens)
    for layer in model.layers:
        assert isinstance(layer, Block)
        mixer = layer.mixer
        assert isinstance(mixer, Mamba2Mixer | Attention | MLP)
        residual = residual + mixer.whole(layer.norm(residual))
    return model.norm_f(residual)


def loss_of(model: HybridModel, tokens: Tensor, labels: Tensor, autocast: bool = False) -> Tensor:
    """Mean cross entropy over the labelled places, in float32. tokens, labels: (B, T).

    The head runs at every place: to choose the labelled ones, their number would have to be known on the host.
    autocast: matrices multiply in bfloat16. It is entered here, not around a compiled form of this function, which
    would trace the backward under it too, scan included.
    """
    with torch.autocast(tokens.device.type, torch.bfloat16, enabled=autocast):
        logits = model.lm_head(forward(model, tokens))
    return nn.functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), ignore_index=NO_LABEL)


def export(model: HybridModel, sizes: DemoSizes, folder: Path, dtype: torch.dtype) -> None:
    """Write config and weights as a checkpoint folder, rounded to `dtype`. Raises OSError if it cannot be written."""
    folder.mkdir(parents=True, exist_ok=True)
    write_config(sizes, folder, dtype)
    weights = {
        PREFIX + name: weight.detach().cpu().to(torch.float32 if name.endswith(WIDE) else dtype).contiguous()
        for name, weight in model.named_parameters()
    }
    (folder / "model.safetensors").write_bytes(save(weights, metadata={"format": "pt"}))
