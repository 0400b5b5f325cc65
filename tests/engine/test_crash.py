"""A step that fails: the engine says which requests it lost, and never goes on with pools that it knows nothing of."""

import re
from operator import attrgetter

import pytest
import torch

from statewise import LLM, SamplingParams
from statewise.cli import main
from statewise.engine.fetch import Fetched
from statewise.engine.request import Phase
from statewise.engine.runner import Runner
from statewise.errors import EngineError, RequestError
from tests.engine.harness import LETTERS, engine, greedy, random_prompts

CUDA = RuntimeError("CUDA error: an illegal memory access was encountered")
MEMORY = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


def fails_at(monkeypatch, owner, name, error, count):
    """``owner.name`` raises ``error`` when it is called for the ``count``-th time."""
    function, calls = getattr(owner, name), []

    def failing(*arguments, **options):
        calls.append(1)
        if len(calls) == count:
            raise error
        return function(*arguments, **options)

    monkeypatch.setattr(owner, name, failing)


def step_on(built):
    for _ in range(100):
        built.step()


def churn(built):
    """Steps with a preemption after every third."""
    for i in range(100):
        built.step()
        if i % 3 == 0 and built.scheduler.running:
            built.scheduler.preempt(built.scheduler.running[-1])


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("where", ["run", "get"])
@pytest.mark.parametrize(
    "error", [CUDA, MEMORY, KeyboardInterrupt(), SystemExit(1)], ids=lambda error: type(error).__name__
)
def test_every_request_at_work_is_lost_and_told(monkeypatch, is_async, where, error):
    """When a step is launched, and when its tokens come in: some finished, some running, some swapped out."""
    built = engine(slots=2, preempt="swap", async_scheduling=is_async)
    prompts, lengths = random_prompts(5, seed=1), [2, 20, 20, 20, 20]
    requests = [
        built.submit(prompt, greedy(max_tokens=n), LETTERS, i)
        for i, (prompt, n) in enumerate(zip(prompts, lengths, strict=True))
    ]
    for _ in range(6):
        built.step()
    built.scheduler.preempt(requests[1])
    done, lost = requests[:1], requests[1:]
    assert (done[0].finish_reason, lost[0].kept) == ("length", Phase.DECODE)
    owner = built.runner if where == "run" else Fetched
    fails_at(monkeypatch, owner, where, error, 2)
    expected = EngineError if isinstance(error, Exception) else type(error)
    with pytest.raises(expected) as raised:
        step_on(built)
    if expected is EngineError:
        assert raised.value.__cause__ is error
        told = re.fullmatch(r"a step failed, 4 requests are lost \((.*?)\): (.*)", str(raised.value))
        assert sorted(told[1].split(", ")) == ["1", "2", "3", "4"]
        assert told[2] == f"{type(error).__name__}: {error}"
    assert done[0].finish_reason == "length"
    assert all((r.phase, r.finish_reason) == (Phase.FINISHED, "error") for r in lost)
    assert all(isinstance(r.error, RequestError) and type(error).__name__ in str(r.error) for r in lost)
    assert built.has_failed
    assert not built.has_work
    for attempt in (built.step, lambda: built.submit([1], greedy(), LETTERS)):
        with pytest.raises(EngineError, match="the engine has failed: a step failed, 4 requests are lost"):
            attempt()
    built.abort(lost[0])
    assert lost[0].finish_reason == "error"


def test_books_that_do_not_balance_are_a_failure_too():
    built = engine()
    built.submit([1, 2, 3], greedy(), LETTERS)
    built.step()
    built.scheduler.slots._free.append(3)
    with pytest.raises(EngineError, match="IntegrityError: slots free"):
        built.step()


PHASES = {
    "prefill": ("runner", "_mixed"),
    "decode": ("runner", "_decode_step"),
    "saving what is swapped out": ("runner.swap", "save"),
    "restoring it": ("runner.swap", "restore"),
    "forgetting": ("runner.caches.kv", "forget"),
    "sampling": ("sampler", "sample"),
    "token counts": ("sampler.counts", "begin"),
    "taking tokens in": ("", "_push"),
}


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("where", PHASES)
def test_wherever_it_fails_nothing_runs_again(monkeypatch, is_async, where):
    path, name = PHASES[where]
    built = engine(slots=2, preempt="swap", async_scheduling=is_async)
    params = greedy(max_tokens=20, repetition_penalty=1.2)
    requests = [built.submit(prompt, params, LETTERS, i) for i, prompt in enumerate(random_prompts(4, seed=1))]
    for _ in range(5):
        built.step()
    fails_at(monkeypatch, attrgetter(path)(built) if path else built, name, MEMORY, 1)
    with pytest.raises(EngineError, match=r"a step failed, \d requests? (is|are) lost .*out of memory"):
        churn(built)
    assert {request.finish_reason for request in requests} <= {"error", "length"}
    assert "error" in {request.finish_reason for request in requests}
    assert built.has_failed
    assert not built.has_work


