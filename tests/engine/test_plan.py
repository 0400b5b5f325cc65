"""The memory plan: every byte of it is allocated and no other; who gets the budget; how many requests fit."""

import dataclasses
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from statewise import LLM, EngineConfig
from statewise.config import format_bytes, parse_memory
from statewise.engine import budget, plan
from statewise.engine.plan import make_plan
from statewise.errors import ConfigError, MemoryBudgetError
from statewise.ops.mixer_step.scratch import Scratch
from tests.engine.harness import LETTERS, engine, greedy, random_prompts, run
from tests.models.tiny import tiny_config, tiny_model, tiny_moe_config
from tests.ops.kernels import HAS_GPU

TINY = tiny_config()
NO_ATTENTION = tiny_config(("mamba", "mlp"))
MIB = 2**20


def options(**given):
    return EngineConfig.of(**({"kv_block_size": 4, "memory": MIB, "max_context": 800} | given))


def tensors_of(thing, seen):
    """All tensors that can be reached from an object of ours, the model apart, by the address of their memory."""
    if id(thing) in seen or isinstance(thing, torch.nn.Module):
        return {}
    seen[id(thing)] = thing
    if isinstance(thing, torch.Tensor):
        storage = thing.untyped_storage()
        return {storage.data_ptr(): storage.nbytes()} if storage.nbytes() else {}
    inner = (
        list(vars(thing).values())
        if type(thing).__module__.startswith("statewise") and hasattr(thing, "__dict__")
        else []
    )
    if isinstance(thing, dict):
        inner = [*thing, *thing.values()]
    elif isinstance(thing, list | tuple | set | frozenset):
        inner = list(thing)
    found = {}
    for each in inner:
        found |= tensors_of(each, seen)
    return found


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"checkpoint_interval": 1},
        {"dtype": "float32", "state_dtype": "float16", "kv_block_size": 64, "stochastic_rounding": True},
        {"memory": "64KiB"},
        {"state_slots": 3, "kv_blocks": 7},
        {"backend": "triton", "dtype": "float32", "state_dtype": "float32", "checkpoint_interval": 5},
        {"backend": "triton", "dtype": "float32", "state_dtype": "bfloat16", "stochastic_rounding": True},
    ],
)
@pytest.mark.parametrize("pattern", [TINY.pattern, NO_ATTENTION.pattern])
def test_bytes_planned_equal_bytes_allocated(given, pattern):
    """Counted in all that the engine holds, before a request and after some."""
    if given.get("backend") == "triton" and HAS_GPU:
        pytest.skip("the kernels are compiled here, not interpreted")
    given = {name: value for name, value in given.items() if name != "kv_blocks" or "attention" in pattern}
    model = tiny_model(tiny_config(pattern), backend=given.get("backend", "torch"))
    built = engine(model=model.to(getattr(torch, given.get("dtype", "float64"))), **given)
    assert sum(tensors_of(built, {}).values()) == built.plan.cache_bytes
    assert built.plan.cache_bytes <= parse_memory(built.config.memory)
    pools = built.runner.caches
    assert (pools.mamba.nbytes, pools.kv.nbytes) == (built.plan.slot_bytes, built.plan.block_bytes)
    assert (pools.scratch is not None) == (given.get("backend") == "triton")
    if given.get("backend") != "triton":
        run(built, random_prompts(3, seed=0, longest=4), [greedy(max_tokens=3, presence_penalty=1.0)] * 3)
        assert sum(tensors_of(built, {}).values()) == built.plan.cache_bytes


def test_weights_planned_are_weights_loaded(demo_folder):
    built = LLM(demo_folder, quiet=True, memory="2MiB")
    assert sum(p.nbytes for p in built.engine.runner.model.parameters()) == built.plan.weight_bytes


@given(st.integers(1, 70), st.integers(1, 9), st.integers(1, 5), st.integers(1, 64))
def test_scratch_is_so_many_times_that_of_a_row(batch, heads, groups, window):
    dims = (heads, 16, groups, 8, window, torch.bfloat16)
    assert Scratch.size(batch, *dims) == batch * Scratch.size(1, *dims)
    assert Scratch.size(batch, *dims) == sum(t.nbytes for t in Scratch.allocate(batch, *dims, torch.device("cpu")))


