"""Statewise as a model of lm-evaluation-harness (0.4.13 and later): `pip install 'statewise[eval]'`.

    python -m statewise.integrations.lm_eval run --model statewise --model_args pretrained=FOLDER --tasks gsm8k

The harness looks for models in its own list alone: it has no entry points for them, and `--include_path` is for tasks.
So importing this module registers the model, and running it is `lm-eval` after that import. In Python:

    import lm_eval, statewise.integrations.lm_eval
    lm_eval.simple_evaluate("statewise", model_args={"pretrained": "FOLDER", "checkpoint_interval": 16}, tasks=[...])

`model_args` takes every field of EngineConfig, as the command line does, besides those of `StatewiseLM`.
"""

import logging
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

try:
    from lm_eval.__main__ import cli_evaluate
    from lm_eval.api.model import TemplateLM
    from lm_eval.api.registry import register_model
    from tqdm import tqdm
except ImportError as error:
    raise ImportError(f"lm-evaluation-harness cannot be imported ({error}): pip install 'statewise[eval]'") from error

import torch

from statewise.config import EngineConfig
from statewise.demo.shipped import model_folder
from statewise.engine.chat import ChatTemplate, special_tokens
from statewise.engine.llm import LLM
from statewise.errors import ConfigError, StatewiseError
from statewise.eval.harness import completions, continuations, sampling_of, windows
from statewise.eval.prompts import MAX_TOKENS
from statewise.eval.run import special_stops

logger = logging.getLogger(__name__)
NO_LIMIT = sys.maxsize  # max_length of a model without one


