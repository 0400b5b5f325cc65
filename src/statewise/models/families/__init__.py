"""The model families: one entry an architecture, read from a Hugging Face ``config.json``."""

from pathlib import Path

from statewise.config import ModelConfig
from statewise.errors import CheckpointError, UnsupportedModelError
from statewise.models.families import bamba, falcon_h1, granite, mamba2, nemotron_h
from statewise.models.families.common import Family, HFConfig

__all__ = ["FAMILIES", "Family", "HFConfig", "read_config"]

FAMILIES = {
    "Mamba2ForCausalLM": mamba2.FAMILY,
    "NemotronHForCausalLM": nemotron_h.FAMILY,
    "BambaForCausalLM": bamba.FAMILY,
    "FalconH1ForCausalLM": falcon_h1.FAMILY,
    "GraniteMoeHybridForCausalLM": granite.FAMILY,
}


def read_config(folder: Path) -> ModelConfig:
    """The model that ``folder/config.json`` describes.

    Raises CheckpointError for a missing folder or file or an impossible field, UnsupportedModelError for a family
    or layer kind that is not implemented.
    """
    hf = HFConfig(folder / "config.json")
    architectures = hf.get("architectures", [])
    if not isinstance(architectures, list):
        raise CheckpointError(f"{hf.path}: architectures is {architectures!r:.60}, expected a list of names")
    for architecture in map(str, architectures):
        if architecture in FAMILIES:
            try:
                return FAMILIES[architecture].read(hf)
            except (TypeError, ValueError, AttributeError, OverflowError) as error:
                raise CheckpointError(f"{hf.path} has a field of a wrong kind: {error}") from error
    given = ", ".join(map(str, architectures)) or hf.get("model_type", "nothing")
    raise UnsupportedModelError(f"{hf.path}: family {given} is not supported; supported are {', '.join(FAMILIES)}")
