"""A request that goes on where another has ended: its tokens are those of the whole text run alone, and less runs."""

import pytest

from statewise.engine.request import Phase
from statewise.errors import EngineError, RequestError
from tests.engine.harness import LETTERS, drain, engine, greedy, random_prompts, run

PROMPT, MORE = random_prompts(2, seed=3, longest=9)


def ended(built, keep=True, **options):
    request = built.submit(PROMPT, greedy(**options), LETTERS, keep=keep)
    while request.phase is not Phase.FINISHED:
        built.step()
    return request


def finished(built, request):
    while request.phase is not Phase.FINISHED:
        built.step()
    return request


def alone(prompt, params=None):
    [request] = run(engine(checkpoint_interval=1, async_scheduling=False), [prompt], [params or greedy()])
    return request


@pytest.mark.parametrize("interval", [1, 2, 5, 16])
@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("length", [1, 2, 5, 6, 7])
def test_it_goes_on_from_any_number_of_pending_rows(interval, is_async, length):
    built = engine(checkpoint_interval=interval, async_scheduling=is_async)
    first = ended(built, max_tokens=length)
    second = finished(built, built.extend(first, MORE, greedy(), LETTERS, 1))
    assert second.prompt == (*PROMPT, *first.output, *MORE)
    assert second.output == alone(second.prompt).output
    assert built.counters.prefill_tokens == len(PROMPT) + 1 + len(MORE)  # its last token had not run
    assert built.counters.continued_tokens == len(PROMPT) + length - 1
    built.release(second)
    drain(built)


def test_the_step_too_many_has_run_the_token_that_ended_it():
    stop = ended(engine(async_scheduling=False), max_tokens=9).output[4]
    built = engine(async_scheduling=True, checkpoint_interval=4)
    first = ended(built, max_tokens=9, stop_token_ids=(stop,))
    assert first.finish_reason == "stop"
    second = finished(built, built.extend(first, MORE, greedy(), LETTERS))
    assert second.output == alone(second.prompt).output
    assert built.counters.prefill_tokens == len(PROMPT) + len(MORE)
    assert built.counters.continued_tokens == len(PROMPT) + len(first.output)


def test_turn_after_turn_in_one_slot_beside_others():
    built = engine(max_batch=3, max_batched_tokens=6, checkpoint_interval=4)
    crowd = [built.submit(prompt, greedy(max_tokens=30), LETTERS, 9) for prompt in random_prompts(2, seed=5)]
    turn = finished(built, built.submit(PROMPT, greedy(max_tokens=6), LETTERS, keep=True))
    for more in random_prompts(3, seed=6, longest=9):
        turn = finished(built, built.extend(turn, more, greedy(max_tokens=6), LETTERS))
        assert turn.output == alone(turn.prompt, greedy(max_tokens=6)).output
    assert built.counters.kept_dropped == 0
    built.release(turn)
    drain(built)
    assert [one.output for one in crowd] == [alone(one.prompt, one.params).output for one in crowd]


def test_who_needs_the_room_gets_it_and_the_text_runs_again():
    """One slot: each new request takes it. Then blocks: a decode row that grows takes those of the one kept longest."""
    built = engine(slots=1, checkpoint_interval=4)
    first = ended(built, max_tokens=6)
    run_alone = finished(built, built.submit(MORE, greedy(), LETTERS))
    assert run_alone.output == alone(MORE).output
    assert (built.counters.kept_dropped, built.counters.preemptions) == (1, 0)
    second = finished(built, built.extend(first, MORE, greedy(), LETTERS))
    assert second.output == alone(second.prompt).output
    assert built.counters.continued_tokens == 0
    built.release(second)
    drain(built)

    scarce = engine(blocks=9, slots=3, max_batch=3, checkpoint_interval=4)
    older, newer = (ended(scarce, max_tokens=6) for _ in range(2))
    long = finished(scarce, scarce.submit(MORE, greedy(max_tokens=20), LETTERS))
    assert long.output == alone(MORE, greedy(max_tokens=20)).output
    assert (older.slot, scarce.counters.preemptions) == (None, 0)
    for request in (older, newer):
        scarce.release(request)
    drain(scarce)


