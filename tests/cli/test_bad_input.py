"""What bad input gets: one line that names what was given and what is possible, exit code 2, no traceback."""

import json

import pytest
from safetensors.torch import load_file, save_file

from statewise.cli import main
from statewise.demo.questions import word_problems
from statewise.eval.questions import write_questions


def refused(capsys, *arguments, lines=1):
    """Run a command that must fail as a user's mistake. Returns its message."""
    code = main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    assert code == 2
    assert "Traceback" not in captured.err
    message = captured.err.strip().splitlines()
    assert len(message) == lines, message
    assert message[0].startswith("statewise: error: ")
    return captured.err


def change_config(folder, **values):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_a_missing_folder(capsys, tmp_path):
    message = refused(capsys, "generate", tmp_path / "nothing", "-p", "hi")
    assert f"model folder {tmp_path / 'nothing'} does not exist" in message


def test_a_folder_without_a_config(capsys, tmp_path):
    assert "has no config.json; expected a Hugging Face" in refused(capsys, "info", tmp_path)


def test_a_config_that_is_not_json(capsys, broken):
    (broken / "config.json").write_text("{")
    assert "config.json cannot be read as JSON" in refused(capsys, "info", broken)


def test_an_unsupported_family(capsys, broken):
    change_config(broken, architectures=["LlamaForCausalLM"])
    message = refused(capsys, "info", broken)
    assert "family LlamaForCausalLM is not supported; supported are Mamba2ForCausalLM, NemotronHForCausalLM" in message


EXPERTS = {
    "hybrid_override_pattern": "M-ME",
    "num_hidden_layers": 4,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "moe_shared_expert_intermediate_size": 16,
}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"hybrid_override_pattern": "M-MX"}, "layer 3 is of kind 'X'; supported are mamba, attention, mlp and moe"),
        ({"moe_latent_size": 32}, "moe_latent_size is 32, supported is None"),
        ({"n_shared_experts": 2}, "n_shared_experts is 2, supported is 1"),
        ({"num_experts_per_tok": 9}, "num_experts_per_tok is 9, of 8 experts"),
        ({"n_group": 3}, "8 experts are in 3 groups, of which a token takes 1"),
        ({"n_group": 4, "num_experts_per_tok": 3}, "num_experts_per_tok is 3, of 2 experts"),
        ({"n_group": 8, "num_experts_per_tok": 1}, "groups of one expert"),
        ({"routed_scaling_factor": 0}, "routed_scaling_factor is 0, expected a positive number"),
    ],
)
def test_impossible_experts(capsys, broken, values, message):
    change_config(broken, **EXPERTS | values)
    assert message in refused(capsys, "info", broken)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"n_groups": 3}, "8 Mamba heads do not divide into 3 groups"),
        ({"architectures": 5}, "architectures is 5, expected a list of names"),
        ({"architectures": "NemotronHForCausalLM"}, "expected a list of names"),
        ({"hybrid_override_pattern": 7}, "has a field of a wrong kind"),
        ({"hybrid_override_pattern": "--", "num_hidden_layers": 2}, "the model has no Mamba-2 layer"),
        ({"num_hidden_layers": 3}, "num_hidden_layers is 3, but the pattern has 12 layers"),
        ({"layer_norm_epsilon": "x"}, "has a field of a wrong kind"),
        ({"vocab_size": 10**30}, "vocab_size is 1000000000000000"),
        ({"time_step_limit": [5, 1]}, "expected 0 <= low <= high"),
        ({"time_step_limit": [float("nan"), 1]}, "expected 0 <= low <= high"),
        ({"hidden_size": 0}, "hidden_size is 0, expected a positive whole number"),
        ({"time_step_limit": [0]}, "time_step_limit is [0], expected two numbers"),
        ({"mlp_hidden_act": "gelu"}, "mlp_hidden_act is 'gelu', supported is 'relu2'"),
        ({"torch_dtype": "float8"}, "dtype is 'float8', supported are float32, bfloat16 and float16"),
    ],
)
def test_an_impossible_config(capsys, broken, values, message):
    path = broken / "config.json"
    path.write_text(json.dumps({k: v for k, v in json.loads(path.read_text()).items() if k != "dtype"} | values))
    assert message in refused(capsys, "info", broken)