def plan_of(model=TINY, **given):
    return make_plan(model, options(**given))


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 4 * MIB), st.integers(1, 300), st.integers(1, 900), st.none() | st.integers(1, 60),
    st.none() | st.integers(1, 2000),
)  # fmt: skip
def test_the_split(memory, max_batch, typical, state_slots, kv_blocks):
    """Within the budget; what is fixed stays; the other side gets all that is of use to it."""
    if state_slots is not None:
        max_batch = max(max_batch, state_slots)
    wanted = {"memory": memory, "max_batch": max_batch, "typical_length": typical}
    least = plan_of(memory="1GiB").costs.of(state_slots or 1, kv_blocks or 1)
    if memory < least:
        with pytest.raises(MemoryBudgetError, match=f"needs at least {least} bytes"):
            plan_of(state_slots=state_slots, kv_blocks=kv_blocks, **wanted)
        return
    made = plan_of(state_slots=state_slots, kv_blocks=kv_blocks, **wanted)
    left = memory - made.cache_bytes
    assert left >= 0
    assert 1 <= made.slots <= max_batch
    assert made.blocks >= 1
    assert state_slots in (None, made.slots)
    assert kv_blocks in (None, made.blocks)
    if kv_blocks is None:
        assert made.blocks <= made.slots * made.kv.blocks_for(800)
        assert left < made.costs.block or made.blocks == made.slots * made.kv.blocks_for(800)
    elif state_slots is None:
        assert left < made.costs.slot or made.slots == max_batch
    if state_slots is None and kv_blocks is None and made.slots not in (1, max_batch):
        assert made.blocks // made.slots >= made.kv.blocks_for(min(typical, 800))
        each = made.costs.slot + made.kv.blocks_for(min(typical, 800)) * made.costs.block
        assert memory < made.costs.fixed + (made.slots + 1) * each
    assert made.max_context == min(800, made.blocks * 4)


@settings(max_examples=30, deadline=None)
@given(st.integers(40_000, 2 * MIB), st.integers(1, 800), st.integers(1, 200))
def test_how_many_requests_fit(memory, tokens, max_batch):
    made = plan_of(memory=memory, max_batch=max_batch)
    count, limit = made.at_once(tokens)
    assert made.at_once(made.max_context)[0] > 0
    if tokens > made.max_context:
        assert (count, limit) == (0, f"context of {made.max_context}")
        return
    assert 1 <= count <= made.slots
    assert count * made.kv.blocks_for(tokens) <= made.blocks
    assert limit == ("max_batch" if count == max_batch else "state slots" if count == made.slots else "KV blocks")
    assert count == made.slots or (count + 1) * made.kv.blocks_for(tokens) > made.blocks
    most = made.most_at_once(tokens)
    assert count <= most
    best = plan_of(memory=memory, max_batch=2000, typical_length=tokens)
    assert best.at_once(tokens)[0] == most


def test_how_many_fit_to_the_byte():
    costs = plan_of().costs
    exact = costs.of(9, 9 * 25)
    assert plan_of(memory=exact).most_at_once(100) == 9
    assert plan_of(memory=exact - 1).most_at_once(100) == 8
    assert plan_of(memory=exact, typical_length=100).at_once(100) == (9, "state slots")
    assert plan_of(memory=exact, state_slots=9).blocks == 9 * 25
    assert plan_of(memory=exact - 1, state_slots=9).blocks == 9 * 25 - 1
    assert plan_of(memory=exact, kv_blocks=9 * 25).slots == 9
    assert plan_of(memory=exact - 1, kv_blocks=9 * 25).slots == 8


def test_no_request_is_typically_longer_than_the_context():
    longest, longer, short = (plan_of(typical_length=tokens) for tokens in (800, 5000, 100))
    assert longer.slots == longest.slots < short.slots


@pytest.mark.parametrize("tokens", [3, 20, 61])
def test_the_scheduler_admits_as_many_as_the_plan_says(tokens):
    built = engine(max_batch=12, max_batched_tokens=2000, memory=150_000, typical_length=16)
    count, _ = built.plan.at_once(tokens)
    assert 0 < count < 20
    for i in range(20):
        built.submit([1] * tokens, greedy(), LETTERS, i)
    assert len(built.scheduler.schedule().prefill) == count


def test_a_model_without_attention_has_no_blocks_and_any_length():
    made = make_plan(NO_ATTENTION, EngineConfig(memory=MIB, max_batch=7))
    assert (made.blocks, made.slots, made.max_context) == (0, 7, None)
    assert made.at_once(10**9) == (7, "max_batch")
    assert made.most_at_once(10**9) == (MIB - made.costs.fixed) // made.costs.slot
    with pytest.raises(ConfigError, match="kv_blocks is 5, but the model has no attention layers"):
        make_plan(NO_ATTENTION, EngineConfig(kv_blocks=5))