@pytest.mark.parametrize("preempt", ["recompute", "swap"])
@pytest.mark.parametrize("interval", [4, 16])
def test_preempted_before_its_rows_are_folded(preempt, interval):
    built = engine(checkpoint_interval=interval, preempt=preempt)
    first = ended(built, max_tokens=6)
    second = built.extend(first, MORE, greedy(), LETTERS)
    built.scheduler.schedule()  # it owns its slot; nothing has run
    assert second.behind == 5
    built.scheduler.preempt(second)
    finished(built, second)
    assert second.output == alone(second.prompt).output
    assert built.counters.swaps_in == (preempt == "swap")
    built.release(second)
    drain(built)


def test_penalties_see_the_turns_before_as_prompt():
    built, params = engine(checkpoint_interval=4), greedy(repetition_penalty=1.5, frequency_penalty=0.6)
    first = ended(built, max_tokens=6)
    second = finished(built, built.extend(first, MORE, params, LETTERS))
    assert second.output == alone(second.prompt, params).output
    built.release(second)
    drain(built)


def test_slots_may_be_permuted_in_between():
    built = engine(slots=3, checkpoint_interval=4)
    first = ended(built, max_tokens=6)
    built.permute_slots([2, 0, 1])
    second = finished(built, built.extend(first, MORE, greedy(), LETTERS))
    assert second.output == alone(second.prompt).output
    built.release(second)
    drain(built)


def test_an_abort_keeps_nothing_and_the_text_goes_on_all_the_same():
    built = engine(checkpoint_interval=4)
    first = built.submit(PROMPT, greedy(), LETTERS, keep=True)
    for _ in range(4):
        built.step()
    built.abort(first)
    assert built.scheduler.slots.free_count == built.plan.slots
    waiting = built.extend(first, MORE, greedy(), LETTERS)
    built.abort(waiting)  # before it has run
    assert waiting.source is None  # else each turn would hold all before it
    second = finished(built, built.extend(waiting, MORE, greedy(), LETTERS))
    assert second.prompt == (*PROMPT, *first.output, *MORE, *MORE)
    assert second.output == alone(second.prompt).output
    built.release(second)
    drain(built)


def test_what_cannot_go_on_is_an_error():
    built = engine()
    lost = ended(built, keep=False)
    with pytest.raises(RequestError, match="request 0 is not kept, or has been extended or released before"):
        built.extend(lost, MORE, greedy(), LETTERS)
    runs = built.submit(PROMPT, greedy(), LETTERS, keep=True)
    with pytest.raises(RequestError, match="request 0 has not ended well"):
        built.extend(runs, MORE, greedy(), LETTERS)
    finished(built, runs)
    for tokens, params, message in (
        ([], greedy(), "tokens is empty"),
        (5, greedy(), "tokens is 5, expected a sequence of token ids"),
        ([31], greedy(), "outside the vocabulary of 31"),
        ([1] * 80, greedy(), "but a request has room for 80"),
        (MORE, greedy(prompt_logprobs=1), "prompt_logprobs is given for a prompt that has run in part"),
    ):
        with pytest.raises(RequestError, match=message):
            built.extend(runs, tokens, params, LETTERS)
    second = built.extend(runs, MORE, greedy(), LETTERS)
    for request in (runs, second):
        with pytest.raises(RequestError):
            built.extend(request, MORE, greedy(), LETTERS)
    finished(built, second)
    built.release(second)
    with pytest.raises(RequestError, match="released"):
        built.extend(second, MORE, greedy(), LETTERS)
    drain(built)
    fixed = engine(deterministic=True, max_batched_tokens=80)
    with pytest.raises(RequestError, match="keep is given with deterministic"):
        fixed.submit(PROMPT, greedy(), LETTERS, keep=True)


def test_an_engine_that_fails_loses_what_it_keeps(monkeypatch):
    built = engine()
    first = ended(built)
    monkeypatch.setattr(built.runner, "run", lambda step: 1 / 0)
    built.submit(PROMPT, greedy(), LETTERS)
    with pytest.raises(EngineError):
        built.step()
    with pytest.raises(EngineError):
        built.extend(first, MORE, greedy(), LETTERS)
