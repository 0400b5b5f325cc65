"""An engine over the tiny float64 model, without a folder or a tokenizer."""

import dataclasses

import torch

from statewise.config import EngineConfig
from statewise.engine import graphs
from statewise.engine.core import Engine
from statewise.engine.plan import make_plan
from statewise.engine.request import Phase, Request, SamplingParams
from tests.models.tiny import tiny_config, tiny_model


class Letters:
    """Token i is the i-th letter; 26 and up are digits."""

    def decode(self, ids, skip_special_tokens=True):
        return "".join("abcdefghijklmnopqrstuvwxyz01234"[i] for i in ids)


LETTERS = Letters()
MODEL = tiny_model(tiny_config())


def engine(*, slots=None, blocks=None, eos=(), model=MODEL, padded=(), **options) -> Engine:
    """Poisoned, float64. slots, blocks: override the plan, to make memory scarce.

    padded: sizes that decode steps are padded to, as for CUDA graphs.
    """
    defaults = {"dtype": "float64", "state_dtype": "float64", "poison": True, "kv_block_size": 4, "max_context": 80}
    config = EngineConfig.of(**(defaults | {"max_batch": 8, "max_batched_tokens": 64} | options))
    plan = make_plan(model.config, config)
    if slots is not None:
        plan = dataclasses.replace(plan, slots=slots)
        if plan.graph_sizes and plan.fixed_rows is None:
            plan = dataclasses.replace(plan, graph_sizes=graphs.sizes(slots))
    if blocks is not None:
        longest = min(plan.max_context, blocks * plan.kv.block_size)
        plan = dataclasses.replace(plan, blocks=blocks, max_context=longest)
    if padded:
        sizes = [size for size in padded if size <= plan.slots]
        plan = dataclasses.replace(plan, graph_sizes=tuple(sizes))
    built = Engine(model, plan, config)
    built.eos = frozenset(eos)
    return built


def run(engine: Engine, prompts, params) -> list[Request]:
    """Submit all, step until done."""
    requests = [engine.submit(p, q, LETTERS, i) for i, (p, q) in enumerate(zip(prompts, params, strict=True))]
    drain(engine)
    assert all(r.phase is Phase.FINISHED for r in requests)
    return requests


def drain(engine: Engine, most: int = 5000) -> None:
    for _ in range(most):
        if not engine.has_work:
            break
        engine.step()
    assert not engine.has_work, "the engine makes no progress"
    engine.scheduler.check_integrity()
    assert engine.scheduler.slots.free_count == engine.plan.slots
    assert engine.scheduler.blocks.free_count == engine.plan.blocks


def greedy(**options) -> SamplingParams:
    return SamplingParams(**({"temperature": 0, "max_tokens": 12, "ignore_eos": True} | options))


def random_prompts(count: int, seed: int, longest: int = 20) -> list[list[int]]:
    g = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, longest + 1, (count,), generator=g).tolist()
    return [torch.randint(0, 31, (n,), generator=g).tolist() for n in lengths]