def test_a_permutation_that_fails_ends_the_engine(monkeypatch):
    """What has been freed is no longer in the books by then, and slots may have moved."""
    built = engine()
    request = built.submit([1, 2, 3], greedy(), LETTERS)
    built.step()
    fails_at(monkeypatch, built.runner, "permute", CUDA, 1)
    order = list(reversed(range(built.plan.slots)))
    with pytest.raises(EngineError, match=r"1 request is lost .*illegal memory access"):
        built.permute_slots(order)
    assert request.finish_reason == "error"
    for attempt in (built.step, lambda: built.permute_slots(order)):
        with pytest.raises(EngineError, match="the engine has failed"):
            attempt()


def test_many_lost_requests_are_counted(monkeypatch):
    built = engine()
    for i in range(25):
        built.submit([1, 2], greedy(), LETTERS, i)
    fails_at(monkeypatch, built.runner, "run", CUDA, 1)
    with pytest.raises(EngineError, match=r"25 requests are lost .* and 5 more"):
        built.step()


def test_llm_raises_in_every_stream(monkeypatch, demo_folder):
    llm = LLM(demo_folder, quiet=True, max_batch=2)
    params = SamplingParams(temperature=0, max_tokens=20)
    other = llm.stream(["three"], params)
    next(other)
    fails_at(monkeypatch, llm.engine.runner, "run", CUDA, 3)
    with pytest.raises(EngineError, match=r"3 requests are lost .*illegal memory access"):
        llm.generate(["one", "two"], params)
    last = list(other)[-1].output  # it has been told some tokens that another stream's steps gave it, and then this
    assert last.finish_reason == "error"
    assert "lost, since the engine failed" in str(last.error)
    with pytest.raises(EngineError, match="the engine has failed"):
        llm.generate("again", params)


@pytest.mark.parametrize("where", ["__init__", "make"])
def test_a_start_that_runs_out_of_memory_is_a_mistake_in_a_line(monkeypatch, capsys, demo_folder, where):
    """Caches or graphs may not fit where their plan did: another process took the room, or it lies in pieces."""
    fails_at(monkeypatch, Runner, where, MEMORY, 1)
    assert main(["generate", str(demo_folder), "-q", "-p", "hello", "--memory", "64MiB"]) == 2
    told = "memory is 64MiB, and with it the start ran out of memory: CUDA out of memory. Tried to allocate 2.00 GiB"
    assert capsys.readouterr().err == f"statewise: error: {told}\n"


def test_ctrl_c_ends_generate_and_the_engine(monkeypatch, demo_folder):
    llm = LLM(demo_folder, quiet=True)
    fails_at(monkeypatch, llm.engine.runner, "run", KeyboardInterrupt(), 3)
    with pytest.raises(KeyboardInterrupt):
        llm.generate("one")
    with pytest.raises(EngineError, match=r"1 request is lost .*KeyboardInterrupt"):
        llm.generate("again")


def test_ctrl_c_between_two_steps_leaves_the_engine_whole(demo_folder):
    """Here in the caller's own loop: what it waits for is aborted, and the next call is served."""
    llm = LLM(demo_folder, quiet=True, poison=True)

    def interrupted():
        for _ in llm.stream(["one", "two"], SamplingParams(max_tokens=50)):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not llm.engine.has_work
    assert llm.generate("again", SamplingParams(max_tokens=3))[0].finish_reason == "length"


@pytest.mark.parametrize(("error", "code"), [(CUDA, 3), (MEMORY, 3), (KeyboardInterrupt(), 130)])
def test_the_command_line_reports_and_exits(monkeypatch, capsys, demo_folder, error, code):
    fails_at(monkeypatch, Runner, "run", error, 3)
    assert main(["generate", str(demo_folder), "-p", "hello", "--max-tokens", "9"]) == code
    *_, last = capsys.readouterr().err.strip().splitlines()
    if code == 3:
        assert last.startswith("statewise: error: a step failed, 1 request is lost (0): ")
        assert last.endswith(str(error))
    else:
        assert last == "statewise: interrupted"
