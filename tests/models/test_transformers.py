"""Logits equal those of transformers on random checkpoints that transformers itself saved, for every family."""

import logging

import pytest
import torch

from statewise.layers.batch import Row, make_batch
from statewise.models.families import read_config
from statewise.models.weights import load_model
from statewise.ops.backend import resolve
from tests.models.test_equivalence import step_trackers
from tests.models.tiny import CPU, caches

transformers = pytest.importorskip("transformers")
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

SMALL = {
    "vocab_size": 67,
    "hidden_size": 32,
    "dtype": "float32",
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
}
NEMOTRON = {
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 48,
    "mamba_num_heads": 6,
    "mamba_head_dim": 8,
    "ssm_state_size": 12,
    "n_groups": 2,
    # transformers clamps NemotronH's dt from below to time_step_min, others to time_step_limit. Next to nothing.
    "time_step_min": 1e-9,
}
MAMBA2 = {"num_heads": 8, "head_dim": 8, "state_size": 12, "n_groups": 1, "num_hidden_layers": 3}
EXPERTS = {
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
    "moe_shared_expert_intermediate_size": 40,
    "routed_scaling_factor": 2.5,
}
GRANITE = {
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 24,
    "shared_intermediate_size": 40,
    "num_hidden_layers": 4,
    "layer_types": ["mamba", "attention", "mamba", "attention"],
    "mamba_n_heads": 8,
    "mamba_d_state": 12,
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.22,
    "attention_multiplier": 0.7,
    "logits_scaling": 5.0,
    "rms_norm_eps": 1e-2,  # large, to be seen
}

BAMBA = {
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 40,
    "num_hidden_layers": 4,
    "attn_layer_indices": [1, 3],
    "mamba_n_heads": 8,
    "mamba_d_state": 12,
    "rms_norm_eps": 1e-2,
}

FALCON = {
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "mamba_d_ssm": 48,
    "mamba_n_heads": 6,
    "mamba_n_groups": 2,
    "mamba_d_head": 8,
    "mamba_d_state": 12,
    "mamba_norm_before_gate": False,
    "rms_norm_eps": 1e-2,
    "embedding_multiplier": 5.7,
    "lm_head_multiplier": 0.3,
    "attention_in_multiplier": 0.8,
    "attention_out_multiplier": 0.9,
    "key_multiplier": 0.6,
    "ssm_in_multiplier": 1.3,
    "ssm_out_multiplier": 0.7,
    "ssm_multipliers": [0.9, 0.8, 0.7, 1.2, 1.1],
    "mlp_multipliers": [0.9, 0.6],
}


def saved(tmp_path, family, **options):
    """A random checkpoint folder and transformers' own model."""
    torch.manual_seed(0)
    logging.getLogger("transformers").setLevel(logging.ERROR)
    if family == "nemotron":
        config = transformers.NemotronHConfig(**SMALL, **NEMOTRON, **options)
        model = transformers.NemotronHForCausalLM(config)
        model.set_experts_implementation("eager")  # the others multiply no float64
    elif family == "bamba":
        model = transformers.BambaForCausalLM(transformers.BambaConfig(**SMALL, **BAMBA, **options))
    elif family == "falcon":
        model = transformers.FalconH1ForCausalLM(transformers.FalconH1Config(**SMALL, **FALCON, **options))
    elif family == "granite":
        model = transformers.GraniteMoeHybridForCausalLM(
            transformers.GraniteMoeHybridConfig(**SMALL, **GRANITE, **options)
        )
        model.set_experts_implementation("eager")  # the others multiply no float64
    else:
        model = transformers.Mamba2ForCausalLM(transformers.Mamba2Config(**SMALL, **MAMBA2, **options))
    for name, parameter in model.named_parameters():
        if name.endswith(("dt_bias", "A_log", ".D")):
            parameter.data = torch.randn_like(parameter)
        elif "norm" in name:
            parameter.data = 1 + 0.2 * torch.randn_like(parameter)
        else:
            parameter.data = torch.randn_like(parameter) * 0.3
    for name, bias in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            bias.normal_(std=0.2)
    model.save_pretrained(tmp_path)
    return model.eval()


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("nemotron", {"hybrid_override_pattern": "M-M*-M*"}),
        ("nemotron", {"hybrid_override_pattern": "MM-*", "use_conv_bias": False, "mlp_bias": True}),
        ("nemotron", {"hybrid_override_pattern": "MEM*E", **EXPERTS}),
        (
            "nemotron",
            {"hybrid_override_pattern": "M-E*", **EXPERTS, "norm_topk_prob": False, "n_group": 4, "topk_group": 2},
        ),
        ("granite", {"num_local_experts": 0, "tie_word_embeddings": True}),
        ("granite", {"num_local_experts": 0, "mamba_proj_bias": True, "mamba_conv_bias": False}),
        ("granite", {"num_local_experts": 6, "num_experts_per_tok": 3, "tie_word_embeddings": True}),
        ("granite", {"num_local_experts": 5, "num_experts_per_tok": 1, "position_embedding_type": "rope"}),
        ("bamba", {}),
        ("bamba", {"tie_word_embeddings": True, "mamba_proj_bias": True, "mlp_bias": True}),
        ("bamba", {"rope_parameters": {"rope_type": "default", "rope_theta": 20.0, "partial_rotary_factor": 1.0}}),
        ("falcon", {}),
        ("falcon", {"mamba_rms_norm": True, "tie_word_embeddings": True, "head_dim": 16}),
        ("mamba2", {}),
        ("mamba2", {"tie_word_embeddings": True, "use_bias": True}),
        ("mamba2", {"residual_in_fp32": False, "time_step_limit": (0.05, 0.4)}),
    ],
)
@pytest.mark.parametrize("interval", [1, 4])
def test_prefill_and_decode_equal_transformers(tmp_path, family, options, interval):
    theirs = saved(tmp_path, family, **options)
    config = read_config(tmp_path)
    model = load_model(tmp_path, config, resolve("auto", CPU)[0], torch.float64, CPU)
    tokens = torch.randint(0, 67, (24,), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        expected = theirs.double()(tokens[None], use_cache=False).logits[0].double()
    memory = caches(config if config.attention else _without_attention(config), interval)
    blocks = list(range(6))
    got = []
    for start, end in ((0, 5), (5, 7)):
        chunk = Row(tokens[start:end].tolist(), start, 1, blocks, wants_all_logits=True)
        got.append(model(make_batch([], [chunk], 4, CPU), memory))
    for position in range(7, 24):
        row = Row([int(tokens[position])], position, 1, blocks)
        got.append(model(make_batch([row], [], 4, CPU), memory))
        step_trackers(memory, 1, interval)
    # transformers computes part of it in float32 whatever the dtype of the model.
    torch.testing.assert_close(torch.cat(got), expected, rtol=2e-4, atol=2e-4)


def _without_attention(config):
    from dataclasses import replace

    from statewise.config import AttentionConfig

    return replace(config, attention=AttentionConfig(heads=1, kv_heads=1, head_dim=1))
