"""A conversation answers as if the whole text so far were the prompt, and runs what is new alone."""

import pytest

from statewise import LLM, SamplingParams
from statewise.errors import ConfigError, RequestError

GREEDY = SamplingParams(temperature=0, max_tokens=7, ignore_eos=True)
TURNS = ("2 + 2 =", " and 3 more?", "\n\nWhat then?")


@pytest.fixture(scope="module")
def llm(demo_folder):
    double = {"dtype": "float64", "state_dtype": "float64"}
    return LLM(demo_folder, quiet=True, max_batch=2, poison=True, checkpoint_interval=4, **double)


def test_each_turn_sees_all_before_it_and_runs_its_own_tokens(llm):
    ran = llm.counters.prefill_tokens
    with llm.conversation() as talk:
        outputs = [talk.generate(turn, GREEDY) for turn in TURNS]
        said = talk.token_ids
    new = llm.counters.prefill_tokens - ran
    ids = [llm.tokenizer.encode(turn, add_special_tokens=False).ids for turn in TURNS[1:]]
    assert outputs[1].prompt_token_ids == (*outputs[0].prompt_token_ids, *outputs[0].token_ids, *ids[0])
    assert said == (*outputs[1].prompt_token_ids, *outputs[1].token_ids, *ids[1], *outputs[2].token_ids)
    assert new == len(outputs[0].prompt_token_ids) + sum(map(len, ids)) + 2  # with each answer's last token
    for output in outputs:
        [again] = llm.generate(output.prompt_token_ids, GREEDY)
        assert (again.token_ids, again.text) == (output.token_ids, output.text)
    assert llm.engine.scheduler.slots.free_count == llm.plan.slots


def test_a_stream_that_is_closed_and_prompts_that_cannot_be_served(llm):
    with llm.conversation() as talk:
        assert talk.is_new
        for params in ("greedy", 0, {}):
            with pytest.raises(ConfigError, match="expected SamplingParams"):
                talk.generate(TURNS[0], params)
        assert talk.generate("", GREEDY).finish_reason == "error"
        assert talk.is_new
        stream = talk.stream(TURNS[0], GREEDY)
        first = next(stream).text
        both = talk.generate(TURNS[1], GREEDY)
        assert "has not ended well" in str(both.error)
        stream.close()
        cut = talk.token_ids
        text = "".join(piece.text for piece in talk.stream(TURNS[1], GREEDY))
        assert talk.token_ids[: len(cut)] == cut
        assert llm.generate(TURNS[0], GREEDY)[0].text.startswith(first)
        [again] = llm.generate(talk.token_ids[: -GREEDY.max_tokens], GREEDY)
        assert again.text == text
        scored = talk.generate("x", SamplingParams(prompt_logprobs=1))
        assert isinstance(scored.error, RequestError)


def test_more_conversations_than_slots(llm):
    talks = [llm.conversation() for _ in range(3)]
    answers = [[talk.generate(turn, GREEDY).token_ids for talk in talks] for turn in TURNS]
    assert all(len(set(answer)) == 1 for answer in answers)
    assert llm.counters.kept_dropped > 0
    for talk in talks:
        talk.close()
    assert llm.engine.scheduler.slots.free_count == llm.plan.slots


def test_not_with_deterministic(demo_folder):
    fixed = LLM(demo_folder, quiet=True, max_batch=2, deterministic=True, max_batched_tokens=600)
    with pytest.raises(ConfigError, match="deterministic is on"):
        fixed.conversation()
