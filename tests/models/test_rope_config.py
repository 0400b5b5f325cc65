"""What config files say of RoPE: old and new names, part of a head, and the kinds that are refused by name."""

import json

import pytest

from statewise.config import RopeConfig
from statewise.errors import CheckpointError, UnsupportedModelError
from statewise.models.families import read_config
from statewise.models.families.common import HFConfig
from statewise.models.families.rope import rope_config

YARN = {"rope_type": "yarn", "factor": 4.0}
BAMBA = {
    "architectures": ["BambaForCausalLM"],
    "vocab_size": 67,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "attn_layer_indices": [1],
    "mamba_n_heads": 8,
    "mamba_d_head": 8,
    "mamba_d_state": 16,
}


def write(folder, fields):
    (folder / "config.json").write_text(json.dumps(fields))
    return folder


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, (16, 10_000.0)),
        ({"rope_theta": 5e5, "rope_scaling": None}, (16, 5e5)),
        ({"rope_theta": 5, "partial_rotary_factor": 0.25}, (4, 5.0)),
        ({"rope_scaling": {"type": "default"}}, (16, 10_000.0)),
        ({"rope_theta": 7.0, "rope_parameters": {"rope_type": "default", "rope_theta": 1e11}}, (16, 1e11)),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}, "rope_theta": 3.0}, (8, 3.0)),
    ],
)
def test_old_and_new_names_are_read(tmp_path, fields, expected):
    hf = HFConfig(write(tmp_path, fields) / "config.json")
    assert rope_config(hf, 16) == RopeConfig(rotary_dim=expected[0], theta=expected[1])


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"rope_scaling": YARN}, UnsupportedModelError, "the rope type is 'yarn', supported is 'default'"),
        ({"rope_scaling": {"type": "linear", "factor": 2}}, UnsupportedModelError, "the rope type is 'linear'"),
        ({"rope_parameters": YARN}, UnsupportedModelError, "the rope type is 'yarn'"),
        ({"rope_scaling": "yarn"}, CheckpointError, "rope_scaling is 'yarn', expected an object"),
        ({"rope_theta": 0}, CheckpointError, "rope_theta is 0, expected a positive number"),
        ({"partial_rotary_factor": 0.1}, CheckpointError, "RoPE is to turn 1 of 16 channels, expected an even number"),
        ({"partial_rotary_factor": 1.5}, CheckpointError, "RoPE is to turn 24 of 16 channels"),
    ],
)
def test_what_cannot_be_turned_is_named(tmp_path, fields, error, message):
    with pytest.raises(error, match=message):
        rope_config(HFConfig(write(tmp_path, fields) / "config.json"), 16)
    with pytest.raises(error, match=message):
        read_config(write(tmp_path, BAMBA | fields))


@pytest.mark.parametrize(
    ("fields", "channels"), [({}, 8), ({"attn_rotary_emb": 4}, 4), ({"partial_rotary_factor": 1.0}, 16)]
)
def test_bamba_turns_half_a_head_unless_told(tmp_path, fields, channels):
    config = read_config(write(tmp_path, BAMBA | fields))
    assert config.pattern == ("mamba", "mlp", "attention", "mlp", "mamba", "mlp")
    assert config.attention.rope.rotary_dim == channels


@pytest.mark.parametrize("indices", [[3], [-1], ["1"], 1])
def test_attention_layers_of_bamba_must_be_layers(tmp_path, indices):
    with pytest.raises(CheckpointError, match=r"attn_layer_indices is .*, expected numbers below 3"):
        read_config(write(tmp_path, BAMBA | {"attn_layer_indices": indices}))
