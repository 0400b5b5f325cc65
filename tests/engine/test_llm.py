"""`LLM` on the demo checkpoint: prompts in every form, streams, options, the plan."""

import pytest
import torch

import statewise
from statewise import LLM, EngineConfig, SamplingParams
from statewise.engine.plan import make_plan
from statewise.errors import ConfigError, RequestError
from statewise.models.families import read_config

GREEDY = SamplingParams(temperature=0, max_tokens=12)


@pytest.fixture(scope="module")
def llm(demo_folder):
    return LLM(demo_folder, quiet=True, max_batch=4, poison=True)


def test_the_public_names():
    names = ["LLM", "Conversation", "EngineConfig", "RequestOutput", "SamplingParams", "StreamPiece", "errors"]
    assert statewise.__all__ == names


def test_prompts_in_every_form(llm):
    ids = tuple(b"2 + 2 =")
    forms = ["2 + 2 =", ["2 + 2 ="], ids, list(ids), [ids], [list(ids)]]
    outputs = [llm.generate(form, GREEDY) for form in forms]
    assert all(len(output) == 1 for output in outputs)
    assert len({output[0].token_ids for output in outputs}) == 1
    assert llm.generate(iter(["2 + 2 ="]), GREEDY)[0].token_ids == outputs[0][0].token_ids
    assert llm.generate([], GREEDY) == []


@pytest.mark.parametrize("bad", [None, ["a", "b"], [1.5, 2], [True, False], [-1], 3.5])
def test_a_malformed_prompt_ends_alone(llm, bad):
    good, wrong = llm.generate(["ok", bad], GREEDY)
    assert (good.finish_reason, wrong.finish_reason) == ("length", "error")
    assert isinstance(wrong.error, RequestError)


def test_prompts_and_parameters_of_a_wrong_kind(llm):
    for prompts in (None, 5):
        with pytest.raises(ConfigError, match="expected text, token ids, or several of them"):
            llm.generate(prompts)
    for params in ({"temperature": 0}, {}, 0, False, "greedy", [None]):
        with pytest.raises(ConfigError, match="expected SamplingParams"):
            llm.generate("a", params)


def test_each_prompt_may_have_its_own_parameters(llm):
    outputs = llm.generate(["a", "b"], [GREEDY, SamplingParams(temperature=0, max_tokens=3)])
    assert [len(output.token_ids) for output in outputs] == [12, 3]
    with pytest.raises(ConfigError, match="2 prompts are given with 1 sampling parameters"):
        llm.generate(["a", "b"], [GREEDY])


def test_the_pieces_of_a_stream_make_the_text(llm):
    pieces = {0: "", 1: "", 2: ""}
    last = {}
    for piece in llm.stream(["one", "", "three"], SamplingParams(temperature=0.9, seed=1, max_tokens=40)):
        pieces[piece.index] += piece.text
        if piece.output:
            last[piece.index] = piece.output
    assert set(last) == {0, 1, 2}
    assert all(pieces[i] == last[i].text for i in last)
    assert isinstance(last[1].error, RequestError)
    assert last[1].finish_reason == "error"


def test_a_stream_that_is_closed_frees_its_slots(llm):
    stream = llm.stream(["one", "two", "three", "four", "five", "six"], SamplingParams(max_tokens=100))
    for _, _ in zip(range(5), stream, strict=False):
        pass
    stream.close()
    assert not llm.engine.has_work
    assert llm.engine.scheduler.slots.free_count == llm.plan.slots


def test_two_streams_share_the_engine_and_keep_their_own_pieces(llm):
    alone = llm.generate(["one", "two", "three"], GREEDY)
    first, second = llm.stream(["one", "two"], GREEDY), llm.stream(["three"], GREEDY)
    begun = [next(first)]
    rest = list(second)
    begun += list(first)
    texts = ["".join(piece.text for piece in begun if piece.index == i) for i in (0, 1)]
    assert texts == [alone[0].text, alone[1].text]
    assert "".join(piece.text for piece in rest) == alone[2].text
    assert not llm.engine.has_work


def test_requests_given_to_the_engine_itself_run_beside_those_of_a_stream(llm):
    [alone] = llm.generate("one", GREEDY)
    own = llm.engine.submit(tuple(b"two"), SamplingParams(temperature=0, max_tokens=6), llm.tokenizer)
    [beside] = llm.generate("one", GREEDY)
    assert beside.token_ids == alone.token_ids
    assert (len(own.output), own.finish_reason) == (6, "length")


@pytest.mark.parametrize("how", ["stepped to its end", "aborted"])
def test_a_stream_whose_request_others_have_ended_ends(llm, how):
    stream = llm.stream("one", GREEDY)
    next(stream)
    if how == "aborted":
        llm.engine.abort(llm.engine.scheduler.running[0])
    while llm.engine.has_work:
        llm.engine.step()
    reason = list(stream)[-1].output.finish_reason
    assert reason == ("abort" if how == "aborted" else "length")


def test_a_seed_gives_the_same_tokens_in_any_company(llm):
    params = SamplingParams(seed=42, max_tokens=20)
    [alone] = llm.generate("same", params)
    crowd = llm.generate(["other", "same", "and", "others", "still"], params)
    assert crowd[1].token_ids == alone.token_ids
    assert len({output.token_ids for output in llm.generate(["same"] * 4, SamplingParams(max_tokens=20))}) > 1


def test_unknown_options_are_errors(demo_folder):
    with pytest.raises(ConfigError, match="unknown option 'checkpoint_intervall'; did you mean checkpoint_interval"):
        LLM(demo_folder, checkpoint_intervall=8)
    with pytest.raises(ConfigError, match="both config and options are given: max_batch"):
        LLM(demo_folder, EngineConfig(), max_batch=8)
    with pytest.raises(
        ConfigError, match=r"config is \{'max_batch': 8\}, expected an EngineConfig; options are keywords"
    ):
        LLM(demo_folder, {"max_batch": 8})


def test_the_smallest_budget_that_the_error_names_does_run(demo_folder):
    model = read_config(demo_folder)
    least = 511292
    with pytest.raises(ConfigError, match=f"at least {least} bytes"):
        make_plan(model, EngineConfig(memory=least - 1))
    plan = make_plan(model, EngineConfig(memory=least))
    assert (plan.slots, plan.blocks, plan.max_context) == (1, 1, 16)
    [output] = LLM(demo_folder, quiet=True, memory=least).generate("abcdefgh", GREEDY)
    assert (len(output.token_ids), output.finish_reason) == (8, "length")


def test_a_gpu_that_is_not_there_is_an_error(demo_folder):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(ConfigError, match="device is cuda, but torch sees no GPU here; possible: cpu"):
        LLM(demo_folder, device="cuda")


def test_a_gpu_other_than_the_first_is_refused(demo_folder):
    """Ours is the current device: kernels, graphs and events would go to it, and the tensors be elsewhere."""
    model = read_config(demo_folder)
    with pytest.raises(ConfigError, match="device is 'cuda:1', expected cuda; CUDA_VISIBLE_DEVICES says which"):
        make_plan(model, EngineConfig(device="cuda:1"))
    assert make_plan(model, EngineConfig(device="cuda:0", memory="1GiB")).slots == 64
