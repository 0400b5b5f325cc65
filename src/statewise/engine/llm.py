"""`LLM`: a checkpoint folder in, text out."""

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from statewise.config import EngineConfig, format_bytes, is_int
from statewise.engine.budget import free_memory
from statewise.engine.conversation import Conversation
from statewise.engine.core import Engine
from statewise.engine.counters import Counters
from statewise.engine.plan import Plan, make_plan
from statewise.engine.request import Phase, PromptLogprob, Request, SamplingParams, TopLogprobs, token_ids
from statewise.engine.text import load_tokenizer
from statewise.errors import ConfigError, MemoryBudgetError, RequestError
from statewise.models.families import read_config
from statewise.models.weights import load_model

Prompt = str | Sequence[int]


@dataclass(frozen=True)
class RequestOutput:
    """What became of one prompt.

    ``decode_runs``: decode steps since each admission; more than one after a preemption.
    ``finish_reason``: "stop" (end of text, a stop token or string), "length", "abort", or "error" with ``error``
    set and whatever was generated before it. ``token_ids`` include the token that ended the text; ``text`` does not.
    ``prompt_logprobs``: one a prompt token if asked for; None for the first, which nothing precedes, and for those
    before ``prompt_logprobs_start``.
    """

    index: int
    prompt_token_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    text: str
    finish_reason: str
    error: RequestError | None = None
    logprobs: tuple[TopLogprobs, ...] = ()
    decode_runs: tuple[int, ...] = ()
    prompt_logprobs: tuple[PromptLogprob | None, ...] = ()


@dataclass(frozen=True)
class StreamPiece:
    """The next piece of one prompt's text. The last piece of a prompt carries its whole ``output``."""

    index: int
    text: str
    output: RequestOutput | None = None


class LLM:
    """Generates text with the model of a Hugging Face checkpoint folder.

        llm = LLM("path/to/model", checkpoint_interval=16)
        [output] = llm.generate(["2 + 2 ="], SamplingParams(temperature=0, max_tokens=8))

    Raises CheckpointError for a folder that cannot be read, ConfigError for options that cannot work.
    """

    def __init__(
        self, model: str | Path, config: EngineConfig | None = None, *, quiet: bool = False, **options: object
    ):
        """config, or its fields as keyword options; an unknown one is an error. quiet: no plan on stderr."""
        if config is not None and options:
            raise ConfigError(f"both config and options are given: {', '.join(options)}")
        if config is not None and not isinstance(config, EngineConfig):
            raise ConfigError(f"config is {config!r:.60}, expected an EngineConfig; options are keywords")
        config = EngineConfig.of(**options) if config is None else config
        folder = Path(model)
        self.model_config = read_config(folder)
        self.plan = make_plan(self.model_config, config)
        self.tokenizer = load_tokenizer(folder)
        device = torch.device(config.device)
        self._news: dict[Request, dict[Request, None]] = {}
        if device.type == "cuda" and not torch.cuda.is_available():
            raise ConfigError("device is cuda, but torch sees no GPU here; possible: cpu")
        _expect_room(self.plan, config, device)
        try:
            weights = load_model(folder, self.model_config, self.plan.ops, self.plan.dtype, device)
            if not quiet:
                print(*self.plan.lines(), sep="\n", file=sys.stderr)
            self.plan.ops.warm_up()  # may compile for minutes, after the plan has said for whom
            self.engine = Engine(weights, self.plan, config)
        except torch.OutOfMemoryError as error:
            raise MemoryBudgetError(
                f"memory is {config.memory}, and with it the start ran out of memory: {str(error).splitlines()[0]}"
            ) from error

    @property
    def counters(self) -> Counters:
        """Steps, tokens, state writes and bytes moved since the start."""
        return self.engine.counters

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        on_finish: Callable[[RequestOutput], None] | None = None,
    ) -> list[RequestOutput]:
        """Generate for every prompt, in one batch as wide as fits. Outputs in the order of the prompts.

        prompts: text or token ids, one or several.  params: for all or one each; None: the defaults.
        on_finish: called with each output as it ends. A prompt that cannot be served ends alone, with ``error`` set.
        """
        outputs: dict[int, RequestOutput] = {}
        for piece in self._stream(*self._paired(prompts, params), in_pieces=False):
            if piece.output is not None:
                outputs[piece.index] = piece.output
                if on_finish is not None:
                    on_finish(piece.output)
        return [outputs[i] for i in range(len(outputs))]

    def stream(
        self, prompts: Prompt | Sequence[Prompt], params: SamplingParams | Sequence[SamplingParams] | None = None
    ) -> Iterator[StreamPiece]:
        """Like `generate`, but yields text as it becomes final. Closing the iterator aborts what still runs.

        A piece never holds half a character, nor text that may yet turn out to be a stop string. Several streams of one
        LLM may be open at once; their requests share its batches.
        """
        return self._stream(*self._paired(prompts, params), in_pieces=True)

    def conversation(self) -> Conversation:
        """A text that grows turn by turn and runs what is new alone. Raises ConfigError with ``deterministic``."""
        if self.engine.config.deterministic:
            raise ConfigError("deterministic is on: where chunks of a next turn begin would depend on other requests")
        return Conversation(self)

    def turn(
        self, talk: Conversation, prompt: Prompt, params: SamplingParams | None, in_pieces: bool = False
    ) -> Iterator[StreamPiece]:
        """The next turn of a conversation, for its own methods."""
        return self._stream([prompt], _each(params, 1), in_pieces, talk)

    def _paired(
        self, prompts: Prompt | Sequence[Prompt], params: SamplingParams | Sequence[SamplingParams] | None
    ) -> tuple[list[Prompt], list[SamplingParams]]:
        listed = _as_list(prompts)
        return listed, _each(params, len(listed))

    def _stream(
        self, prompts: list[Prompt], params: list[SamplingParams], in_pieces: bool, talk: Conversation | None = None
    ) -> Iterator[StreamPiece]:
        """in_pieces False: only whole outputs, and no text is decoded before its end."""
        sent: dict[Request, int] = {}  # characters yielded, of the requests of this stream that have not ended
        news: dict[Request, None] = {}  # those that have changed; another stream's steps may add to it
        try:
            for index, (prompt, wanted) in enumerate(zip(prompts, params, strict=True)):
                ids: tuple[int, ...] = ()
                try:
                    ids = self._encode(prompt, begins=talk is None or talk.is_new)
                    if talk is not None:
                        request = talk.submit(ids, wanted)
                    else:
                        request = self.engine.submit(ids, wanted, self.tokenizer, index)
                    sent[request], self._news[request] = 0, news
                except RequestError as error:
                    yield StreamPiece(index, "", RequestOutput(index, ids, (), "", "error", error))
            while sent:
                if not news:
                    for request in self.engine.step():
                        if request in self._news:  # else it was given to the engine itself
                            self._news[request][request] = None
                    if not news:  # whom others have aborted or stepped to its end tells nobody
                        news.update(dict.fromkeys(request for request in sent if request.phase is Phase.FINISHED))
                while news:
                    request = next(iter(news))
                    del news[request]
                    done = request.phase is Phase.FINISHED
                    if not (done or in_pieces):
                        continue
                    upto = len(request.text.text) if done else request.text.settled
                    piece, sent[request] = request.text.text[sent[request] : upto], upto
                    if done:
                        del sent[request], self._news[request]
                    if piece or done:
                        yield StreamPiece(request.index, piece, _output(request) if done else None)
        finally:
            for request in sent:
                self.engine.abort(request)
                del self._news[request]

    def _encode(self, prompt: Prompt, begins: bool) -> tuple[int, ...]:
        """begins: a text, for which a tokenizer may have tokens of its own."""
        if isinstance(prompt, str):
            try:
                prompt.encode()
            except UnicodeEncodeError as error:
                raise RequestError(f"the prompt is not valid Unicode: {error.reason} at {error.start}") from error
            return tuple(self.tokenizer.encode(prompt, add_special_tokens=begins).ids)
        return token_ids(prompt, expected="text or a sequence of token ids")


