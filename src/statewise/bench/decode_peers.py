"""Whole engines to compare with, on the same config and prompts: Hugging Face's `generate` and vLLM.

Each is timed as ours is, from one step's tokens on the host to the next step's.
"""

import importlib.util
import itertools
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from statewise.bench.decode import WARM_STEPS, Load, Timing, emptied
from statewise.bench.rates import wait
from statewise.errors import BackendError, ConfigError
from statewise.models.families import FAMILIES, read_config

PEERS = ("transformers", "vllm")


def expect_importable(names: Sequence[str]) -> None:
    """Raise BackendError that names every peer that is not installed."""
    absent = [name for name in names if importlib.util.find_spec(name) is None]
    if absent:
        raise BackendError(f"peer {', '.join(absent)} cannot be imported here: not installed")


def transformers_model(folder: Path, weights: Mapping[str, Tensor], dtype: torch.dtype) -> Any:
    """transformers' model of a folder's config over our weights; those that it wants in another dtype are copied.

    Raises ConfigError if its weights have other names than ours.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=dtype)
    ours = read_config(folder)
    wanted = {key: FAMILIES[ours.architecture].rename(key, ours) for key in model.state_dict()}
    absent = sorted(set(wanted.values()) - set(weights))
    if absent:
        raise ConfigError(f"transformers names weights that ours lack: {', '.join(absent[:4])}")
    types = {key: tensor.dtype for key, tensor in model.state_dict().items()}
    model.load_state_dict({key: weights[name].to(types[key]) for key, name in wanted.items()}, assign=True)
    for config in (model.config, model.generation_config):
        config.eos_token_id = None  # as with ignore_eos
    return model.eval()


class Arrivals:
    """A streamer that notes when each step's tokens reach the host. The first is the prompt."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.tokens: list[Tensor] = []

    def put(self, tokens: Tensor) -> None:
        """Called by `generate` with the prompts, then with each step's tokens, (batch,)."""
        self.times.append(time.perf_counter())
        self.tokens.append(tokens)

    def end(self) -> None:
        """Called by `generate` at the end."""


def time_transformers(model: Any, load: Load, vocab_size: int, device: torch.device) -> tuple[Timing, Tensor]:
    """A timing of `generate`, greedy, its default cache, and its tokens, (batch, new). May run out of memory."""
    from transformers import GenerationConfig

    prompts = torch.tensor(load.prompts(vocab_size), device=device)

    def generate(new: int) -> tuple[float, Arrivals]:
        options = GenerationConfig(max_new_tokens=new, do_sample=False, pad_token_id=0, eos_token_id=None)
        arrivals = Arrivals()
        wait(device)
        begin = time.perf_counter()
        with torch.inference_mode():
            model.generate(
                prompts, attention_mask=torch.ones_like(prompts), generation_config=options, streamer=arrivals
            )
        return begin, arrivals

    with emptied(device):
        generate(2)
        begin, arrivals = generate(1 + WARM_STEPS + load.tokens)
    steps = [after - before for before, after in itertools.pairwise(arrivals.times[1:])]
    first = (arrivals.times[1] - begin,) * load.batch
    return Timing(first, tuple(steps[-load.tokens :])), torch.stack(arrivals.tokens[1:], 1)


def vllm_engine(
    folder: Path, dtype: str, state_dtype: str, loads: Sequence[Load], length: int, options: Mapping[str, object]
) -> Any:
    """vLLM with random weights of its own. length: tokens of a request at most.  options: of `vllm.LLM`, they win.

    Raises ConfigError with vLLM's own reason where it does not start.
    """
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # one process holds the GPU, and ends with it
    from vllm import LLM

    asked: dict[str, object] = {
        "model": str(folder),
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "dtype": dtype,
        "mamba_ssm_cache_dtype": state_dtype,
        "max_num_seqs": max(load.batch for load in loads),
        "max_model_len": length,
        "enable_prefix_caching": False,
        "seed": 0,
    }
    try:
        return LLM(**(asked | dict(options))).llm_engine
    except (ValueError, RuntimeError, TypeError, NotImplementedError) as error:
        raise ConfigError(f"vllm does not start: {str(error).strip().splitlines()[-1][:200]}") from error


def time_vllm(engine: Any, load: Load, vocab_size: int, new_tokens: int) -> Timing:
    """A timing of vLLM's own loop. new_tokens: of each request, so many that none ends before the last timed step."""
    from vllm import SamplingParams

    for warm in (True, False):
        params = SamplingParams(temperature=0, max_tokens=3 if warm else new_tokens, ignore_eos=True, detokenize=False)
        names = [f"{load.batch}-{warm}-{index}" for index in range(load.batch)]
        begin = time.perf_counter()
        for name, prompt in zip(names, load.prompts(vocab_size), strict=True):
            engine.add_request(name, {"prompt_token_ids": list(prompt)}, params)
        timing = _follow(engine, names, load, begin, warm)
    return timing


def _follow(engine: Any, names: Sequence[str], load: Load, begin: float, to_the_end: bool) -> Timing:
    """Step until enough is known, then abort. A step counts once every request has had its first token."""
    first: dict[str, float] = {}
    times: list[float] = []
    enough: Callable[[], bool] = lambda: len(times) > WARM_STEPS + load.tokens and not to_the_end  # noqa: E731
    while engine.has_unfinished_requests() and not enough():
        outputs = engine.step()
        now = time.perf_counter()
        if not outputs:
            continue
        is_steady = len(first) == len(names) and len(outputs) == len(names)
        for output in outputs:
            first.setdefault(output.request_id, now - begin)
        if is_steady:
            times.append(now)
    engine.abort_request(list(names))
    while engine.has_unfinished_requests():
        engine.step()
    steps = [after - before for before, after in itertools.pairwise(times)][-load.tokens :]
    if not to_the_end and len(steps) < load.tokens:
        raise ConfigError(f"vllm gave {len(steps)} steady steps at batch {load.batch}, expected {load.tokens}")
    return Timing(tuple(first[name] for name in names), tuple(steps))
