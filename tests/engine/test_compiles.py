"""Nothing compiles in the middle of serving: whatever a step launches, the warm-up has launched before."""

import inspect
import random
from dataclasses import replace

import pytest
import torch

from statewise.engine import graphs, warm_up
from statewise.engine.runner import Runner
from statewise.errors import MemoryBudgetError
from tests.engine.harness import LETTERS, drain, engine, greedy
from tests.models.tiny import tiny_config, tiny_model, tiny_moe_config
from tests.ops.kernels import DEVICE, HAS_GPU

HYBRID = tiny_config(("mamba", "attention", "mlp"))
EXPERTS = replace(tiny_moe_config(), pattern=("mamba", "moe"))


def specialisation(kernel, args, given):
    """What Triton compiles anew for: constants, dtypes, 1 and multiples of 16 among numbers, aligned pointers."""
    values = dict(zip(kernel.arg_names, args, strict=False)) | given
    unseen, parts = kernel.kwargs.get("do_not_specialize") or (), []
    for name, parameter in inspect.signature(kernel.fn).parameters.items():
        value = values.pop(name, None)
        if "constexpr" in str(parameter.annotation) or value is None:
            kind = repr(value)
        elif isinstance(value, torch.Tensor):
            kind = (value.dtype, name not in unseen and value.data_ptr() % 16 == 0)
        elif isinstance(value, int) and not isinstance(value, bool):
            kind = (-(2**31) <= value < 2**31, name not in unseen and (value == 1, value % 16 == 0))
        else:
            kind = type(value)
        parts.append((name, kind))
    options = {name: value for name, value in values.items() if name not in ("grid", "warmup")}
    return kernel.fn.__name__, *parts, *sorted(options.items())


@pytest.fixture
def compiled(monkeypatch):
    """Everything that was compiled so far, or would have been: Triton's interpreter compiles nothing."""
    found = set()
    if HAS_GPU:
        import triton

        def note(*, key, **_):
            found.add(key)

        monkeypatch.setattr(triton.knobs.runtime, "jit_cache_hook", note)
    else:
        from triton.runtime.interpreter import InterpretedFunction

        run = InterpretedFunction.run

        def note(kernel, *args, **given):
            found.add(specialisation(kernel, args, given))
            return run(kernel, *args, **given)

        monkeypatch.setattr(InterpretedFunction, "run", note)
    return found


def built(config, **options):
    model = tiny_model(config, backend="triton", device=DEVICE).float().to(DEVICE).prepare()
    kinds = {"dtype": "float32", "state_dtype": "float32", "device": str(DEVICE), "backend": "triton", "poison": False}
    limits = {"max_batch": 3, "max_batched_tokens": 40 if HAS_GPU else 20, "checkpoint_interval": 3}
    made = engine(model=model, **(kinds | limits | options))
    if not HAS_GPU:  # what a GPU does at the start
        made.runner.warm_up()
    return made


def serve(made, lengths):
    """Prompts that arrive two by two, so that there are steps of one and of more, with and without decode rows."""
    rng = random.Random(0)
    for index, length in enumerate(lengths):
        made.submit(tuple(rng.choices(range(3, 20), k=length)), greedy(max_tokens=2 + index % 3), LETTERS, str(index))
        if index % 2:
            made.step()
    drain(made)


@pytest.mark.parametrize("config", [HYBRID, EXPERTS], ids=["hybrid", "experts"])
def test_nothing_compiles_after_the_start(compiled, config):
    made = built(config)
    before = set(compiled)
    serve(made, [1, 33, 16, 5, 40, 17, 3, 70, 2, 9] if HAS_GPU else [1, 17, 5, 20])
    assert before, "the warm-up launched nothing"
    assert compiled == before, sorted(compiled - before, key=str)[0]


def test_a_runner_without_graphs_warms_decode_up_too(monkeypatch):
    sizes = []
    made = engine()
    monkeypatch.setattr(Runner, "_decode", lambda self, size, table: sizes.append(size))
    made.runner.warm_up()
    assert tuple(sizes) == graphs.sizes(made.plan.slots)


def test_a_start_without_room_for_a_long_step_says_what_to_lower(monkeypatch):
    def no_room(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    made = engine()
    monkeypatch.setattr(Runner, "_mixed", no_room)
    with pytest.raises(MemoryBudgetError, match=r"a step of 1 tokens needs more .* max_batched_tokens, which is 64"):
        made.runner.warm_up()


def test_warm_up_steps_are_steps_that_there_can_be():
    assert list(warm_up.prompts(40, None, 128)) == [
        (1, 1), (1, 2), (1, 4), (1, 8), (1, 16), (1, 32), (1, 40), (2, 16),
    ]  # fmt: skip
    assert list(warm_up.prompts(64, 20, 4))[-4:] == [(1, 16), (1, 20), (3, 20), (4, 16)]
    for tokens, context, heads in ((1, None, 1), (2048, 100, 24), (8192, 1 << 20, 128)):
        for count, length in warm_up.prompts(tokens, context, heads):
            assert 1 <= count * length <= tokens
            assert length <= (context or tokens)
