"""FalconH1ForCausalLM: Mamba-2 and attention side by side in each layer, then a gated MLP; muP multipliers.

The multipliers of queries and keys are in the scale of the scores, that of the logits in the last norm; the others are
multiplied into weights as these are loaded, which rounds a weight once more where transformers rounds an activation.
"""

from dataclasses import replace

from statewise.config import AttentionConfig, Factor, MambaConfig, MLPConfig, ModelConfig
from statewise.errors import CheckpointError, UnsupportedModelError
from statewise.models.families.common import (
    Family,
    HFConfig,
    attention_config,
    mamba_config,
    shared_fields,
    with_feed_forward,
)
from statewise.models.families.rope import rope_config


def _mamba(hf: HFConfig) -> MambaConfig:
    """``mamba_d_ssm`` channels; null: ``mamba_expand`` hidden sizes."""
    inner = hf.size("mamba_d_ssm", int(hf.get("mamba_expand", 2) * hf.size("hidden_size")))
    hf = hf.with_values(mamba_n_groups=hf.get("mamba_n_groups", 1))
    if hf.get("mamba_d_head", "auto") == "auto":
        hf = hf.with_values(mamba_d_head=inner // hf.size("mamba_n_heads"))
    names = {"groups": "mamba_n_groups", "conv_width": "mamba_d_conv", "conv_bias": "mamba_conv_bias"}
    mamba = mamba_config(hf, "mamba_n_heads", "mamba_d_head", "mamba_d_state", "mamba_proj_bias", **names)
    if mamba.inner_size != inner:
        raise CheckpointError(f"{hf.path}: mamba_n_heads * mamba_d_head is {mamba.inner_size}, expected {inner}")
    has_norm = bool(hf.get("mamba_rms_norm", False))
    if has_norm and hf.get("mamba_norm_before_gate", True):
        raise UnsupportedModelError(f"{hf.path}: mamba_norm_before_gate is on, supported is a norm behind the gate")
    return replace(mamba, norm=has_norm)


def _multipliers(hf: HFConfig, name: str, count: int) -> list[float]:
    """A list of positive numbers; ones where it is missing."""
    given = hf.get(name, [1.0] * count)
    if not isinstance(given, list) or len(given) != count:
        raise CheckpointError(f"{hf.path}: {name} is {given!r:.60}, expected {count} numbers")
    return [hf.with_values(**{name: value}).number(name, 1.0) for value in given]


def _attention(hf: HFConfig) -> AttentionConfig:
    head_dim = hf.size("head_dim", hf.size("hidden_size") // hf.size("num_attention_heads"))
    scale = hf.number("attention_in_multiplier", 1.0) ** 2 * hf.number("key_multiplier", 1.0) * head_dim**-0.5
    return attention_config(hf, head_dim, scale=scale, rope=rope_config(hf, head_dim))


def _factors(hf: HFConfig, mamba: MambaConfig, mlp: MLPConfig) -> tuple[Factor, ...]:
    """Multipliers of inputs and outputs, as those of the rows of weights. No projection has a bias.

    Attention is linear in its values, so their multiplier is in the output projection.
    """
    hidden, inner, states = hf.size("hidden_size"), mamba.inner_size, mamba.groups * mamba.state_size
    ssm_in, attention_in = hf.number("ssm_in_multiplier", 1.0), hf.number("attention_in_multiplier", 1.0)
    in_rows = (inner, inner, states, states, mamba.heads)  # of z, x, B, C, dt
    in_multipliers = _multipliers(hf, "ssm_multipliers", 5)
    gate, down = _multipliers(hf, "mlp_multipliers", 2)
    sections: dict[str, list[tuple[int, float]]] = {
        "mamba.in_proj": [(rows, ssm_in * m) for rows, m in zip(in_rows, in_multipliers, strict=True)],
        "mamba.out_proj": [(hidden, hf.number("ssm_out_multiplier", 1.0))],
        "attention.o_proj": [(hidden, attention_in * hf.number("attention_out_multiplier", 1.0))],
        "mixer.up_proj": [(mlp.inner_size, gate), (mlp.inner_size, 1.0)],
        "mixer.down_proj": [(hidden, down)],
    }
    return tuple(
        Factor(f".{name}.weight", tuple(rows))
        for name, rows in sections.items()
        if any(factor != 1 for _, factor in rows)
    )


def _read(hf: HFConfig) -> ModelConfig:
    hf.expect("hidden_act", "silu")
    for name in ("attention_bias", "mamba_proj_bias", "projectors_bias", "mlp_bias"):
        hf.expect(name, False)
    pattern = ("mamba+attention", "mlp") * hf.size("num_hidden_layers")
    mamba, mlp = _mamba(hf), MLPConfig(inner_size=hf.size("intermediate_size"), bias=False, gated=True)
    return ModelConfig(
        **shared_fields(hf, "FalconH1ForCausalLM", pattern, norm_eps=hf.number("rms_norm_eps", 1e-5)),
        mamba=mamba,
        attention=_attention(hf),
        mlp=mlp,
        embedding_multiplier=hf.number("embedding_multiplier", 1.0),
        logits_divisor=1 / hf.number("lm_head_multiplier", 1.0),
        factors=_factors(hf, mamba, mlp),
    )


FAMILY = Family(
    _read, with_feed_forward({"input_layernorm": "norm", "mamba": "mixer.mamba", "self_attn": "mixer.attention"})
)
