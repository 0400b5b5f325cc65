"""The engine on the Triton kernels: in the interpreter on a CPU, as they are on a GPU."""

import copy

import pytest

from statewise import LLM, SamplingParams
from statewise.demo.questions import word_problems
from tests.engine.harness import MODEL, engine, greedy, random_prompts, run
from tests.models.tiny import tiny_config, tiny_model
from tests.ops.kernels import HAS_GPU


@pytest.mark.skipif(HAS_GPU, reason="the kernels are compiled here, not interpreted: see the GPU test")
@pytest.mark.parametrize("interval", [1, 3])
def test_interpreted_kernels_give_the_tokens_of_the_torch_ops(interval):
    options = {"dtype": "float32", "state_dtype": "float32", "checkpoint_interval": interval}
    kernels = tiny_model(tiny_config(), backend="triton").float()
    prompts, params = random_prompts(2, seed=4, longest=5), [greedy(max_tokens=6)] * 2
    got = run(engine(model=kernels, backend="triton", **options), prompts, params)
    expected = run(engine(model=copy.deepcopy(MODEL).float(), backend="torch", **options), prompts, params)
    assert [r.output for r in got] == [r.output for r in expected]


@pytest.mark.gpu
@pytest.mark.skipif(not HAS_GPU, reason="needs a CUDA device")
@pytest.mark.parametrize("interval", [1, 16])
@pytest.mark.parametrize("state_dtype", ["float32", "bfloat16"])
def test_a_gpu_gives_the_tokens_of_a_cpu(demo_folder, interval, state_dtype):
    """Float32 weights, word problems, some preempted; a bfloat16 state may flip a near-tie now and then."""
    prompts = [question.prompt for question in word_problems(12)]
    params = SamplingParams(temperature=0, max_tokens=40)
    options = {"checkpoint_interval": interval, "state_dtype": state_dtype, "dtype": "float32", "quiet": True}
    gpu = LLM(demo_folder, device="cuda", backend="triton", max_batch=5, poison=True, **options)
    assert gpu.plan.backend == "triton"
    got, expected = gpu.generate(prompts, params), LLM(demo_folder, **options).generate(prompts, params)
    same = sum(a.token_ids == b.token_ids for a, b in zip(got, expected, strict=True))
    assert same >= (12 if state_dtype == "float32" else 9)