def _expect_room(plan: Plan, config: EngineConfig, device: torch.device) -> None:
    """Raise MemoryBudgetError if the plan does not fit the machine: on a CPU the system would end the process."""
    if device.type == "cuda":
        there = free_memory(device)
    else:
        there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    needed = plan.weight_bytes + plan.cache_bytes
    if needed > there:
        raise MemoryBudgetError(
            f"memory is {config.memory}: with the weights the plan needs {format_bytes(needed)}, "
            f"but {device.type} has {format_bytes(there)}"
        )


def _as_list(prompts: Prompt | Iterable[Prompt]) -> list[Prompt]:
    """One prompt or several: text is one, and so is a sequence of nothing but token ids."""
    if isinstance(prompts, str):
        return [prompts]
    if not isinstance(prompts, Iterable):
        raise ConfigError(f"prompts is {prompts!r:.60}, expected text, token ids, or several of them")
    listed = list(prompts)
    return [listed] if listed and all(is_int(item) for item in listed) else listed  # type: ignore[list-item, return-value]


def _each(params: SamplingParams | Sequence[SamplingParams] | None, count: int) -> list[SamplingParams]:
    """Those of ``count`` prompts, given for all or one each; None: the defaults."""
    each = list(params) if isinstance(params, Sequence) else [SamplingParams() if params is None else params] * count
    if not all(isinstance(wanted, SamplingParams) for wanted in each):
        raise ConfigError(f"params is {params!r:.60}, expected SamplingParams, one or one a prompt")
    if len(each) != count:
        raise ConfigError(f"{count} prompts are given with {len(each)} sampling parameters")
    return each


def _output(request: Request) -> RequestOutput:
    assert request.finish_reason is not None
    return RequestOutput(
        index=request.index,
        prompt_token_ids=request.prompt,
        token_ids=tuple(request.output),
        text=request.text.text,
        finish_reason=request.finish_reason,
        error=request.error,
        logprobs=tuple(request.logprobs),
        decode_runs=tuple(request.decode_runs),
        prompt_logprobs=tuple(request.prompt_logprobs),
    )
