"""Weights from the safetensors files of a checkpoint folder. Whatever does not fit is told in one error."""

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from statewise.config import ModelConfig
from statewise.errors import CheckpointError, WeightsError
from statewise.models.families import FAMILIES
from statewise.models.hybrid import HybridModel
from statewise.ops.backend import Ops

# Kept in float32 (float64 in double) whatever the model's dtype: the decay is exponential in them.
_ALWAYS_WIDE = ("A_log", "D", "dt_bias")
# Extra heads for speculative decoding that some Nemotron-H releases carry. Not part of the model proper.
_IGNORED = ("mtp.",)
# In a name that a family gives: which part of the weight's rows.
_PART = re.compile(r"\[(\d+)\]")


def load_model(folder: Path, config: ModelConfig, ops: Ops, dtype: torch.dtype, device: torch.device) -> HybridModel:
    """The model with its weights, in ``dtype`` on ``device``, ready for inference.

    Raises WeightsError that lists every missing, unexpected and wrongly shaped weight; CheckpointError for a file
    that is missing, truncated or not a safetensors file.
    """
    with torch.device("meta"):
        model = HybridModel(config, ops)
    rename = FAMILIES[config.architecture].rename
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    if config.tie_embeddings:
        del expected["lm_head.weight"]
    files = weight_files(folder)
    _check(folder, expected, _shapes(files, config))

    parts: defaultdict[str, dict[int, Tensor]] = defaultdict(dict)
    for file in files:
        with _open(file) as tensors:
            for key in tensors.keys():  # noqa: SIM118, a safetensors handle is no mapping
                name, part = _place(rename(key, config))
                if name in expected:
                    wide = name.rpartition(".")[2] in _ALWAYS_WIDE
                    to = torch.promote_types(dtype, torch.float32) if wide else dtype
                    parts[name][part] = tensors.get_tensor(key).to(device=device, dtype=to)
    weights = {name: _joined(parts.pop(name)) for name in list(parts)}
    if config.tie_embeddings:
        weights["lm_head.weight"] = weights["embeddings.weight"]
    model.load_state_dict(weights, assign=True)
    return model.requires_grad_(False).eval().prepare()


def weight_files(folder: Path) -> list[Path]:
    """The files that the index names, or all safetensors files of a folder without an index."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        try:
            names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise CheckpointError(f"{index} cannot be read: {error!r}") from error
        if not all(isinstance(name, str) for name in names):
            raise CheckpointError(f"{index} maps a weight to something that is no file name")
        missing = [name for name in names if not (folder / name).is_file()]
        if missing:
            raise CheckpointError(f"{folder} lacks {', '.join(missing)}, which {index.name} names")
        return [folder / name for name in names]
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise CheckpointError(f"{folder} has no *.safetensors file")
    return files


@contextmanager
def _open(file: Path) -> Iterator[Any]:
    try:
        with safe_open(file, framework="pt") as tensors:
            yield tensors
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{file} cannot be read, it may be truncated: {error}") from error


def _shapes(files: list[Path], config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every weight in the files, by our names; nothing is loaded."""
    parts: defaultdict[str, dict[int, tuple[int, ...]]] = defaultdict(dict)
    rename = FAMILIES[config.architecture].rename
    for file in files:
        with _open(file) as tensors:
            for key in tensors.keys():  # noqa: SIM118
                name, part = _place(rename(key, config))
                if name.startswith(_IGNORED) or (config.tie_embeddings and name == "lm_head.weight"):
                    continue
                if part in parts[name]:
                    raise WeightsError(f"{file}: weight {key} is in an earlier file too")
                parts[name][part] = tuple(tensors.get_slice(key).get_shape())
    for name, shapes in parts.items():
        if len({shape[1:] for shape in shapes.values()}) > 1:
            raise WeightsError(f"{file.parent}: the parts of {name} have shapes {shapes}, expected rows of one shape")
    return {name: _joined_shape([*shapes.values()]) for name, shapes in parts.items()}


def _place(name: str) -> tuple[str, int]:
    """The weight, and which part of its rows."""
    part = _PART.search(name)
    return (name, 0) if part is None else (_PART.sub("", name), int(part[1]))


def _joined(parts: dict[int, Tensor]) -> Tensor:
    return torch.cat([parts[i] for i in sorted(parts)]) if len(parts) > 1 else next(iter(parts.values()))


def _joined_shape(shapes: list[tuple[int, ...]]) -> tuple[int, ...]:
    return (sum(shape[0] for shape in shapes), *shapes[0][1:]) if len(shapes) > 1 else shapes[0]


def _check(folder: Path, expected: dict[str, tuple[int, ...]], found: dict[str, tuple[int, ...]]) -> None:
    problems = [f"missing {name} {shape}" for name, shape in expected.items() if name not in found]
    problems += [f"unexpected {name} {shape}" for name, shape in found.items() if name not in expected]
    problems += [
        f"{name} has shape {found[name]}, expected {shape}"
        for name, shape in expected.items()
        if found.get(name, shape) != shape
    ]
    if problems:
        listed = "\n  ".join(problems)
        raise WeightsError(f"{folder}: {len(problems)} weights do not fit the config\n  {listed}")
