"""Stochastic rounding in the engine: who gets which seed, and that a run repeats itself."""

import copy

import pytest
import torch

from statewise import EngineConfig
from statewise.cache.mamba import MambaPool
from statewise.engine.runner import FIRST_RAND_SEED
from statewise.errors import ConfigError
from statewise.ops import rounding
from tests.engine.harness import MODEL, engine, greedy, random_prompts, run

CPU = torch.device("cpu")


def sixteen_bit(**options):
    """The tiny model in float32 with float16 states, rounded stochastically unless ``options`` say otherwise."""
    defaults = {"dtype": "float32", "state_dtype": "float16", "stochastic_rounding": True, "checkpoint_interval": 3}
    return engine(model=copy.deepcopy(MODEL).float(), **(defaults | options))


@pytest.fixture
def drawn(monkeypatch):
    """The (seed, layer) of every draw, as they were when it was made."""
    draws, draw = [], rounding.page_words

    def watched(rand_seed, rand_layer, *args):
        draws.append((int(rand_seed), rand_layer))
        return draw(rand_seed, rand_layer, *args)

    monkeypatch.setattr(rounding, "page_words", watched)
    return draws


def test_every_step_has_its_seed_and_every_layer_its_number(drawn):
    built = sixteen_bit(checkpoint_interval=1)
    run(built, random_prompts(1, seed=0), [greedy(max_tokens=6)])
    # The prefill is the first step and draws nothing; five decode steps follow.
    layers = range(built.plan.mamba.layers)
    assert drawn == [(FIRST_RAND_SEED + step, layer) for step in range(1, 6) for layer in layers]


def test_without_the_option_nothing_is_drawn(drawn):
    run(sixteen_bit(stochastic_rounding=False), random_prompts(1, seed=0), [greedy(max_tokens=6)])
    assert not drawn


@pytest.mark.parametrize("interval", [1, 3])
def test_a_run_repeats_itself_and_is_not_that_of_rounding_to_nearest(interval):
    def states(**options):
        built = sixteen_bit(checkpoint_interval=interval, poison=False, **options)
        requests = run(built, random_prompts(3, seed=1), [greedy(max_tokens=8)] * 3)
        return [r.output for r in requests], built.runner.caches.mamba.state.clone()

    (tokens, first), (again, second), (_, nearest) = states(), states(), states(stochastic_rounding=False)
    assert tokens == again
    assert torch.equal(first, second)
    assert not torch.equal(first, nearest)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_state_that_is_not_rounded_is_an_error(dtype):
    with pytest.raises(ConfigError, match=f"state_dtype is {dtype}, expected one of float16, bfloat16"):
        EngineConfig(stochastic_rounding=True, state_dtype=dtype)


def test_the_plan_says_so():
    assert "in float16, written once in 3 tokens, rounded stochastically" in "\n".join(sixteen_bit().plan.lines())


def test_the_seed_is_one_tensor_for_all_layers_and_no_part_of_a_slot():
    spec, seed = sixteen_bit().plan.mamba, torch.zeros(1, dtype=torch.int64)
    pool = MambaPool(spec, 2, CPU, rand_seed=seed)
    assert all(pool.layer(i).rand_seed is seed and pool.layer(i).layer_index == i for i in range(spec.layers))
    assert pool.nbytes == 2 * spec.bytes_per_slot
