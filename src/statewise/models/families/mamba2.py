"""Mamba2ForCausalLM: Mamba-2 layers alone (Codestral-Mamba)."""

from statewise.config import ModelConfig
from statewise.errors import CheckpointError
from statewise.models.families.common import Family, HFConfig, mamba_config, shared_fields


def _read(hf: HFConfig) -> ModelConfig:
    hf.expect("hidden_act", "silu")
    mamba = mamba_config(hf, "num_heads", "head_dim", "state_size", "use_bias")
    expected = int(hf.get("expand", 2) * hf.size("hidden_size"))
    if mamba.inner_size != expected:
        raise CheckpointError(
            f"{hf.path}: num_heads * head_dim is {mamba.inner_size}, but expand * hidden_size is {expected}"
        )
    shared = shared_fields(hf, "Mamba2ForCausalLM", ("mamba",) * hf.size("num_hidden_layers"))
    return ModelConfig(**shared, mamba=mamba, attention=None, mlp=None)


FAMILY = Family(_read)
