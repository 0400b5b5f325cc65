"""A hybrid model small enough for exhaustive tests, with random weights in float64."""

from dataclasses import replace

import torch

from statewise.cache.mamba import MambaPool
from statewise.cache.paged_kv import PagedKV
from statewise.cache.spec import KVSpec, MambaSpec
from statewise.config import AttentionConfig, MambaConfig, MLPConfig, ModelConfig, MoEConfig, RopeConfig
from statewise.models.hybrid import Caches, HybridModel
from statewise.ops.backend import resolve

CPU = torch.device("cpu")
PATTERN = ("mamba", "mlp", "attention", "mamba", "mlp", "mamba", "attention")


def tiny_config(pattern: tuple[str, ...] = PATTERN) -> ModelConfig:
    return ModelConfig(
        architecture="NemotronHForCausalLM",
        vocab_size=31,
        hidden_size=16,
        pattern=pattern,
        mamba=MambaConfig(
            heads=4,
            head_dim=6,
            state_size=5,
            groups=2,
            conv_width=4,
            dt_limit=(0.01, 2.0),
            proj_bias=True,
            conv_bias=True,
        ),
        attention=AttentionConfig(heads=4, kv_heads=2, head_dim=8, rope=RopeConfig(rotary_dim=4, theta=50.0)),
        mlp=MLPConfig(inner_size=24, bias=False),
        norm_eps=1e-5,
        residual_in_fp32=False,
        tie_embeddings=False,
        max_context=None,
        dtype=torch.float32,
        eos_token_ids=(),
    )


def tiny_moe_config() -> ModelConfig:
    """With experts behind attention, so that what a row attends to decides where it and others are multiplied."""
    moe = MoEConfig(
        experts=6, chosen=2, inner_size=24, gated=True, shared=MLPConfig(inner_size=8, bias=False, gated=True)
    )
    return replace(tiny_config(("mamba", "moe", "attention", "moe", "mamba", "moe")), moe=moe)


def tiny_model(config: ModelConfig, seed: int = 0, backend: str = "torch", device: torch.device = CPU) -> HybridModel:
    """device: for which the ops are resolved; the weights stay on the CPU."""
    ops, _ = resolve(backend, device)
    model = HybridModel(config, ops).double()
    g = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=g, dtype=torch.float64)
        scale = 1.0 if name.startswith("embeddings") else 0.6 / parameter.shape[-1] ** 0.5
        if name.endswith("norm.weight") or name.startswith("norm_f"):
            parameter.data = 1 + 0.1 * noise
        elif name.endswith(("A_log", "dt_bias", "D")):
            parameter.data = noise
        else:
            parameter.data = noise * scale * 2
    return model.requires_grad_(False).eval()


def caches(config: ModelConfig, interval: int, slots: int = 3, blocks: int = 40, block_size: int = 4) -> Caches:
    """Poisoned caches in float64."""
    mamba, attention = config.mamba, config.attention
    spec = MambaSpec(
        layers=config.count("mamba"),
        heads=mamba.heads,
        head_dim=mamba.head_dim,
        groups=mamba.groups,
        state_size=mamba.state_size,
        conv_width=mamba.conv_width,
        checkpoint_interval=interval,
        state_dtype=torch.float64,
        activation_dtype=torch.float64,
    )
    kv = KVSpec(
        layers=config.count("attention"),
        kv_heads=attention.kv_heads,
        head_dim=attention.head_dim,
        block_size=block_size,
        dtype=torch.float64,
    )
    return Caches(MambaPool(spec, slots, CPU, poison=True), PagedKV(kv, blocks, CPU, poison=True))
