"""BambaForCausalLM (Bamba 9B v1 and v2): a mixer and a gated MLP in each layer; attention with partial RoPE."""

from statewise.config import MLPConfig, ModelConfig
from statewise.errors import CheckpointError
from statewise.models.families.common import (
    Family,
    HFConfig,
    attention_config,
    ibm_mamba_config,
    shared_fields,
    with_feed_forward,
)
from statewise.models.families.rope import rope_config


def _mixers(hf: HFConfig) -> list[str]:
    """The mixer of each layer: attention where ``attn_layer_indices`` says so."""
    count, attention = hf.size("num_hidden_layers"), hf.get("attn_layer_indices", [])
    if not isinstance(attention, list) or any(index not in range(count) for index in attention):
        raise CheckpointError(f"{hf.path}: attn_layer_indices is {attention!r:.60}, expected numbers below {count}")
    return ["attention" if index in attention else "mamba" for index in range(count)]


def _read(hf: HFConfig) -> ModelConfig:
    hf.expect("hidden_act", "silu")
    hf.expect("attention_bias", False)
    pattern = tuple(kind for mixer in _mixers(hf) for kind in (mixer, "mlp"))
    head_dim = hf.size("head_dim", hf.size("hidden_size") // hf.size("num_attention_heads"))
    # Released files say attn_rotary_emb alone; transformers takes half the head whatever they say.
    rope = rope_config(hf, head_dim, hf.size("attn_rotary_emb", head_dim // 2))
    attention = attention_config(hf, head_dim, rope=rope)
    return ModelConfig(
        **shared_fields(hf, "BambaForCausalLM", pattern, norm_eps=hf.number("rms_norm_eps", 1e-5)),
        mamba=ibm_mamba_config(hf),
        attention=attention if "attention" in pattern else None,
        mlp=MLPConfig(inner_size=hf.size("intermediate_size"), bias=bool(hf.get("mlp_bias", False)), gated=True),
    )


FAMILY = Family(_read, with_feed_forward({"input_layernorm": "norm", "mamba": "mixer", "self_attn": "mixer"}))
