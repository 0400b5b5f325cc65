"""With `deterministic` a request's tokens and log probabilities are the same to the bit in any company."""

import copy
import dataclasses
import random
from types import SimpleNamespace

import pytest
import torch

from statewise import LLM
from statewise.bench.presets import read_preset
from statewise.config import EngineConfig
from statewise.demo.questions import word_problems
from statewise.demo.shipped import FOLDER
from statewise.engine.plan import make_plan
from statewise.engine.request import SamplingParams
from statewise.errors import ConfigError
from tests.engine.harness import LETTERS, MODEL, drain, engine, greedy, random_prompts, run
from tests.models.tiny import tiny_config, tiny_model, tiny_moe_config

SINGLE = copy.deepcopy(MODEL).float()
EXPERTS = tiny_model(tiny_moe_config()).float()
PROMPTS = [*random_prompts(9, seed=1, longest=20), *random_prompts(3, seed=2, longest=180)]


def params(i):
    return SamplingParams(temperature=i % 2 * 0.8, seed=i, max_tokens=4 + 3 * (i % 5), ignore_eos=True, logprobs=3)


def fixed(model=SINGLE, **options):
    defaults = {"deterministic": True, "max_batched_tokens": 256, "max_context": 240}
    defaults |= {"dtype": "float32", "state_dtype": "float32"}
    return engine(model=model, **(defaults | options))


def results(built, order, seed=0):
    """By request: tokens and log probabilities. They arrive a few at a time."""
    rng, waiting, requests = random.Random(seed), list(order), {}
    while waiting or built.has_work:
        while waiting and rng.random() < 0.4:
            i = waiting.pop(0)
            requests[i] = built.submit(PROMPTS[i], params(i), LETTERS, i)
        built.step()
    drain(built)
    return {i: (request.output, request.logprobs) for i, request in requests.items()}


@pytest.fixture(scope="module")
def expected():
    return {i: results(fixed(), [i])[i] for i in range(len(PROMPTS))}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_batch": 3},
        {"max_batch": 12},
        {"async_scheduling": True, "checkpoint_interval": 16},
        {"max_batched_tokens": 72 + 8},
        {"state_slots": 2},
    ],
)
def test_company_changes_no_bit(expected, options):
    built = fixed(**options)
    order = list(range(len(PROMPTS)))
    random.Random(7).shuffle(order)
    assert results(built, order) == expected


@pytest.mark.parametrize("options", [{}, {"max_batch": 12, "async_scheduling": True}, {"blocks": 70}])
def test_company_changes_no_bit_with_experts(options):
    """How many rows an expert multiplies depends on their routing: that of the request's own alone."""
    expected = {i: results(fixed(EXPERTS), [i])[i] for i in range(len(PROMPTS))}
    order = list(range(len(PROMPTS)))
    random.Random(8).shuffle(order)
    assert results(fixed(EXPERTS, **options), order) == expected


def test_a_step_of_several_passes_counts_once():
    """On a CPU, where graphs are the same steps without a capture."""
    built = engine(deterministic=True, max_batched_tokens=80)
    built.runner.plan = dataclasses.replace(built.plan, graph_sizes=(1,))
    built.runner._graphs = SimpleNamespace(replay=lambda size: built.runner._decode(size, built.plan.table))
    run(built, [[1, 2, 3]] * 8, [greedy(max_tokens=6)] * 8)
    counters = built.counters
    assert (counters.decode_rows, counters.steps, counters.graph_steps) == (40, 6, 5)


def test_preemption_changes_no_bit():
    wanted = greedy(max_tokens=24, logprobs=2)
    prompts = random_prompts(8, seed=3, longest=14)
    crowd = fixed(max_batch=6, blocks=12, checkpoint_interval=4)
    requests = run(crowd, prompts, [wanted] * 8)
    assert crowd.counters.preemptions > 3
    assert crowd.counters.swaps_in > 3
    for prompt, request in zip(prompts, requests, strict=True):
        [alone] = run(fixed(checkpoint_interval=4), [prompt], [wanted])
        assert (request.output, request.logprobs) == (alone.output, alone.logprobs)


def test_without_it_bits_do_depend_on_company(expected):
    """Else the tests above would show nothing: one row and eight rows are multiplied in different ways."""
    weight, x = torch.randn(300, 256), torch.randn(8, 256)
    assert not torch.equal((x @ weight.T)[:1], x[:1] @ weight.T)


def test_what_does_not_go_with_it():
    config = {"deterministic": True, "dtype": "float32"}
    with pytest.raises(ConfigError, match="stochastic_rounding, which depends on the step"):
        EngineConfig.of(**config, state_dtype="bfloat16", stochastic_rounding=True)
    with pytest.raises(ConfigError, match=r"max_batched_tokens is 64, .* expected at least 128"):
        make_plan(tiny_config(), EngineConfig.of(**config, max_batched_tokens=64))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("state_dtype", ["float32", "bfloat16"])
def test_on_a_gpu_concurrency_changes_no_token(state_dtype):
    """The shipped model in bfloat16, CUDA graphs and asynchronous scheduling on; some prompts have several pieces."""
    prompts = [question.prompt for question in word_problems(40, seed=5)]
    prompts += ["\n\n".join(prompts[i : i + 12]) for i in range(0, 40, 8)]
    wanted = SamplingParams(temperature=0, max_tokens=60, logprobs=2)
    options = {"device": "cuda", "quiet": True, "deterministic": True, "state_dtype": state_dtype}
    runs = []
    for most, chunks in ((1, 2048), (4, 600), (50, 2048), (150, 700)):
        outputs = LLM(FOLDER, max_batch=most, max_batched_tokens=chunks, **options).generate(prompts, wanted)
        runs.append([(output.token_ids, output.logprobs) for output in outputs])
    assert all(run == runs[0] for run in runs[1:])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_on_a_gpu_concurrency_changes_no_bit_with_experts(dtype):
    """Random weights, for which routing is even (tied, they repeat one token); some prompts have several pieces."""
    config = dataclasses.replace(read_preset("tiny-moe"), vocab_size=31, tie_embeddings=False)
    model = tiny_model(config, backend="triton", device=torch.device("cuda"))
    for name, weight in model.named_parameters():
        wide = name.rpartition(".")[2] in ("A_log", "D", "dt_bias")
        weight.data = weight.data.to("cuda", torch.float32 if wide else dtype)
    prompts = [*random_prompts(140, seed=1, longest=60), *random_prompts(12, seed=2, longest=700)]
    wanted = [SamplingParams(temperature=i % 2 * 0.8, seed=i, max_tokens=24, logprobs=2) for i in range(len(prompts))]
    options = {"device": "cuda", "deterministic": True, "dtype": str(dtype).removeprefix("torch."), "max_context": 800}
    runs = []
    for most, chunks in ((1, 2048), (5, 600), (152, 2048)):
        built = engine(model=model, state_dtype="float32", max_batch=most, max_batched_tokens=chunks, **options)
        assert built.plan.product_reason == "a kernel of ours: deterministic is on"
        runs.append([(request.output, request.logprobs) for request in run(built, prompts, wanted)])
    assert len({tuple(output) for output, _ in runs[0]}) > 60
    assert all(each == runs[0] for each in runs[1:])
