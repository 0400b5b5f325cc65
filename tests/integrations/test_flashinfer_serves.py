"""The engine on the adapter: a slot that comes back with NaN in its rings does not harm its next owner."""

from dataclasses import replace

import pytest
import torch

from statewise.integrations.flashinfer import build
from statewise.ops.backend import resolve
from tests.engine.harness import engine, greedy, random_prompts, run
from tests.integrations import fake_flashinfer
from tests.integrations.test_resolve import MIXER, NEEDS
from tests.models.tiny import tiny_config, tiny_model

CPU = torch.device("cpu")
CONFIG = replace(tiny_config(), mamba=replace(MIXER, state_size=64))


def model(ops):
    """In bfloat16, with the weights in float32 that the loader keeps so."""
    made = tiny_model(CONFIG).bfloat16()
    for name, parameter in made.named_parameters():
        if name.endswith(("A_log", "D", "dt_bias")):
            parameter.data = parameter.data.float()
    for module in made.modules():
        if hasattr(module, "ops"):
            module.ops = ops
    return made


@pytest.mark.parametrize("interval", [1, 4])
def test_traffic_gets_the_tokens_of_the_torch_backend(monkeypatch, interval):
    """More requests than slots, memory poisoned: freed rings hold NaN, and the fake refuses to read any."""
    calls = fake_flashinfer.install(monkeypatch)
    torch_ops = resolve("torch", CPU)[0]
    needs = replace(NEEDS, mamba=CONFIG.mamba, checkpoint_interval=interval)
    options = {"dtype": "bfloat16", "state_dtype": "float32", "checkpoint_interval": interval, "slots": 2}
    prompts, params = random_prompts(5, seed=2), [greedy(max_tokens=10)] * 5
    got = run(engine(model=model(build(torch_ops, needs, CPU)), **options), prompts, params)
    expected = run(engine(model=model(torch_ops), **options), prompts, params)
    assert [r.output for r in got] == [r.output for r in expected]
    assert {name for name, _ in calls} == {"selective_state_update" if interval == 1 else "checkpointing_ssu"}
