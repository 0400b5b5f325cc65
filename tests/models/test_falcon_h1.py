"""Falcon-H1: where its multipliers go, what its config may not say, and how `info` shows it."""

import json

import pytest
import torch
from safetensors.torch import load_file

from statewise.cli import main
from statewise.config import Factor
from statewise.errors import CheckpointError, UnsupportedModelError
from statewise.models.families import read_config
from statewise.models.weights import load_model
from statewise.ops.backend import resolve
from tests.models.test_transformers import FALCON, SMALL, saved
from tests.models.tiny import CPU

FIELDS = {"architectures": ["FalconH1ForCausalLM"], **SMALL, **FALCON}


def read(folder, **changes):
    (folder / "config.json").write_text(json.dumps(FIELDS | changes))
    return read_config(folder)


def test_multipliers_go_where_they_round_least(tmp_path):
    config = read(tmp_path)
    assert config.pattern == ("mamba+attention", "mlp") * 2
    assert (config.count("mamba"), config.count("attention"), config.count("mlp")) == (2, 2, 2)
    assert config.attention.scale == pytest.approx(0.8**2 * 0.6 / 8**0.5)
    assert config.embedding_multiplier == 5.7
    assert config.logits_divisor == pytest.approx(1 / 0.3)
    factors = {factor.ending: factor.sections for factor in config.factors}
    assert [rows for rows, _ in factors[".mamba.in_proj.weight"]] == [48, 48, 24, 24, 6]
    assert factors[".attention.o_proj.weight"] == ((32, pytest.approx(0.8 * 0.9)),)
    assert factors[".mixer.up_proj.weight"] == ((40, 0.9), (40, 1.0))


def test_multipliers_of_one_change_no_weight(tmp_path):
    ones = {name: 1.0 for name in FALCON if name.endswith("_multiplier")}
    config = read(tmp_path, **ones, ssm_multipliers=None, mlp_multipliers=[1.0, 0.5])
    assert config.factors == (Factor(".mixer.down_proj.weight", ((32, 0.5),)),)
    assert config.attention.scale == pytest.approx(8**-0.5)


def test_a_product_is_rounded_once(tmp_path):
    saved(tmp_path, "falcon")
    config = read_config(tmp_path)
    model = load_model(tmp_path, config, resolve("auto", CPU)[0], torch.bfloat16, CPU)
    [file] = tmp_path.glob("*.safetensors")
    given = load_file(file)["model.layers.1.mamba.in_proj.weight"].bfloat16()
    by = torch.tensor([1.3 * m for m in FALCON["ssm_multipliers"]]).repeat_interleave(torch.tensor([48, 48, 24, 24, 6]))
    got = model.state_dict()["layers.2.mixer.mamba.in_proj.weight"]
    assert torch.equal(got, (given.float() * by[:, None]).bfloat16())


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"mamba_rms_norm": True, "mamba_norm_before_gate": True}, UnsupportedModelError, "a norm behind the gate"),
        ({"projectors_bias": True}, UnsupportedModelError, "projectors_bias is True, supported is False"),
        ({"ssm_multipliers": [1.0, 2.0]}, CheckpointError, "expected 5 numbers"),
        ({"mlp_multipliers": [1.0, 0]}, CheckpointError, "mlp_multipliers is 0, expected a positive number"),
        ({"mamba_d_head": 16}, CheckpointError, r"mamba_n_heads \* mamba_d_head is 96, expected 48"),
        ({"rope_scaling": {"rope_type": "llama3"}}, UnsupportedModelError, "the rope type is 'llama3'"),
    ],
)
def test_what_is_not_supported_is_named(tmp_path, changes, error, message):
    with pytest.raises(error, match=message):
        read(tmp_path, **changes)


def test_the_head_size_may_be_left_to_the_channels(tmp_path):
    assert read(tmp_path, mamba_d_head="auto").mamba.head_dim == 8
    assert read(tmp_path, mamba_d_ssm=None, mamba_d_head="auto", mamba_n_heads=4).mamba.head_dim == 16


def test_info_shows_layers_side_by_side_and_their_rope(tmp_path, capsys):
    read(tmp_path, rope_theta=1e11)
    assert main(["info", str(tmp_path), "--memory", "8MiB"]) == 0
    out = capsys.readouterr().out
    assert "4: H-H-" in out
    assert "RoPE of 8 channels, theta 1e+11" in out
