"""Records what lm-evaluation-harness itself makes of tricky completions, and the prompts that it builds.

    python tests/eval/make_lm_eval_fixture.py             # writes lm_eval_gsm8k.json beside this file
    python tests/eval/make_lm_eval_fixture.py --check     # exit code 1 if it would write something else

Needs lm_eval 0.4.13 (`pip install 'statewise[eval]'`) and nothing from the network. Its stock task `gsm8k` runs on
questions made up here, with a model that replays stored completions; verdicts are its samples, prompts its requests.
"""

import json
import os
import random
import sys
import tempfile
from pathlib import Path

FIXTURE = Path(__file__).with_name("lm_eval_gsm8k.json")
EXAMPLES = 12  # of the made-up training set
ANSWERS = ["18", "-5", "1,234", "$18", "3.5", "0", "70000", "18.", "2/3", "#### 1\n#### 18", "no mark 18"]
COMPLETIONS = [
    "",
    "18",
    " 18.",
    "#### 18",
    "#### 18.",
    "#### 18.0",
    "#### 18.00",
    "####18",
    "#### $18",
    "#### -$18",
    "#### $-18",
    "#### 18$",
    "#### 18%",
    "#### 18 %",
    "#### -18",
    "#### \u221218",
    "#### \u20135",
    "#### -5",
    "#### - 5",
    "#### --5",
    "#### 1,234",
    "#### 1.234",
    "#### 1234",
    "#### 1,234.",
    "#### 1,234.00",
    "#### 1,23,4",
    "#### ,",
    "#### .",
    "#### ...",
    "#### -",
    "#### -.5",
    "#### .5",
    "#### 3.5",
    "#### 3.50",
    "#### 3,5",
    "#### 3.5.",
    "#### 70,000",
    "#### 70000 dollars",
    "#### 70 000",
    "#### 7e4",
    "#### 2/3",
    "#### eighteen",
    "#### 18\n#### 19",
    "#### 19\n#### 18",
    "#### 19 #### 18",
    "##### 18",
    "### 18",
    "#### #### 18",
    "####  18",
    "####\t18",
    "####\n18",
    "####\u00a018",
    "#### \u0661\u0668",
    "#### \uff11\uff18",
    "#### 18\u00a0",
    "#### 1\u00a0234",
    "The answer is 18.",
    "The answer is $18.00.",
    "The answer is 18!",
    "The answer is -5.",
    "The answer is \u22125",
    "The answer is eighteen",
    "She has 3+4=<<3+4=7>>7 left and 18 more.\n#### 18",
    "She has 3+4=<<3+4=7>>7 left and 18 more.\n#### 25\n\nShe has 18",
    "It costs $1,234.",
    "It costs $1,234.50",
    "It costs 1,234 dollars, $18 each",
    "5-3=2",
    "5 - 3 = -5",
    "10-5",
    "3,",
    "$",
    "$$",
    "a.b.c",
    "...",
    "wait, 18.",
    "18 ...",
    "18\n",
    "18.\n",
    "0",
    "0.0",
    "-0",
    "007",
    "#### 0",
    "#### 00",
    "[invalid]",
    "#### [invalid]",
    "#### 18</s>",
    "#### 18 Answer",
    "#### 2\u00bd",
    "#### 18\u20ac",
    "#### (18)",
    "#### *18*",
    "#### \\boxed{18}",
    "#### 18,",
    "#### 18,.",
    "#### 18.,",
    "#### .18",
    "#### 1 8",
    "#### +18",
]
ALPHABET = [
    "#",
    "####",
    "#### ",
    "\n",
    " ",
    ".",
    ",",
    "$",
    "-",
    "\u2212",
    "%",
    "1",
    "8",
    "18",
    "5",
    "3",
    "0",
    "x",
    "=",
    "The",
]


