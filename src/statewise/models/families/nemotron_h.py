"""NemotronHForCausalLM: Mamba-2, attention, MLP and expert layers in any order (Nemotron-H, Nemotron Nano 2 and 3)."""

import re

from statewise.config import MLPConfig, ModelConfig, MoEConfig, SigmoidRouter
from statewise.errors import CheckpointError, UnsupportedModelError
from statewise.models.families.common import (
    Family,
    HFConfig,
    attention_config,
    expect_choice,
    mamba_config,
    shared_fields,
    without_prefix,
)

_NAMES = {
    r"\.mixer\.gate\.weight$": ".mixer.router.weight",
    r"\.mixer\.gate\.e_score_correction_bias$": ".mixer.router.correction_bias",
    r"\.mixer\.shared_experts\.": ".mixer.shared.",
    r"\.mixer\.experts\.(\d+)\.(up_proj|down_proj)\.weight$": r".mixer.experts.\2{\1}",
}
_LETTERS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
_TYPES = {"linear_attention": "mamba", "mamba": "mamba", "full_attention": "attention", "attention": "attention"}


def _nemotron_pattern(hf: HFConfig) -> tuple[str, ...]:
    """Layer kinds from ``hybrid_override_pattern`` (released files) or ``layers_block_type`` (transformers 5)."""
    letters, types = hf.get("hybrid_override_pattern"), hf.get("layers_block_type", hf.get("layer_types"))
    if letters is None and types is None:
        raise CheckpointError(f"{hf.path} has neither 'hybrid_override_pattern' nor 'layers_block_type'")
    kinds = [_LETTERS.get(x, x) for x in letters] if letters is not None else [_TYPES.get(x, x) for x in types]
    for index, kind in enumerate(kinds):
        if kind not in ("mamba", "attention", "mlp", "moe"):
            raise UnsupportedModelError(
                f"{hf.path}: layer {index} is of kind {kind!r}; supported are mamba, attention, mlp and moe"
            )
    if letters is not None and hf.get("num_hidden_layers", len(kinds)) != len(kinds):
        said = hf.get("num_hidden_layers")
        raise CheckpointError(f"{hf.path}: num_hidden_layers is {said}, but the pattern has {len(kinds)} layers")
    return tuple(kinds)


def _moe(hf: HFConfig) -> MoEConfig:
    hf.expect("moe_latent_size", None)
    hf.expect("n_shared_experts", 1)
    moe = MoEConfig(
        experts=hf.size("n_routed_experts"),
        chosen=hf.size("num_experts_per_tok"),
        inner_size=hf.size("moe_intermediate_size"),
        gated=False,
        shared=MLPConfig(
            inner_size=hf.size("moe_shared_expert_intermediate_size"), bias=bool(hf.get("mlp_bias", False))
        ),
        sigmoid=SigmoidRouter(
            groups=hf.size("n_group", 1),
            chosen_groups=hf.size("topk_group", 1),
            normalised=bool(hf.get("norm_topk_prob", True)),
            scale=hf.number("routed_scaling_factor", 1.0),
        ),
    )
    expect_choice(hf, moe)
    return moe


def _read(hf: HFConfig) -> ModelConfig:
    hf.expect("mamba_hidden_act", "silu")
    hf.expect("mlp_hidden_act", "relu2")
    hf.expect("attention_bias", False)
    hf.expect("sliding_window", None)
    pattern = _nemotron_pattern(hf)
    head_dim = hf.get("head_dim", hf.get("attention_head_dim"))
    attention = attention_config(hf, None if head_dim is None else hf.with_values(head_dim=head_dim).size("head_dim"))
    mlp = MLPConfig(inner_size=hf.size("intermediate_size"), bias=bool(hf.get("mlp_bias", False)))
    return ModelConfig(
        **shared_fields(hf, "NemotronHForCausalLM", pattern),
        mamba=mamba_config(hf, "mamba_num_heads", "mamba_head_dim", "ssm_state_size", "use_bias"),
        attention=attention if "attention" in pattern else None,
        mlp=mlp if "mlp" in pattern else None,
        moe=_moe(hf) if "moe" in pattern else None,
    )


def _rename(name: str, config: ModelConfig) -> str:
    name = without_prefix(name, config)
    for theirs, ours in _NAMES.items():
        name = re.sub(theirs, ours, name)
    return name


FAMILY = Family(_read, _rename)