def test_a_missing_and_a_damaged_tokenizer(capsys, broken):
    (broken / "tokenizer.json").write_text("no")
    assert "tokenizer.json cannot be read" in refused(capsys, "generate", broken, "-p", "hi")
    (broken / "tokenizer.json").unlink()
    assert f"{broken} has no tokenizer.json" in refused(capsys, "generate", broken, "-p", "hi")


def test_a_truncated_weights_file(capsys, broken):
    path = broken / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])
    assert "model.safetensors cannot be read, it may be truncated" in refused(capsys, "generate", broken, "-p", "hi")
    path.unlink()
    assert f"{broken} has no *.safetensors file" in refused(capsys, "generate", broken, "-p", "hi")


def test_all_weights_that_do_not_fit_are_listed(capsys, broken):
    path = broken / "model.safetensors"
    weights = load_file(path)
    del weights["backbone.layers.0.mixer.D"]
    weights["backbone.layers.0.mixer.E"] = weights["lm_head.weight"].clone()
    weights["backbone.norm_f.weight"] = weights["backbone.norm_f.weight"][:5].clone()
    save_file(weights, path)
    message = refused(capsys, "generate", broken, "-p", "hi", lines=4)
    assert "3 weights do not fit the config" in message
    assert "missing layers.0.mixer.D (8,)" in message
    assert "unexpected layers.0.mixer.E (264, 128)" in message
    assert "norm_f.weight has shape (5,), expected (128,)" in message


def test_a_shard_that_the_index_names_is_missing(capsys, broken):
    index = {"weight_map": {"lm_head.weight": "model-2.safetensors"}}
    (broken / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "lacks model-2.safetensors, which" in refused(capsys, "generate", broken, "-p", "hi")


@pytest.mark.parametrize("interval", [0, 10_000])
def test_an_impossible_interval(capsys, demo_folder, interval):
    message = refused(capsys, "generate", demo_folder, "-p", "hi", "--checkpoint-interval", interval)
    assert f"checkpoint_interval is {interval}, expected a whole number, 1 to 64" in message


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--memory", "100KiB"), "memory is 100KiB (102400 bytes), but one request needs at least 511292 bytes"),
        (("--memory", "lots"), "memory is 'lots', expected bytes or a size like 512MiB"),
        (("--memory", "0"), "memory is '0', expected more than zero bytes"),
        (("--state-dtype", "int8"), "state_dtype is 'int8', expected one of float32"),
        (("--backend", "mystery"), "backend 'mystery' cannot run here; possible: auto; torch"),
        (
            ("--backend", "triton", "--state-dtype", "float64"),
            "backend 'triton' cannot run here: its kernels sum in float32",
        ),
        (("--device", "tpu9"), "device is 'tpu9', expected cpu or cuda"),
        (("--max-batched-tokens", "10"), "max_batched_tokens is 10, expected at least max_batch = 64"),
        (("--max-batch", "0"), "max_batch is 0, expected a whole number, at least 1"),
        (
            ("--memory", "90%"),
            "memory is 90%, a share of a GPU's free memory, but the device is cpu; expected bytes or",
        ),
        (("--state-slots", "65"), "state_slots is 65, expected at most max_batch = 64"),
        (("--memory", "1MiB", "--kv-blocks", "64"), "what is asked for needs at least"),
        (("--presence-penalty", "3"), "presence_penalty is 3.0, expected -2 to 2"),
        (("--temperature", "-1"), "temperature is -1.0, expected 0 (greedy) or more"),
    ],
)
def test_impossible_options(capsys, demo_folder, flags, message):
    assert message in refused(capsys, "generate", demo_folder, "-p", "hi", *flags)


def test_an_empty_prompt(capsys, demo_folder):
    assert "the prompt is empty" in refused(capsys, "generate", demo_folder, "-q", "-p", "")


def test_a_prompt_longer_than_the_context(capsys, demo_folder):
    message = refused(capsys, "generate", demo_folder, "-q", "-p", "x" * 5000)
    assert "the prompt has 5000 tokens, but a request has room for 4096, one of them generated" in message


def test_a_prompt_longer_than_memory(capsys, demo_folder):
    message = refused(capsys, "generate", demo_folder, "-q", "--memory", "2MiB", "-p", "x" * 2000)
    assert "the prompt has 2000 tokens, but a request has room for" in message


