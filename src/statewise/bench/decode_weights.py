"""Random weights of any supported model, made where they will be used, and models that share them."""

import math

import torch
from torch import Tensor

from statewise.config import ModelConfig
from statewise.models.hybrid import HybridModel
from statewise.ops.backend import Ops, resolve

# dt of a fresh Mamba-2, log-uniform, and the range of -A, as in the paper's code (Dao and Gu, arXiv:2405.21060).
DT_RANGE = (1e-3, 1e-1)
A_RANGE = (1.0, 16.0)
_WIDE = ("A_log", "D", "dt_bias", "correction_bias")


def random_weights(config: ModelConfig, dtype: torch.dtype, device: torch.device, seed: int = 0) -> dict[str, Tensor]:
    """Weights by the names of `HybridModel.state_dict`, in ``dtype``; those of `_WIDE` in float32 or wider.

    Matrices keep the variance of what goes through them (1 / fan-in), norms are 1, biases 0, and A and dt are those of
    a fresh Mamba-2, whose states forget: activations stay finite however long it decodes.
    """
    shapes = {name: tensor.shape for name, tensor in _skeleton(config, _any_ops()).state_dict().items()}
    if config.tie_embeddings:
        del shapes["lm_head.weight"]
    generator = torch.Generator(device).manual_seed(seed)
    wide = torch.promote_types(dtype, torch.float32)
    weights = {}
    for name, shape in shapes.items():
        own = name.rpartition(".")[2]
        tensor = torch.empty(shape, dtype=wide if own in _WIDE else dtype, device=device)
        weights[name] = _fill(tensor, name, own, generator)
    if config.tie_embeddings:
        weights["lm_head.weight"] = weights["embeddings.weight"]
    return weights


def _fill(tensor: Tensor, name: str, own: str, generator: torch.Generator) -> Tensor:
    if own == "A_log":
        return tensor.uniform_(*A_RANGE, generator=generator).log_()
    if own == "dt_bias":
        low, high = map(math.log, DT_RANGE)
        dt = tensor.uniform_(low, high, generator=generator).exp_()
        return dt.add_(torch.log(-torch.expm1(-dt)))  # softplus of it is dt
    if own == "D" or "norm" in name:
        return tensor.fill_(1.0)
    if own in ("bias", "correction_bias"):
        return tensor.zero_()
    fan_in = tensor.shape[-1]  # of a convolution's channel its width, of experts that of each
    return tensor.normal_(std=1.0 if name == "embeddings.weight" else fan_in**-0.5, generator=generator)


def model_over(weights: dict[str, Tensor], config: ModelConfig, ops: Ops) -> HybridModel:
    """A model that holds ``weights`` themselves, ready for inference.

    Those that it joins are replaced by views of what it made, so that the next model over them copies nothing.
    """
    model = _skeleton(config, ops)
    model.load_state_dict(weights, assign=True)
    model.requires_grad_(False).eval().prepare()
    weights.update(model.state_dict())
    return model


def _skeleton(config: ModelConfig, ops: Ops) -> HybridModel:
    with torch.device("meta"):
        return HybridModel(config, ops)


def _any_ops() -> Ops:
    return resolve("torch", torch.device("cpu"))[0]