def test_max_batch_above_the_slots_is_clamped_with_a_warning():
    """All requests are served, as many at a time as there are slots."""
    built = engine(max_batch=8, state_slots=2)
    message = "max_batch is 8, but there are 2 slots: no more requests run at once"
    assert built.plan.warning == message
    assert built.plan.lines()[-1] == f"warning   {message}"
    requests = [built.submit(p, greedy(max_tokens=3), LETTERS, i) for i, p in enumerate(random_prompts(6, seed=0))]
    most = 0
    while built.has_work:
        built.step()
        most = max(most, len(built.scheduler.running))
    assert most == 2
    assert all(len(r.output) == 3 for r in requests)
    assert engine(max_batch=8).plan.warning is None


def test_more_state_slots_than_requests_is_an_error():
    with pytest.raises(ConfigError, match="state_slots is 9, expected at most max_batch = 8: no more run at once"):
        EngineConfig(max_batch=8, state_slots=9)
    for name in ("state_slots", "kv_blocks"):
        with pytest.raises(ConfigError, match=f"{name} is 0, expected a whole number, at least 1"):
            EngineConfig(**{name: 0})


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (123, 123), ("123", 123), ("64KiB", 2**16), ("1.5 GiB", 3 * 2**29), ("2GB", 2 * 10**9), (2.0**40, 2**40),
        (0.9, 0.9), ("0.9", 0.9), ("90%", 0.9), ("1.0", 1.0), (1, 1), ("100 %", 1.0), ("0.5%", 0.005), ("0.5KiB", 512),
        ("9" * 400, int("9" * 400)),
    ],
)  # fmt: skip
def test_memory_in_every_form(size, expected):
    got = parse_memory(size)
    assert (got, type(got)) == (expected, type(expected))


@pytest.mark.parametrize(
    "size",
    [
        "",
        "lots",
        "9" * 5000,
        "0." + "9" * 5000,
        "-1",
        "0.0",
        "0%",
        "101%",
        "1e3",
        math.nan,
        math.inf,
        True,
        "50%GiB",
        "%",
    ],
)
def test_memory_that_is_none(size):
    with pytest.raises(ConfigError, match=r"^memory is "):
        EngineConfig(memory=size)


def gpu(monkeypatch, free):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU")
    monkeypatch.setattr(budget, "free_memory", lambda device: free)


@pytest.mark.parametrize("share", ["0.5", "50%", 0.5])
def test_a_share_is_of_what_is_free_and_the_weights_are_in_it(monkeypatch, share):
    gpu(monkeypatch, MIB)
    made = plan_of(memory=share, device="cuda", backend="torch")
    assert made.budget == MIB // 2 - made.weight_bytes
    assert made.cache_bytes <= made.budget
    fixed = plan_of(memory=made.budget, device="cuda", backend="torch")
    assert (fixed.slots, fixed.blocks) == (made.slots, made.blocks)


def test_a_share_that_the_weights_do_not_fit_into(monkeypatch):
    gpu(monkeypatch, 1000)
    with pytest.raises(MemoryBudgetError, match="memory is 90% of the 1000 B that are free, less the weights, which"):
        plan_of(memory="90%", device="cuda", backend="torch")


def test_a_share_of_no_gpu_is_an_error():
    with pytest.raises(ConfigError, match="a share of a GPU's free memory, but the device is cpu"):
        plan_of(memory=0.9)
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match="a share of a GPU's free memory, but torch sees no GPU here"):
            plan_of(memory="90%", device="cuda", backend="torch")


def test_free_memory_counts_what_the_allocator_holds_unused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (100, 1000))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 50)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 20)
    assert budget.free_memory(torch.device("cuda")) == 130


def test_the_plan_in_lines_adds_up():
    made = plan_of(max_batch=2)
    text = "\n".join(made.lines())
    beside = made.cache_bytes - made.slot_bytes - made.block_bytes
    row = 2 * TINY.vocab_size * 4 + (5 + 800 // 4) * 4 + 4 * 8  # logits and token counts, inputs
    assert beside == 2 * row + 2 * 8 + 16
    assert f"beside    {format_bytes(beside)}: logits, token counts" in text
    assert dataclasses.replace(made, slots=5).cache_bytes == made.cache_bytes + 3 * made.costs.slot
    assert plan.COUNTERS == 2


def test_the_product_of_experts_is_in_the_plan():
    rows = dict(make_plan(tiny_moe_config(), options(deterministic=True)).rows())
    assert rows["products"] == "of experts: a loop over them: PyTorch's grouped_mm does not run, the device is cpu"
    assert "products" not in dict(make_plan(TINY, options()).rows())
