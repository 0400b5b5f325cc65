"""Rotary position embedding, as the families' files have it."""

from collections.abc import Mapping
from typing import Any

from statewise.config import RopeConfig
from statewise.errors import CheckpointError, UnsupportedModelError
from statewise.models.families.common import HFConfig


def rope_config(hf: HFConfig, head_dim: int, rotary_dim: int | None = None) -> RopeConfig:
    """From ``rope_parameters`` (transformers 5) or ``rope_theta``, ``rope_scaling`` and ``partial_rotary_factor``.

    rotary_dim: the channels where no factor says it; None: all of ``head_dim``.
    Raises UnsupportedModelError for scaled kinds, CheckpointError for impossible numbers.
    """
    scaling, parameters = _object(hf, "rope_scaling"), _object(hf, "rope_parameters")
    kind = parameters.get("rope_type", scaling.get("rope_type", scaling.get("type", "default")))
    if kind != "default":
        raise UnsupportedModelError(f"{hf.path}: the rope type is {kind!r}, supported is 'default'")
    fields = {name: parameters.get(name, hf.get(name)) for name in ("rope_theta", "partial_rotary_factor")}
    hf = hf.with_values(**fields)
    if hf.get("partial_rotary_factor") is not None:
        rotary_dim = int(head_dim * hf.number("partial_rotary_factor", 1.0))
    rotary_dim = head_dim if rotary_dim is None else rotary_dim
    if not 2 <= rotary_dim <= head_dim or rotary_dim % 2:
        raise CheckpointError(
            f"{hf.path}: RoPE is to turn {rotary_dim} of {head_dim} channels, expected an even number"
        )
    return RopeConfig(rotary_dim=rotary_dim, theta=hf.number("rope_theta", 10_000.0))


def _object(hf: HFConfig, name: str) -> Mapping[str, Any]:
    value = hf.get(name, {})
    if not isinstance(value, dict):
        raise CheckpointError(f"{hf.path}: {name} is {value!r:.40}, expected an object")
    return value
