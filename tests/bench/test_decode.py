"""Whole-model decode on a CPU: weights that stay finite, both modes, where the time of a step goes."""

from dataclasses import replace

import pytest
import torch

from statewise.bench.decode import (
    OURS,
    PLAIN,
    WARM_STEPS,
    Load,
    Run,
    build_engine,
    exact_configs,
    measure_modes,
    percentile,
)
from statewise.bench.decode_shares import REST, attributed, eager, host_gap, own_times, shares, waits
from statewise.bench.decode_weights import model_over, random_weights
from statewise.bench.presets import PRESETS, preset_folder, read_preset
from statewise.config import EngineConfig
from statewise.engine.plan import make_plan
from statewise.errors import ConfigError, StatewiseError
from statewise.layers.attention import Attention
from statewise.models.families import read_config
from statewise.ops.backend import resolve

CPU = torch.device("cpu")
BASE = EngineConfig(checkpoint_interval=4, max_batch=1, max_batched_tokens=32)
LOAD = Load(batch=3, context=20, tokens=10)


@pytest.fixture(scope="module")
def hybrid():
    model = read_preset("tiny-hybrid")
    return model, random_weights(model, torch.float32, CPU)


def test_presets_have_the_parameters_of_the_released_models():
    released = {
        "nemotron-h-8b": 8.10e9,
        "nemotron-nano-9b-v2": 8.89e9,
        "codestral-mamba-7b": 7_285_403_648,
        "nemotron-3-nano-30b-a3b": 31.58e9,
        "granite-4-h-small": 32.2e9,  # its files: 59.99 GiB in bfloat16
    }
    for name, count in released.items():
        config = EngineConfig(dtype="bfloat16", memory=2**40)
        assert make_plan(read_preset(name), config).weight_bytes == pytest.approx(2 * count, rel=1e-3)


def test_every_preset_is_read():
    for name in PRESETS:
        assert read_preset(name) == read_config(preset_folder(name))
    with pytest.raises(ConfigError, match="preset is 'nemotron', expected one of nemotron-h-8b"):
        read_preset("nemotron")


@pytest.mark.parametrize(
    ("name", "steps"),
    [
        ("tiny-hybrid", 200),
        ("tiny-mamba2", 200),
        ("nemotron-h-8b", 20),
        ("codestral-mamba-7b", 20),
        ("granite-4-h-small", 20),
    ],
)
def test_activations_stay_finite_over_hundreds_of_steps_and_in_deep_models(name, steps):
    """The depth and pattern of the model, the sizes of a small one, bfloat16."""
    small = read_preset("tiny-mamba2" if "mamba" in name else "tiny-moe" if "granite" in name else "tiny-hybrid")
    model = replace(small, pattern=read_preset(name).pattern)
    load = Load(batch=1, context=8, tokens=steps)
    config = replace(exact_configs(BASE, load)[OURS], dtype="bfloat16")
    run = Run(build_engine(random_weights(model, torch.bfloat16, CPU), model, config), load)
    run.prefill()
    run.run_on(steps)
    assert run.requests[0].error is None
    assert len(run.requests[0].output) == steps + 1
    for layer in range(model.count("mamba")):
        state = run.engine.runner.caches.mamba.layer(layer).state
        assert state.isfinite().all()
        assert state.abs().max() < 1e3


def test_matrices_keep_the_variance_and_the_mixers_are_fresh_ones(hybrid):
    _, weights = hybrid
    assert weights["layers.0.mixer.in_proj.weight"].std() == pytest.approx(128**-0.5, rel=0.05)
    assert weights["layers.0.mixer.conv1d.weight"].std() == pytest.approx(0.5, rel=0.1)
    dt = torch.nn.functional.softplus(weights["layers.0.mixer.dt_bias"])
    assert 0.999e-3 < dt.min() <= dt.max() < 0.1001
    assert weights["layers.0.mixer.A_log"].exp().min() >= 1
    assert torch.equal(weights["norm_f.weight"], torch.ones(128))


@pytest.mark.parametrize("preset", ["tiny-mamba2", "tiny-hybrid"])
def test_models_share_the_weights_and_16_bit_ones_keep_wide_decays(preset):
    model = replace(read_preset(preset), tie_embeddings=True)
    weights = random_weights(model, torch.bfloat16, CPU)
    ops = resolve("torch", CPU)[0]
    one, two = (model_over(weights, model, ops) for _ in range(2))
    for name, parameter in one.named_parameters():
        assert parameter.data_ptr() == two.get_parameter(name).data_ptr()
        assert parameter.dtype == (torch.float32 if name.endswith(("A_log", "D", "dt_bias")) else torch.bfloat16)
    assert one.lm_head.weight.data_ptr() == one.embeddings.weight.data_ptr()
    joined = [[m.qkv_weight.data_ptr() for m in made.modules() if isinstance(m, Attention)] for made in (one, two)]
    assert joined[0] == joined[1]
    assert bool(joined[0]) == ("attention" in model.pattern)


def test_windows_are_whole_intervals_and_hold_all_steps():
    assert Load(1, 1, 128).windows(16) == [32, 32, 32, 32]
    assert Load(1, 1, 100).windows(16) == [32, 32, 32, 4]
    assert Load(1, 1, 5).windows(16) == [5]


def test_the_nearest_rank():
    values = [float(i) for i in range(1, 101)]
    assert percentile(values, 0.5) == 50
    assert percentile(values, 0.99) == 99
    assert percentile([3.0], 0.99) == 3