def test_one_bad_prompt_ends_alone(capsys, demo_folder):
    code = main(["generate", str(demo_folder), "-q", "--temperature", "0", "-p", "one", "-p", "", "-p", "three"])
    captured = capsys.readouterr()
    assert code == 2
    assert captured.err == "statewise: error: prompt 2: the prompt is empty, expected at least one token\n"
    texts = [part.partition("\n")[2] for part in captured.out.split("--- ")[1:]]
    assert [bool(text.strip()) for text in texts] == [True, False, True]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot be read"),
        ("", "holds no questions"),
        ('{"question": "a", "answer": "b"}\n{"question": 3}\n', "line 2 holds"),
        ("not json\n", "line 1 is not JSON"),
        ("[1]\n", "line 1 holds '[1]'"),
    ],
)
def test_a_bad_questions_file(capsys, demo_folder, tmp_path, text, message):
    path = tmp_path / "q.jsonl"
    if text is not None:
        path.write_text(text)
    assert message in refused(capsys, "compare", demo_folder, "--questions", path)


def test_comparing_plain_with_itself(capsys, demo_folder):
    message = refused(capsys, "demo", "--limit", "2", "--checkpoint-interval", "1")
    assert "checkpoint_interval is 1, the plain step itself; expected 2 to 64" in message


def test_places_that_cannot_be_written_are_told_before_the_work(capsys, demo_folder, tmp_path):
    (tmp_path / "file").write_text("")
    assert "which cannot be written: Not a directory" in refused(capsys, "demo", "--keep", tmp_path / "file" / "x")
    message = refused(capsys, "demo", "--limit", "1", "--json", tmp_path / "none" / "x.json")
    assert "which cannot be written: No such file or directory" in message


def test_a_prompt_that_is_not_unicode(capsys, demo_folder):
    assert "the prompt is not valid Unicode" in refused(capsys, "generate", demo_folder, "-q", "-p", "\udcff")


def test_a_budget_larger_than_the_machine(capsys, demo_folder):
    flags = ["--memory", "9000GiB", "--max-batch", "2000000", "--max-batched-tokens", "2000000"]
    message = refused(capsys, "generate", demo_folder, "-p", "hi", *flags)
    assert "memory is 9000GiB: with the weights the plan needs" in message


def test_questions_none_of_which_fits(capsys, demo_folder, tmp_path):
    (tmp_path / "q.jsonl").write_text('{"question": "' + "x" * 50 + '", "answer": "#### 1"}')
    flags = ["--questions", tmp_path / "q.jsonl", "--max-context", "20"]
    assert "none of 1 questions could be served; question 1: the prompt has" in last_line(capsys, demo_folder, *flags)


def last_line(capsys, demo_folder, *flags):
    """The error of a comparison that had printed its plans."""
    assert main(["compare", str(demo_folder), *map(str, flags)]) == 2
    return capsys.readouterr().err.strip().splitlines()[-1]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--checkpoint-interval", "10000"), "checkpoint_interval is 10000, expected a whole number, 1 to 64"),
        (("--memory", "400KiB"), "but one request needs at least 511292 bytes"),
        (("--max-tokens", "0"), "max_tokens is 0, expected at least 1"),
        (("--concurrency", "0"), "concurrency is 0, expected at least 1"),
        (("--concurrency", "3000"), "concurrency is 3000, expected at most max_batched_tokens = 2048"),
        (("--show", "-1"), "show is -1, expected at least 0"),
        (("--max-context", "100000"), "max_context is 100000, but the model's own limit is 4096"),
    ],
)
def test_a_comparison_is_checked_before_either_mode_runs(capsys, demo_folder, tmp_path, flags, message):
    write_questions(tmp_path / "q.jsonl", word_problems(2))
    assert message in refused(capsys, "compare", demo_folder, "--questions", tmp_path / "q.jsonl", *flags)


@pytest.mark.parametrize("limit", ["0", "-3", "99999"])
def test_an_impossible_limit(capsys, limit):
    assert f"limit is {limit}, expected at" in refused(capsys, "demo", "--limit", limit)


@pytest.mark.parametrize(
    "arguments",
    [
        ["generate"],
        ["fly"],
        [],
        ["demo", "--wings"],
        ["demo", "--limit", "x"],
        ["generate", "m", "-p", "x", "--logit-bias", "7"],
    ],
)
def test_wrong_usage_is_one_line_that_points_to_help(capsys, arguments):
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1
    assert "--help" in error