def cases() -> list[dict[str, str]]:
    """Completions with answers: those above with several answers each, then random ones."""
    dice = random.Random(0)
    listed = [
        (text, answer) for i, text in enumerate(COMPLETIONS) for answer in (ANSWERS[0], ANSWERS[i % len(ANSWERS)])
    ]
    for _ in range(150):
        text = "".join(dice.choices(ALPHABET, k=dice.randint(1, 12)))
        listed.append((text, dice.choice(ANSWERS)))
    worked = {
        answer: answer if "mark" in answer or "####" in answer else f"So it is that.\n#### {answer}"
        for answer in ANSWERS
    }
    return [{"completion": text, "answer": worked[answer]} for text, answer in listed]


def examples() -> list[dict[str, str]]:
    """A training set; quotes, braces and line ends are there to stumble over."""
    return [
        {
            "question": f'What is {i} + {{{i}}} "and"\n so on?',
            "answer": f"{i}+{i}=<<{i}+{i}={2 * i}>>{2 * i}\n#### {2 * i}",
        }
        for i in range(EXAMPLES)
    ]


def record() -> dict[str, object]:
    """Run the harness and collect its verdicts and prompts."""
    os.environ["HF_DATASETS_OFFLINE"] = os.environ["HF_HUB_OFFLINE"] = "1"
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["HF_DATASETS_CACHE"] = f"{scratch}/cache"
        return _record(Path(scratch))


def _record(scratch: Path) -> dict[str, object]:
    import importlib.metadata

    import lm_eval
    from lm_eval.api.model import LM
    from lm_eval.tasks import TaskManager

    questions = cases()
    replies = [case["completion"] for case in questions]
    requests: list[tuple[str, dict[str, object]]] = []

    class Replay(LM):
        """Says what is stored, in the order of the questions."""

        def generate_until(self, instances):
            requests.extend(instance.args for instance in instances)
            return replies[: len(instances)]

        def loglikelihood(self, requests):
            raise NotImplementedError

        loglikelihood_rolling = loglikelihood

    rows = [{"question": f"Number {i}?", "answer": case["answer"]} for i, case in enumerate(questions)]
    for name, content in (("train", examples()), ("test", rows)):
        (scratch / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in content), encoding="utf-8")
    stock = Path(lm_eval.__file__).parent / "tasks" / "gsm8k" / "gsm8k.yaml"
    files = {name: str(scratch / f"{name}.jsonl") for name in ("train", "test")}
    task = {"include": str(stock), "tag": None, "task": "recorded", "dataset_path": "json", "dataset_name": None}
    task["dataset_kwargs"] = {"data_files": files}
    (scratch / "recorded.yaml").write_text(json.dumps(task), encoding="utf-8")  # JSON is YAML
    results = lm_eval.simple_evaluate(
        Replay(), tasks=["recorded"], task_manager=TaskManager(include_path=str(scratch)), log_samples=True
    )
    for sample in results["samples"]["recorded"]:
        case = questions[sample["doc_id"]]
        name = {"strict-match": "strict", "flexible-extract": "flexible"}[sample["filter"]]
        [case[name]] = sample["filtered_resps"]
        case[f"{name}_right"] = bool(sample["exact_match"])
    scores = results["results"]["recorded"]
    return {
        "lm_eval": importlib.metadata.version("lm_eval"),
        "task_version": results["versions"]["recorded"],
        "generation": requests[0][1],
        "scores": {
            key: [float(scores[f"exact_match,{name}"]), float(scores[f"exact_match_stderr,{name}"])]
            for key, name in (("strict", "strict-match"), ("flexible", "flexible-extract"))
        },
        "examples": examples(),
        "prompts": [prompt for prompt, _ in requests[:20]],
        "cases": questions,
    }


def main() -> int:
    recorded = json.dumps(record(), indent=0, ensure_ascii=True) + "\n"
    if "--check" in sys.argv:
        return int(recorded != FIXTURE.read_text(encoding="utf-8"))
    FIXTURE.write_text(recorded, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
