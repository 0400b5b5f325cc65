"""lm-evaluation-harness itself, offline, with our engine as its model: all kinds of requests, on tasks made up here."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from statewise.cli import main
from statewise.demo.questions import word_problems
from statewise.errors import CheckpointError, ConfigError, RequestError
from statewise.eval.questions import write_questions

lm_eval = pytest.importorskip("lm_eval", reason="lm_eval is not installed: pip install 'statewise[eval]'")
pytestmark = pytest.mark.filterwarnings("ignore")  # its and its dependencies' own

DOUBLE = {"dtype": "float64", "state_dtype": "float64"}
TEXTS = ["Once upon a time there was a hybrid model.", "It counted. " * 40, ""]


@pytest.fixture(scope="module")
def instances():
    from lm_eval.api.instance import Instance

    return lambda kind, *arguments: [Instance(kind, {}, one, i) for i, one in enumerate(arguments)]


@pytest.fixture(scope="module")
def model(demo_folder):
    from statewise.integrations.lm_eval import StatewiseLM

    return StatewiseLM(str(demo_folder), batch_size=4, max_context=200, checkpoint_interval=4, **DOUBLE)


@pytest.fixture(scope="module")
def theirs(demo_folder):
    """Log probabilities of the tokens of a text after each of its positions, by transformers."""
    network = AutoModelForCausalLM.from_pretrained(demo_folder, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(demo_folder)

    def of(*texts):
        tokens = [tokenizer.bos_token_id] if texts[0] == "" else []
        lengths = [len(tokens)]
        for text in texts:
            tokens += tokenizer(text).input_ids
            lengths.append(len(tokens))
        with torch.no_grad():
            logprobs = network(torch.tensor([tokens])).logits[0].log_softmax(-1)
        return tokens, lengths, logprobs

    return of


@pytest.fixture(scope="module")
def tasks(tmp_path_factory, demo_folder):
    """A folder of tasks on local files: generation (GSM8K's own task), multiple choice, perplexity."""
    folder = tmp_path_factory.mktemp("tasks")
    write_questions(folder / "test.jsonl", word_problems(6))
    write_questions(folder / "train.jsonl", word_problems(9, split="train"))
    rows = [{"question": f"{i} + 1 =", "choices": [str(i), str(i + 1)], "label": i % 2} for i in range(5)]
    (folder / "choice.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "text.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS[:2]))
    stock = Path(lm_eval.__file__).parent / "tasks" / "gsm8k" / "gsm8k.yaml"

    def local(**files):
        named = {split: str(folder / f"{name}.jsonl") for split, name in files.items()}
        return {"dataset_path": "json", "dataset_name": None, "dataset_kwargs": {"data_files": named}}

    written = {
        "local_gsm8k": {"include": str(stock), "tag": None} | local(train="train", test="test"),
        "local_choice": local(test="choice")
        | {
            "output_type": "multiple_choice",
            "test_split": "test",
            "doc_to_text": "{{question}}",
            "doc_to_choice": "{{choices}}",
            "doc_to_target": "{{label}}",
        },
        "local_text": local(test="text")
        | {
            "output_type": "loglikelihood_rolling",
            "test_split": "test",
            "doc_to_text": "",
            "doc_to_target": "{{text}}",
            "metric_list": [{"metric": "word_perplexity"}, {"metric": "bits_per_byte"}],
        },
    }
    for name, task in written.items():
        (folder / f"{name}.yaml").write_text(json.dumps(task | {"task": name}))
    return folder


@pytest.fixture
def offline(monkeypatch, tmp_path):
    for name, value in (("HF_DATASETS_OFFLINE", "1"), ("HF_HUB_OFFLINE", "1"), ("HF_HOME", str(tmp_path))):
        monkeypatch.setenv(name, value)


def test_log_likelihoods_are_those_of_transformers(model, theirs, instances):
    pairs = [("The cat", " sat on the mat"), ("2 + 2 =", " 4"), ("a ", "b"), ("", "Once upon"), ("Hello\n", "World")]
    found = model.loglikelihood(instances("loglikelihood", *pairs), disable_tqdm=True)
    for (context, continuation), (logprob, is_greedy) in zip(pairs, found, strict=True):
        tokens, (_, start, end), logprobs = theirs(context, continuation)
        rows = logprobs[start - 1 : end - 1]
        if context.endswith((" ", "\n")):  # the harness moves blanks at the end of a context to the continuation
            rows, start = logprobs[start - 2 : end - 1], start - 1
        expected = rows.gather(1, torch.tensor(tokens[start:])[:, None]).sum()
        assert logprob == pytest.approx(float(expected), abs=1e-3)
        assert is_greedy == (rows.argmax(-1).tolist() == tokens[start:])


