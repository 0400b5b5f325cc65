"""GraniteMoeHybridForCausalLM (Granite 4.0 H): a mixer and a gated MLP in each layer, in some sizes with experts."""

from statewise.config import MLPConfig, ModelConfig, MoEConfig, RopeConfig
from statewise.errors import CheckpointError, UnsupportedModelError
from statewise.models.families.common import (
    Family,
    HFConfig,
    attention_config,
    expect_choice,
    ibm_mamba_config,
    in_two_blocks,
    shared_fields,
    without_prefix,
)
from statewise.models.families.rope import rope_config

_KINDS = {"mamba": "mamba", "linear_attention": "mamba", "attention": "attention", "full_attention": "attention"}


def _mixers(hf: HFConfig) -> list[str]:
    """The mixer of each layer, from ``layer_types`` (or ``layers_block_type``, its older name)."""
    types = hf.get("layer_types", hf.get("layers_block_type"))
    if types is None:
        raise CheckpointError(f"{hf.path} has neither 'layer_types' nor 'layers_block_type'")
    for index, kind in enumerate(types):
        if kind not in _KINDS:
            raise UnsupportedModelError(
                f"{hf.path}: layer {index} is of kind {kind!r}; supported are {', '.join(_KINDS)}"
            )
    if len(types) != hf.size("num_hidden_layers", len(types)):
        said = hf.get("num_hidden_layers")
        raise CheckpointError(f"{hf.path}: num_hidden_layers is {said}, but layer_types has {len(types)}")
    return [_KINDS[kind] for kind in types]


def _experts(hf: HFConfig, shared: MLPConfig) -> MoEConfig | None:
    """None of a dense model, which says 0."""
    if hf.get("num_local_experts", 0) == 0:
        return None
    moe = MoEConfig(
        experts=hf.size("num_local_experts"),
        chosen=hf.size("num_experts_per_tok"),
        inner_size=hf.size("intermediate_size"),
        gated=True,
        shared=shared,
    )
    expect_choice(hf, moe)
    return moe


def _rope(hf: HFConfig) -> RopeConfig | None:
    """None of all models that have been released with Mamba-2 layers, which say "nope"."""
    if hf.get("position_embedding_type", "nope") == "rope":
        return rope_config(hf, hf.size("hidden_size") // hf.size("num_attention_heads"))
    hf.expect("position_embedding_type", "nope")
    return None


def _read(hf: HFConfig) -> ModelConfig:
    hf.expect("hidden_act", "silu")
    hf.expect("attention_bias", False)
    shared = MLPConfig(inner_size=hf.size("shared_intermediate_size"), bias=False, gated=True)
    moe, mixers = _experts(hf, shared), _mixers(hf)
    pattern = tuple(kind for mixer in mixers for kind in (mixer, "mlp" if moe is None else "moe"))
    attention = attention_config(hf, scale=hf.number("attention_multiplier", 1.0), rope=_rope(hf))
    return ModelConfig(
        **shared_fields(hf, "GraniteMoeHybridForCausalLM", pattern, norm_eps=hf.number("rms_norm_eps", 1e-6)),
        mamba=ibm_mamba_config(hf),
        attention=attention if "attention" in pattern else None,
        mlp=shared if moe is None else None,
        moe=moe,
        embedding_multiplier=hf.number("embedding_multiplier", 1.0),
        residual_multiplier=hf.number("residual_multiplier", 1.0),
        logits_divisor=hf.number("logits_scaling", 1.0),
    )


def _rename(name: str, config: ModelConfig) -> str:
    """Experts have two names in transformers 5: those of released files, and its own."""
    shared = "mixer" if config.moe is None else "mixer.shared"
    name = in_two_blocks(
        without_prefix(name, config),
        mixer={"input_layernorm": "norm", "mamba": "mixer", "self_attn": "mixer"},
        feed_forward={
            "post_attention_layernorm": "norm",
            "shared_mlp.input_linear": f"{shared}.up_proj",
            "shared_mlp.output_linear": f"{shared}.down_proj",
            "block_sparse_moe.router.layer": "mixer.router",
            "block_sparse_moe.input_linear.weight": "mixer.experts.up_proj",
            "block_sparse_moe.output_linear.weight": "mixer.experts.down_proj",
            "block_sparse_moe.router.weight": "mixer.router.weight",
            "block_sparse_moe.experts.gate_up_proj": "mixer.experts.up_proj",
            "block_sparse_moe.experts.down_proj": "mixer.experts.down_proj",
        },
    )
    return {"embed_tokens.weight": "embeddings.weight", "norm.weight": "norm_f.weight"}.get(name, name)


FAMILY = Family(_read, _rename)