@register_model("statewise")
class StatewiseLM(TemplateLM):
    """All three kinds of requests, in batches as wide as the engine's, and chat templates.

    pretrained: a checkpoint folder, or "demo" for the model that this package carries.  device: see `_device`.
    batch_size: `max_batch` of the engine; "auto" and the harness' own default of 1 leave that to the engine
    (`max_batch=1` is one at a time).  max_gen_toks: of tasks that name none.
    prefix_token_id: what an empty context is; default: the beginning of text, else the end of text.
    options: fields of EngineConfig.  Raises ConfigError for options that cannot work.
    """

    def __init__(
        self,
        pretrained: str,
        batch_size: int | str = "auto",
        max_batch_size: int | None = None,
        device: str | None = None,
        max_gen_toks: int = MAX_TOKENS,
        prefix_token_id: int | None = None,
        **options: Any,
    ):
        super().__init__()
        wanted = {"max_batch": _max_batch(batch_size, max_batch_size), "device": _device(device)}
        given = {name: value for name, value in wanted.items() if value is not None and name not in options}
        self.folder = model_folder(str(pretrained))  # the harness takes a folder called 5 for a number
        self.llm = LLM(self.folder, EngineConfig.of(**options | given))
        self.max_gen_toks = max_gen_toks
        self._template = ChatTemplate.load(self.folder)
        self._bos = special_tokens(self.folder).get("bos_token")
        self._prefix = prefix_token_id

    @property
    def eot_token_id(self) -> int:
        """The model's end of text."""
        if not self.llm.model_config.eos_token_ids:
            raise ConfigError(f"{self.folder} names no end of text, which an empty context needs; set prefix_token_id")
        return self.llm.model_config.eos_token_ids[0]

    @property
    def prefix_token_id(self) -> int:
        """What stands before a text that nothing precedes."""
        if self._prefix is not None:
            return self._prefix
        bos = self.llm.tokenizer.token_to_id(self._bos) if self._bos is not None else None
        return self.eot_token_id if bos is None else bos

    @property
    def max_length(self) -> int:
        """Tokens that a request has room for."""
        return self.llm.plan.max_context or NO_LIMIT

    @property
    def tokenizer_name(self) -> str:
        """What the harness names its caches of requests after."""
        return str(self.folder.resolve()).replace("/", "__")

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """Token ids. None: with the special tokens that the tokenizer adds, unless the text begins with them."""
        if add_special_tokens is None:
            add_special_tokens = self._bos is None or not string.startswith(self._bos)
        return list(self.llm.tokenizer.encode(string, add_special_tokens=add_special_tokens).ids)

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """The template's source; None if none is asked for. Raises ConfigError if there is none, or not that one."""
        if chat_template is False or chat_template is None:
            return None
        if chat_template not in (True, "default"):
            raise ConfigError(f"chat template {chat_template!r} is not there, expected default")
        return self._expect_template().source

    def apply_chat_template(
        self, chat_history: Sequence[dict[str, str]], add_generation_prompt: bool = True, **_: Any
    ) -> str:
        """One prompt out of messages."""
        return self._expect_template().render(chat_history, add_generation_prompt)

    def _expect_template(self) -> ChatTemplate:
        if self._template is None:
            raise ConfigError(f"{self.folder} has no chat template")
        return self._template

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], disable_tqdm: bool = False, **_: Any
    ) -> list[tuple[float, bool]]:
        """requests: what the cache knows them by, context and continuation in token ids."""
        results: list[tuple[float, bool]] = [(0.0, True)] * len(requests)
        pairs = [(context or [self.prefix_token_id], continuation) for _, context, continuation in requests]
        self._warn_of_cuts(pairs)
        for index, logprob, is_greedy in tqdm(
            continuations(self.llm, pairs), total=len(pairs), disable=disable_tqdm, desc="loglikelihood"
        ):
            results[index] = (logprob, is_greedy)
            key = requests[index][0]
            if key is not None:
                self.cache_hook.add_partial("loglikelihood", key, results[index])
        return results

    def _warn_of_cuts(self, pairs: Sequence[tuple[list[int], list[int]]]) -> None:
        cut = sum(len(context) + len(continuation) >= self.max_length for context, continuation in pairs)
        if cut:
            logger.warning("%d contexts are cut at their beginning: a request has %d tokens", cut, self.max_length)

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """The log probability of whole documents, in windows where they are longer than the context."""
        most = None if self.max_length == NO_LIMIT else self.max_length - 1  # one token is generated
        if most is not None and most < 2:
            raise ConfigError(f"max_context is {self.max_length}, expected at least 3 for log-likelihoods of documents")
        pieces = [
            (number, window)
            for number, request in enumerate(requests)
            for window in windows(self.tok_encode(request.args[0]), self.prefix_token_id, most)
        ]
        scored = self._loglikelihood_tokens([(None, *window) for _, window in pieces], disable_tqdm)
        totals = [0.0] * len(requests)
        for (number, _), (logprob, _) in zip(pieces, scored, strict=True):
            totals[number] += logprob
        for request, total in zip(requests, totals, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, total)
        return totals

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Text up to the first stop string of each request."""
        params = []
        for request in requests:
            asked = sampling_of(request.args[1], self.max_gen_toks)
            special = special_stops(self.llm.tokenizer, asked.stop)
            params.append(replace(asked, stop_token_ids=asked.stop_token_ids + special))
        prompts = [self.tok_encode(request.args[0]) or [self.prefix_token_id] for request in requests]
        texts = [""] * len(requests)
        for index, text in tqdm(
            completions(self.llm, prompts, params, logger.warning),
            total=len(requests),
            disable=disable_tqdm,
            desc="generate_until",
        ):
            texts[index] = text
            self.cache_hook.add_partial("generate_until", requests[index].args, text)
        return texts


def _max_batch(batch_size: int | str, max_batch_size: int | None) -> int | None:
    """The engine's `max_batch`; None leaves it its default."""
    if str(batch_size) in ("1", "auto"):
        return max_batch_size
    try:
        return int(batch_size)
    except ValueError as error:
        raise ConfigError(f"batch_size is {batch_size!r}, expected a number or auto") from error


def _device(asked: str | None) -> str | None:
    """The harness' command line asks for a GPU whether or not its user did; where there is none, this says so."""
    if asked is not None and asked.startswith("cuda") and not torch.cuda.is_available():
        logger.warning("device is %s, the harness' default, and torch sees no GPU: this runs on the CPU", asked)
        return "cpu"
    return asked


def main() -> int:
    """`lm-eval`, with this model in its list. A mistake that Statewise finds is one line and exit code 2."""
    try:
        cli_evaluate()
    except StatewiseError as error:
        print(f"statewise: error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
