"""Weights from the safetensors files of a checkpoint folder. Whatever does not fit is told in one error."""

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from statewise.config import Factor, ModelConfig
from statewise.errors import CheckpointError, WeightsError
from statewise.models.families import FAMILIES
from statewise.models.hybrid import HybridModel
from statewise.ops.backend import Ops

# Kept in float32 (float64 in double) whatever the model's dtype: the decay is exponential in them.
# The bias of a router decides between sums that are close.
_ALWAYS_WIDE = ("A_log", "D", "dt_bias", "correction_bias")
# Extra heads for speculative decoding that some Nemotron-H releases carry. Not part of the model proper.
_IGNORED = ("mtp.",)
# In a name that a family gives: which part of the weight's rows, [i], or which of what is stacked in it, {i}.
_PART = re.compile(r"\[(\d+)\]|\{(\d+)\}")


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
    parts = _parts(files, config)
    _check(folder, expected, {name: _joined(shapes) for name, shapes in parts.items()})

    weights: dict[str, Tensor] = {}
    for file in files:
        with _open(file) as tensors:
            for key in tensors.keys():  # noqa: SIM118, a safetensors handle is no mapping
                place = _place(rename(key, config))
                if place.name in expected:
                    wide = place.name.rpartition(".")[2] in _ALWAYS_WIDE
                    to = torch.promote_types(dtype, torch.float32) if wide else dtype
                    tensor = tensors.get_tensor(key)
                    if len(parts[place.name]) == 1 and not place.is_stacked:
                        weights[place.name] = tensor.to(device=device, dtype=to)
                        continue
                    if place.name not in weights:
                        weights[place.name] = torch.empty(expected[place.name], device=device, dtype=to)
                    _rows(weights[place.name], place, parts[place.name]).copy_(tensor)
    _multiply(weights, config.factors)
    if config.tie_embeddings:
        weights["lm_head.weight"] = weights["embeddings.weight"]
    model.load_state_dict(weights, assign=True)
    return model.requires_grad_(False).eval().prepare()


def _multiply(weights: dict[str, Tensor], factors: tuple[Factor, ...]) -> None:
    """In place, each product rounded once."""
    for name, weight in weights.items():
        for factor in factors:
            if name.endswith(factor.ending):
                sections = weight.split([rows for rows, _ in factor.sections])
                for section, (_, by) in zip(sections, factor.sections, strict=True):
                    section.mul_(by)


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


Shape = tuple[int, ...]


class _Place(NamedTuple):
    """Where a tensor of a file goes: a weight of ours, or a part of one."""

    name: str
    part: int
    is_stacked: bool  # the parts lie along a first dimension of their own; else their rows are joined


def _place(name: str) -> _Place:
    part = _PART.search(name)
    if part is None:
        return _Place(name, 0, False)
    return _Place(_PART.sub("", name), int(part[1] or part[2]), part[1] is None)


def _parts(files: list[Path], config: ModelConfig) -> dict[str, dict[int, Shape]]:
    """Shapes of all parts of every weight in the files, by our names; nothing is loaded."""
    parts: defaultdict[str, dict[int, Shape]] = defaultdict(dict)
    rename = FAMILIES[config.architecture].rename
    for file in files:
        with _open(file) as tensors:
            for key in tensors.keys():  # noqa: SIM118
                name, part, is_stacked = _place(rename(key, config))
                if name.startswith(_IGNORED) or (config.tie_embeddings and name == "lm_head.weight"):
                    continue
                if part in parts[name]:
                    raise WeightsError(f"{file}: weight {key} is in an earlier file too")
                shape = tuple(tensors.get_slice(key).get_shape())
                parts[name][part] = (1, *shape) if is_stacked else shape
    for name, shapes in parts.items():
        if len({shape[1:] for shape in shapes.values()}) > 1:
            raise WeightsError(f"{file.parent}: the parts of {name} have shapes {shapes}, expected rows of one shape")
    return parts


def _joined(shapes: dict[int, Shape]) -> Shape:
    """The shape of all parts together."""
    first = next(iter(shapes.values()))
    return (sum(shape[0] for shape in shapes.values()), *first[1:]) if len(shapes) > 1 else first


def _rows(weight: Tensor, place: _Place, shapes: dict[int, Shape]) -> Tensor:
    """The view of a weight that a part of it fills. shapes: of all its parts."""
    begin = sum(shapes[part][0] for part in shapes if part < place.part)
    return weight[begin] if place.is_stacked else weight[begin : begin + shapes[place.part][0]]


def _check(folder: Path, expected: dict[str, Shape], found: dict[str, Shape]) -> None:
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
