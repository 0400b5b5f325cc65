"""NemotronHForCausalLM: Mamba-2, attention and MLP layers in any order (Nemotron-H, Nemotron Nano 2)."""

from statewise.config import MLPConfig, ModelConfig
from statewise.errors import CheckpointError, UnsupportedModelError
from statewise.models.families.common import Family, HFConfig, attention_config, mamba_config, shared_fields

_LETTERS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
_TYPES = {"linear_attention": "mamba", "mamba": "mamba", "full_attention": "attention", "attention": "attention"}


def _nemotron_pattern(hf: HFConfig) -> tuple[str, ...]:
    """Layer kinds from ``hybrid_override_pattern`` (released files) or ``layers_block_type`` (transformers 5)."""
    letters, types = hf.get("hybrid_override_pattern"), hf.get("layers_block_type", hf.get("layer_types"))
    if letters is None and types is None:
        raise CheckpointError(f"{hf.path} has neither 'hybrid_override_pattern' nor 'layers_block_type'")
    kinds = [_LETTERS.get(x, x) for x in letters] if letters is not None else [_TYPES.get(x, x) for x in types]
    for index, kind in enumerate(kinds):
        if kind not in ("mamba", "attention", "mlp"):
            raise UnsupportedModelError(
                f"{hf.path}: layer {index} is of kind {kind!r}; supported are mamba, attention and mlp"
            )
    if letters is not None and hf.get("num_hidden_layers", len(kinds)) != len(kinds):
        said = hf.get("num_hidden_layers")
        raise CheckpointError(f"{hf.path}: num_hidden_layers is {said}, but the pattern has {len(kinds)} layers")
    return tuple(kinds)


def _read(hf: HFConfig) -> ModelConfig:
    hf.expect("mamba_hidden_act", "silu")
    hf.expect("mlp_hidden_act", "relu2")
    hf.expect("attention_bias", False)
    hf.expect("sliding_window", None)
    pattern = _nemotron_pattern(hf)
    head_dim = hf.get("head_dim", hf.get("attention_head_dim"))
    attention = attention_config(hf, None if head_dim is None else hf.with_values(head_dim=head_dim).size("head_dim"))
    return ModelConfig(
        **shared_fields(hf, "NemotronHForCausalLM", pattern),
        mamba=mamba_config(hf, "mamba_num_heads", "mamba_head_dim", "ssm_state_size", "use_bias"),
        attention=attention if "attention" in pattern else None,
        mlp=MLPConfig(inner_size=hf.size("intermediate_size"), bias=bool(hf.get("mlp_bias", False))),
    )


FAMILY = Family(_read)
