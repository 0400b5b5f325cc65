"""Peers of whole-model decode: transformers over the same weights gives the same tokens; vLLM by its interface."""

import logging
import sys
import types

import pytest
import torch

from statewise.bench.decode import OURS, WARM_STEPS, Load, Run, build_engine, exact_configs
from statewise.bench.decode_peers import (
    expect_importable,
    time_transformers,
    time_vllm,
    transformers_model,
    vllm_engine,
)
from statewise.bench.decode_report import DecodeRow
from statewise.bench.decode_session import Session, make_cases, noting_why
from statewise.bench.decode_weights import random_weights
from statewise.bench.presets import preset_folder, read_preset
from statewise.bench.rates import Rates
from statewise.config import EngineConfig
from statewise.errors import BackendError, ConfigError, EngineError

CPU = torch.device("cpu")


@pytest.mark.parametrize("preset", ["tiny-hybrid", "tiny-mamba2", "tiny-moe"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_generate_over_the_same_weights_gives_the_same_tokens(preset):
    pytest.importorskip("transformers")
    logging.getLogger("transformers").setLevel(logging.ERROR)
    model, load = read_preset(preset), Load(batch=2, context=12, tokens=6)
    weights = random_weights(model, torch.float32, CPU)
    theirs = transformers_model(preset_folder(preset), weights, torch.float32)
    assert theirs.get_input_embeddings().weight.data_ptr() == weights["embeddings.weight"].data_ptr()
    timing, tokens = time_transformers(theirs, load, model.vocab_size, CPU)
    assert len(timing.steps) == 6
    assert len(timing.first_token) == 2
    assert tokens.shape == (2, 1 + WARM_STEPS + 6)

    run = Run(build_engine(weights, model, exact_configs(EngineConfig(), load)[OURS]), load)
    run.prefill()
    run.run_on(WARM_STEPS + 6)
    assert [request.output[: tokens.shape[1]] for request in run.requests] == tokens.tolist()


def test_weights_by_other_names_are_an_error():
    pytest.importorskip("transformers")
    with pytest.raises(ConfigError, match=r"transformers names weights that ours lack: embeddings\.weight"):
        transformers_model(preset_folder("tiny-mamba2"), {}, torch.float32)


def test_a_peer_that_is_not_installed_is_an_error(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(BackendError, match="peer transformers, vllm cannot be imported here: not installed"):
        expect_importable(["transformers", "vllm"])


class FakeEngine:
    """vLLM's LLMEngine as far as it is used: two prompts a step are prefilled, while the others decode."""

    def __init__(self):
        self.waiting, self.running, self.aborted, self.submitted = [], {}, [], []

    def add_request(self, name, prompt, params):
        assert params.options["ignore_eos"]
        assert params.options["temperature"] == 0
        self.submitted.append((name, prompt["prompt_token_ids"]))
        self.waiting.append((name, params.options["max_tokens"]))

    def has_unfinished_requests(self):
        return bool(self.waiting or self.running)

    def step(self):
        self.running |= dict(self.waiting[:2])
        del self.waiting[:2]
        outputs = [types.SimpleNamespace(request_id=name) for name in self.running]
        self.running = {name: left - 1 for name, left in self.running.items() if left > 1}
        return outputs

    def abort_request(self, names):
        self.aborted += names
        self.running = {name: left for name, left in self.running.items() if name not in names}


@pytest.fixture
def fake_vllm(monkeypatch):
    module = types.ModuleType("vllm")
    module.asked = []

    def llm(**options):
        module.asked.append(options)
        if options["mamba_ssm_cache_dtype"] == "bfloat16":
            raise ValueError("first line\nno such cache dtype")
        return types.SimpleNamespace(llm_engine=FakeEngine())

    module.LLM, module.SamplingParams = llm, lambda **options: types.SimpleNamespace(options=options)
    monkeypatch.setitem(sys.modules, "vllm", module)
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    return module


def test_vllm_is_asked_for_random_weights_and_timed_once_all_requests_decode(fake_vllm):
    load = Load(batch=5, context=7, tokens=9)
    folder = preset_folder("tiny-hybrid")
    engine = vllm_engine(folder, "bfloat16", "float32", [Load(1, 7, 9), load], 100, {"max_num_batched_tokens": 64})
    [asked] = fake_vllm.asked
    assert asked["load_format"] == "dummy"
    assert asked["model"] == str(folder)
    assert (asked["max_num_seqs"], asked["max_model_len"], asked["max_num_batched_tokens"]) == (5, 100, 64)
    timing = time_vllm(engine, load, 264, new_tokens=60)
    assert len(timing.first_token) == 5
    assert timing.first_token[0] < timing.first_token[4]
    assert len(timing.steps) == 9
    assert [tuple(ids) for _, ids in engine.submitted] == 2 * load.prompts(264)
    assert not engine.has_unfinished_requests()


def test_vllm_that_ends_too_early_or_does_not_start_is_an_error(fake_vllm):
    load, folder = Load(batch=5, context=7, tokens=9), preset_folder("tiny-hybrid")
    engine = vllm_engine(folder, "bfloat16", "float32", [load], 100, {})
    with pytest.raises(ConfigError, match="vllm gave 8 steady steps at batch 5, expected 9"):
        time_vllm(engine, load, 264, new_tokens=12)
    with pytest.raises(ConfigError, match="vllm does not start: no such cache dtype"):
        vllm_engine(folder, "bfloat16", "bfloat16", [load], 100, {})


def test_what_runs_out_of_memory_is_left_out_and_other_failures_are_not_hidden():
    row = DecodeRow(1, "float32", Rates(1e9, "as given", 1e12, "as given"), {}, ())
    with noting_why([row], "peer"):
        raise torch.OutOfMemoryError("tried to allocate 2 GiB\nmore")
    assert row.left_out == {"peer": "out of memory: tried to allocate 2 GiB"}
    with noting_why([row], OURS):
        raise EngineError("a step failed") from torch.OutOfMemoryError("tried to allocate 1 GiB")
    assert row.left_out[OURS] == "out of memory: tried to allocate 1 GiB"
    with pytest.raises(EngineError, match="a step failed"), noting_why([row], OURS):
        raise EngineError("a step failed") from RuntimeError("an illegal address")


def test_what_was_measured_stays_when_transformers_cannot_take_the_weights():
    pytest.importorskip("transformers")
    model, loads = read_preset("tiny-mamba2"), [Load(1, 4, 4), Load(2, 4, 4)]
    weights = random_weights(model, torch.float32, CPU)
    cases = make_cases(model, [EngineConfig()], loads, extra=0)
    session = Session(model, weights, cases, Rates(1e9, "as given", 1e12, "as given"))
    del weights["norm_f.weight"]
    session.measure_transformers(preset_folder("tiny-mamba2"))
    why = "transformers names weights that ours lack: norm_f.weight"
    assert [row.left_out for row in session.rows] == [{"transformers": why}] * 2