def test_a_greedy_continuation_is_known_as_such(model, instances):
    asked = {"until": [], "max_gen_toks": 5}
    [text] = model.generate_until(instances("generate_until", ("The answer", asked)), disable_tqdm=True)
    [output] = model.llm.generate(["The answer"], _greedy(5))
    assert text == output.text
    pairs = [([84, 104, 101], [256 - i for i in range(3)]), (list(output.prompt_token_ids), list(output.token_ids))]
    found = model._loglikelihood_tokens([(None, *pair) for pair in pairs], disable_tqdm=True)
    assert [greedy for _, greedy in found] == [False, True]


def _greedy(count):
    from statewise.engine.request import SamplingParams

    return SamplingParams(temperature=0, max_tokens=count)


def test_rolling_scores_every_token_once(model, theirs, instances):
    """The second text is longer than the context of 200 tokens; its windows are scored one by one."""
    found = model.loglikelihood_rolling(instances("loglikelihood_rolling", *((t,) for t in TEXTS)), disable_tqdm=True)
    tokens, _, logprobs = theirs("", TEXTS[0])
    expected = logprobs[:-1].gather(1, torch.tensor(tokens[1:])[:, None]).sum()
    assert found[0] == pytest.approx(float(expected), abs=1e-3)
    assert len(model.tok_encode(TEXTS[1])) > 2 * 200
    assert math.isfinite(found[1])
    assert found[1] < found[0]
    assert found[2] == 0


def test_documents_need_a_context_of_three(demo_folder, instances):
    from statewise.integrations.lm_eval import StatewiseLM

    small = StatewiseLM(demo_folder, max_context=2)
    with pytest.raises(ConfigError, match="max_context is 2, expected at least 3"):
        small.loglikelihood_rolling(instances("loglikelihood_rolling", ("abc",)), disable_tqdm=True)
    small = StatewiseLM(demo_folder, max_context=3)
    [found] = small.loglikelihood_rolling(instances("loglikelihood_rolling", ("abc",)), disable_tqdm=True)
    assert math.isfinite(found)


def test_a_folder_called_by_a_number():
    """The harness takes pretrained=5 for a number."""
    from statewise.integrations.lm_eval import StatewiseLM

    with pytest.raises(CheckpointError, match="model folder 5 does not exist"):
        StatewiseLM(5)


def test_generation_stops_where_it_is_told(model, instances):
    whole = {"until": [], "max_gen_toks": 24, "do_sample": False}
    [text] = model.generate_until(instances("generate_until", ("Go", whole)), disable_tqdm=True)
    stop = text[5:7]
    [cut] = model.generate_until(instances("generate_until", ("Go", whole | {"until": [stop]})), disable_tqdm=True)
    assert cut == text[: text.index(stop)]
    with pytest.raises(RequestError, match="generation option num_beams is not supported"):
        model.generate_until(instances("generate_until", ("Go", whole | {"num_beams": 3})), disable_tqdm=True)


def evaluate(tasks, names, **options):
    from lm_eval.tasks import TaskManager

    import statewise.integrations.lm_eval  # noqa: F401, registers the model

    manager = TaskManager(include_path=str(tasks), include_defaults=False)
    return lm_eval.simple_evaluate("statewise", tasks=names, task_manager=manager, bootstrap_iters=0, **options)


def test_its_gsm8k_is_ours(capsys, demo_folder, tasks, offline, tmp_path):
    """Its task with our model, and our command: the same prompts, completions, extractions and scores."""
    flags = ["--data", tasks, "--max-tokens", 12, "--concurrency", 4, "--output", tmp_path / "r.json"]
    options = [f"--{name.replace('_', '-')}={value}" for name, value in DOUBLE.items()]
    assert main([str(one) for one in ("eval", "gsm8k", demo_folder, *flags, *options)]) == 0
    ours = json.loads((tmp_path / "r.json").read_text())
    arguments = {"pretrained": str(demo_folder), "max_gen_toks": 12, **DOUBLE}
    results = evaluate(tasks, ["local_gsm8k"], model_args=arguments, batch_size=4, log_samples=True)
    samples = results["samples"]["local_gsm8k"]
    assert len(samples) == 2 * len(ours["completions"]) == 12
    for sample in samples:
        one = ours["completions"][sample["doc_id"]]["checkpointed"]
        name = {"strict-match": "strict", "flexible-extract": "flexible"}[sample["filter"]]
        assert sample["resps"] == [[one["text"]]]
        assert sample["filtered_resps"] == [one[name]]
        assert sample["exact_match"] == one[f"{name}_right"]


