"""What a result was made with: versions, machine, and hashes that tell one model from another."""

import hashlib
import json
import platform
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path

import torch

from statewise import __version__
from statewise.errors import CheckpointError
from statewise.models.weights import weight_files


def versions() -> dict[str, str]:
    """Versions that may change an answer. A package that is not installed is "none"."""
    found = {"statewise": __version__, "torch": torch.__version__, "python": platform.python_version()}
    for name in ("triton", "tokenizers"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "none"
    return found


def source_hash() -> str:
    """SHA-256 of this package's code and launch tables, which one version number may stand for several of."""
    root = Path(__file__).parents[1]
    files = sorted(file for kind in ("*.py", "*.json") for file in root.rglob(kind))
    return hash_of([(file.relative_to(root).as_posix(), _sha256(file)) for file in files])


def machine() -> dict[str, object]:
    """Where this runs."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {"machine": platform.machine(), "system": platform.platform(), "gpu": gpu, "cuda": torch.version.cuda}


def model_hashes(folder: Path) -> dict[str, str]:
    """SHA-256 of the configs, the tokenizer and all weights of a model, names of the weights' files included.

    `generation_config.json` may say where a text ends; "none" where there is none.
    Raises CheckpointError for a file that is missing or cannot be read.
    """
    weights = weight_files(folder)
    generation = folder / "generation_config.json"
    files = [folder / "config.json", folder / "tokenizer.json", *weights]
    try:
        with ThreadPoolExecutor(max_workers=8) as pool:  # hashing leaves the interpreter's lock
            config, tokenizer, *each = pool.map(_sha256, files)
        ends = _sha256(generation) if generation.exists() else "none"
    except OSError as error:
        raise CheckpointError(f"{folder}: {error.filename} cannot be read: {error.strerror}") from error
    names = [file.name for file in weights]
    whole = hash_of(list(zip(names, each, strict=True)))
    return {"config": config, "generation_config": ends, "tokenizer": tokenizer, "weights": whole}


def hash_of(items: Sequence[object]) -> str:
    """SHA-256 of a list of strings, or of anything else that JSON can hold."""
    return hashlib.sha256(json.dumps(items, ensure_ascii=True).encode()).hexdigest()


def _sha256(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