@pytest.mark.parametrize(("available", "is_async"), [(2**40, False), (2**40, True), (1, True)])
def test_both_modes_are_timed_in_turn_where_both_fit_and_else_one_after_the_other(hybrid, available, is_async):
    model, weights = hybrid
    base = replace(BASE, async_scheduling=is_async)
    timings, took_turns = measure_modes(weights, model, exact_configs(base, LOAD), LOAD, available)
    assert took_turns == (available > 1)
    assert list(timings) == [OURS, PLAIN]
    for timing in timings.values():
        assert len(timing.first_token) == 3
        assert timing.first_token[0] < timing.first_token[2]  # 60 tokens of prompts, 32 a step
        assert len(timing.steps) == 10
        assert min(timing.steps) > 0
        assert timing.host_gap is None


def test_the_plan_holds_just_the_requests_and_none_is_preempted(hybrid):
    model, weights = hybrid
    run = Run(build_engine(weights, model, exact_configs(BASE, LOAD)[OURS]), LOAD)
    plan = run.engine.plan
    assert plan.slots == 3
    assert plan.blocks == 3 * plan.kv.blocks_for(plan.max_context)
    assert run.engine.config.memory == plan.cache_bytes
    run.warm_up()
    run.prefill()
    run.run_on(16)
    assert len(run.steps(10)) == 10
    assert run.engine.counters.preemptions == 0
    run.end()
    assert not run.engine.has_work
    assert not any(request.text.text.strip("a") for request in run.requests)


@pytest.mark.parametrize(("context", "most"), [(40, 76), (40, 160), (100, 76), (64, 90)])
def test_requests_last_until_the_end_where_prompts_run_in_whole_pieces(hybrid, context, most):
    """A piece that does not fit into what is left of a step waits: the last prompt ends later than its tokens say."""
    model, weights = hybrid
    load = Load(batch=12, context=context, tokens=3)
    base = replace(BASE, deterministic=True, max_batched_tokens=most, async_scheduling=True)
    run = Run(build_engine(weights, model, exact_configs(base, load, extra=0)[OURS]), load)
    run.prefill()
    run.run_on(WARM_STEPS)
    for count in load.windows(4):
        assert len(run.steps(count)) == count
    run.end()


def test_what_is_no_steady_decode_is_an_error(hybrid):
    model, weights = hybrid
    run = Run(build_engine(weights, model, exact_configs(BASE, LOAD)[OURS]), LOAD)
    run.prefill()
    run.engine.abort(run.requests[1])
    with pytest.raises(StatewiseError, match="a step gave 2 tokens, expected 3"):
        run.steps(4)


def test_logits_that_are_no_numbers_are_an_error(hybrid):
    model, weights = hybrid
    bad = weights | {"norm_f.weight": torch.full((128,), torch.nan)}
    run = Run(build_engine(bad, model, exact_configs(BASE, LOAD)[OURS]), LOAD)
    with pytest.raises(StatewiseError, match="request 0 failed: the logits of output token 0 are not numbers"):
        run.prefill()


def test_shares_name_every_kind_of_layer_and_add_up(hybrid):
    model, weights = hybrid
    config = eager(exact_configs(BASE, LOAD, extra=16)[OURS])
    run = Run(build_engine(weights, model, config), LOAD)
    found = shares(run)
    assert list(found) == ["mamba", "mlp", "attention", REST]
    assert sum(found.values()) == pytest.approx(1)
    assert all(0 < share < 1 for share in found.values())
    assert host_gap(run) is None
    assert not any(block._forward_hooks for block in run.engine.runner.model.layers)


def test_only_long_stretches_are_waits():
    spans = [(50, 60), (0, 20), (10, 30), (12, 15), (61, 70)]
    assert waits(spans, least=10) == 20
    assert waits(spans, least=1) == 21
    assert waits(spans, least=30) == 0


def test_a_kernel_that_starts_early_counts_from_the_end_of_those_in_front():
    kernels = [(3, 7), (0, 4), (10, 13), (3.5, 6), (10, 12)]
    own = own_times(kernels)
    assert own == [(0, 4), (3, 3), (3.5, 0), (10, 2), (10, 1)]
    assert sum(time for _, time in own) == 7 + 3  # the time in which any runs
    assert own_times([]) == []


def test_kernels_belong_to_the_latest_range_that_has_begun_where_they_start():
    ranges = [(20, 30, "mlp"), (0, 10, "mamba"), (30, 40, "mamba")]
    own = [(1, 3), (9, 3), (15, 1), (20, 2), (29, 4), (35, 1), (45, 5)]
    assert attributed(ranges, own, ["mamba", "mlp", "attention"]) == {
        "mamba": 3 + 3 + 1,
        "mlp": 2 + 4,
        "attention": 0,
    }


def test_a_layer_that_starts_early_begins_its_own_range_and_adds_nothing_twice():
    """Three layers of three kernels; each kernel starts one unit before the one in front ends, and waits."""
    kernels = [(4 * i - i, 4 * i - i + 4) for i in range(9)]
    ranges = [(kernels[3 * i][0], kernels[3 * i + 2][1], kind) for i, kind in enumerate(("mamba", "attention", "mlp"))]
    assert ranges[1][0] < ranges[0][1]  # they overlap
    spent = attributed(ranges, own_times(kernels), ["mamba", "attention", "mlp"])
    assert spent == {"mamba": 4 + 3 + 3, "attention": 9, "mlp": 9}
    assert sum(spent.values()) == kernels[-1][1]