def test_choices_and_perplexity(demo_folder, tasks, offline):
    arguments = f"pretrained={demo_folder},max_context=512,checkpoint_interval=8"
    results = evaluate(tasks, ["local_choice", "local_text"], model_args=arguments)["results"]
    assert 0 <= results["local_choice"]["acc,none"] <= 1
    assert results["local_text"]["bits_per_byte,none"] > 0


def test_a_chat_template_is_applied(broken, tasks, offline):
    path = broken / "tokenizer_config.json"
    template = (
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<a>{% endif %}"
    )
    path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": template}))
    arguments = {"pretrained": str(broken), "max_gen_toks": 2}
    options = {"apply_chat_template": True, "fewshot_as_multiturn": True, "log_samples": True, "limit": 1}
    results = evaluate(tasks, ["local_gsm8k"], model_args=arguments, num_fewshot=1, **options)
    prompt = results["samples"]["local_gsm8k"][0]["arguments"][0][0]
    assert prompt.startswith("<user>Question: ")
    assert prompt.endswith("\nAnswer:<a>")
    assert "<assistant>" in prompt
    from statewise.integrations.lm_eval import StatewiseLM

    assert StatewiseLM(str(broken)).chat_template(True) == template


def test_the_module_is_its_command_line(demo_folder, tasks, tmp_path):
    command = [sys.executable, "-m", "statewise.integrations.lm_eval", "run", "--model", "statewise"]
    flags = ["--model_args", f"pretrained={demo_folder},max_gen_toks=3", "--tasks", "local_choice", "--limit", "2"]
    places = ["--include_path", str(tasks), "--output_path", str(tmp_path / "out")]
    offline = {"HF_DATASETS_OFFLINE": "1", "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
    environment = os.environ | offline

    def run(*more):
        return subprocess.run([*command, *flags, *more], capture_output=True, text=True, env=environment, check=False)

    done = run(*places)
    assert done.returncode == 0, done.stderr[-3000:]
    [written] = (tmp_path / "out").rglob("results_*.json")
    assert json.loads(written.read_text())["n-samples"]["local_choice"]["effective"] == 2
    mistaken = run(*places, "--model_args", f"pretrained={demo_folder / 'none'}")
    assert mistaken.returncode == 2
    assert mistaken.stderr.splitlines()[-1].startswith("statewise: error: model folder")


def test_options_that_cannot_work(demo_folder):
    from statewise.integrations.lm_eval import StatewiseLM

    with pytest.raises(ConfigError, match="unknown option 'checkpoint_intervall'; did you mean checkpoint_interval"):
        StatewiseLM(str(demo_folder), checkpoint_intervall=4)
    with pytest.raises(ConfigError, match="batch_size is 'auto:4', expected a number or auto"):
        StatewiseLM(str(demo_folder), batch_size="auto:4")


@pytest.mark.parametrize(
    ("given", "expected"), [({}, 64), ({"batch_size": 1}, 64), ({"batch_size": "8"}, 8), ({"max_batch_size": 3}, 3)]
)
def test_batch_sizes(demo_folder, given, expected):
    from statewise.integrations.lm_eval import StatewiseLM

    assert StatewiseLM(str(demo_folder), **given).llm.plan.slots == expected
    assert StatewiseLM(str(demo_folder), **given, max_batch=2).llm.plan.slots == 2


def test_what_the_checkpoint_lacks(broken):
    from statewise.integrations.lm_eval import StatewiseLM

    model = StatewiseLM(str(broken))
    assert (model.prefix_token_id, model.eot_token_id, model.chat_template(False)) == (256, 257, None)
    assert StatewiseLM(str(broken), prefix_token_id=5).prefix_token_id == 5
    with pytest.raises(ConfigError, match="has no chat template"):
        model.apply_chat_template([{"role": "user", "content": "a"}])
    with pytest.raises(ConfigError, match="chat template 'rag' is not there"):
        model.chat_template("rag")
    for name in ("tokenizer_config.json", "generation_config.json"):
        (broken / name).unlink()
    config = json.loads((broken / "config.json").read_text())
    (broken / "config.json").write_text(json.dumps({k: v for k, v in config.items() if k != "eos_token_id"}))
    with pytest.raises(ConfigError, match="names no end of text"):
        StatewiseLM(str(broken)).prefix_token_id  # noqa: B018
