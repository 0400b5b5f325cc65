"""What config files of Granite 4.0 H say, and what is refused by name."""

import json

import pytest

from statewise.bench.presets import preset_folder
from statewise.config import MLPConfig, RopeConfig
from statewise.errors import CheckpointError, UnsupportedModelError
from statewise.models.families import read_config


def read(folder, **changes):
    fields = json.loads((preset_folder("granite-4-h-small") / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps(fields))
    return read_config(folder)


def test_a_layer_is_a_mixer_and_a_mixture_of_experts(tmp_path):
    model = read(tmp_path)
    assert model.pattern[::2] == tuple("attention" if i in (5, 15, 25, 35) else "mamba" for i in range(40))
    assert model.pattern[1::2] == ("moe",) * 40
    assert (model.moe.experts, model.moe.chosen, model.moe.inner_size) == (72, 10, 768)
    assert model.moe.shared == MLPConfig(inner_size=1536, bias=False, gated=True)
    assert (model.attention.scale, model.attention.rope) == (1 / 128, None)
    assert (model.embedding_multiplier, model.residual_multiplier, model.logits_divisor) == (12, 0.22, 16)
    assert model.mlp is None


@pytest.mark.parametrize("position", [None, "nope"])
def test_a_dense_one_has_mlps(tmp_path, position):
    model = read(tmp_path, num_local_experts=0, num_experts_per_tok=0, position_embedding_type=position)
    assert model.pattern[1::2] == ("mlp",) * 40
    assert model.mlp == MLPConfig(inner_size=1536, bias=False, gated=True)
    assert model.moe is None


def test_rope_and_a_head_size_that_is_to_be_worked_out(tmp_path):
    model = read(tmp_path, position_embedding_type="rope", rope_theta=1e6, mamba_d_head="auto")
    assert model.attention.rope == RopeConfig(rotary_dim=128, theta=1e6)
    assert model.mamba.head_dim == 64


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"position_embedding_type": "alibi"}, UnsupportedModelError, "position_embedding_type is 'alibi'"),
        ({"hidden_act": "gelu"}, UnsupportedModelError, "hidden_act is 'gelu', supported is 'silu'"),
        ({"mamba_n_groups": 2}, UnsupportedModelError, "mamba_n_groups is 2, supported is 1"),
        ({"layer_types": ["mamba", "conv"]}, UnsupportedModelError, "layer 1 is of kind 'conv'"),
        ({"layer_types": None}, CheckpointError, "has neither 'layer_types' nor 'layers_block_type'"),
        ({"num_hidden_layers": 39}, CheckpointError, "num_hidden_layers is 39, but layer_types has 40"),
        ({"num_experts_per_tok": 73}, CheckpointError, "num_experts_per_tok is 73, of 72 experts"),
        ({"residual_multiplier": 0}, CheckpointError, "residual_multiplier is 0, expected a positive number"),
        ({"logits_scaling": "16"}, CheckpointError, "logits_scaling is '16', expected a positive number"),
        ({"mamba_d_head": 32}, CheckpointError, "mamba_n_heads * mamba_d_head is 4096, but mamba_expand"),
    ],
)
def test_what_cannot_be(tmp_path, changes, error, message):
    with pytest.raises(error) as raised:
        read(tmp_path, **changes)
    assert message in str(raised.value)
