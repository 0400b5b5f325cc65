"""The models that `statewise bench decode` knows by name: a folder each with nothing but ``config.json``.

They are folders, so that `read_config`, transformers and vLLM each read them as they read a checkpoint's.
"""

from pathlib import Path

from statewise.config import ModelConfig
from statewise.errors import ConfigError
from statewise.models.families import read_config

FOLDER = Path(__file__).parent / "configs"

# name -> what it is, and where the numbers of its config.json come from.
PRESETS = {
    # nvidia/Nemotron-H-8B-Base-8K: the defaults of `NemotronHConfig`, in transformers before version 5, with that
    # release's context. 8.10 G parameters.
    "nemotron-h-8b": "24 Mamba-2, 4 attention, 24 MLP layers",
    # nvidia/NVIDIA-Nemotron-Nano-9B-v2: `NemotronNanoModelProvider9Bv2` of NVIDIA's Megatron-Bridge. 8.89 G parameters.
    "nemotron-nano-9b-v2": "27 Mamba-2, 4 attention, 25 MLP layers",
    # mistralai/Mamba-Codestral-7B-v0.1: the defaults of transformers' `Mamba2Config`. 7,285,403,648 parameters.
    "codestral-mamba-7b": "64 Mamba-2 layers",
    # ibm-granite/granite-4.0-h-small: 32.2 G parameters. Its sizes and attention_multiplier are in public tests; the
    # other multipliers, which cost no time, are those of its siblings: logits_scaling is hidden_size / 256 in all of
    # Granite 3 and 4, and of 40 layers the residual multiplier 0.22.
    "granite-4-h-small": "36 Mamba-2 and 4 attention layers, each followed by 72 experts, 10 a token, and a shared one",
    # nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16: its config.json, as the tests of `nemotron3_jax` (The JAX Authors)
    # have it. 31.58 G parameters.
    "nemotron-3-nano-30b-a3b": "23 Mamba-2 and 6 attention layers, 23 of 128 experts, 6 a token, and a shared one",
    # Small ones for a CPU.
    "tiny-hybrid": "5 Mamba-2, 2 attention, 5 MLP layers, 1.2 M parameters",
    "tiny-moe": "4 Mamba-2 layers and one of attention, each followed by 8 experts, 2 a token; 1.7 M parameters",
    "tiny-mamba2": "4 Mamba-2 layers, 0.6 M parameters",
}


def preset_folder(name: str) -> Path:
    """The folder of a preset. Raises ConfigError that lists them for a name that is none."""
    if name not in PRESETS:
        raise ConfigError(f"preset is {name!r}, expected one of {', '.join(PRESETS)}; --model takes a folder")
    return FOLDER / name


def read_preset(name: str) -> ModelConfig:
    """The model of a preset."""
    return read_config(preset_folder(name))
