"""Turns over one growing text."""

from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from statewise.engine.request import Request, SamplingParams

if TYPE_CHECKING:
    from statewise.engine.llm import LLM, Prompt, RequestOutput, StreamPiece


class Conversation:
    """A text that grows turn by turn, by a prompt and an answer each. `LLM.conversation` makes it.

        with llm.conversation() as talk:
            print(talk.generate("Question: 2 + 2?\\nAnswer:", params).text)
            print(talk.generate("\\n\\nQuestion: and 3 more?\\nAnswer:", params).text)

    Caches stay in their slot and blocks between turns, so a turn runs its own tokens alone (`Engine.extend`); if other
    requests needed the room, the whole text. What a model expects between turns, from a chat template perhaps, is part
    of the prompts; text of later turns gets no tokens for the beginning of a text. An answer that was cut short
    stays as far as it came; one that ended with an error ends the conversation.
    """

    def __init__(self, llm: "LLM"):
        self._llm = llm
        self._last: Request | None = None

    @property
    def is_new(self) -> bool:
        """Whether nothing has been said."""
        return self._last is None

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The text so far."""
        return () if self._last is None else (*self._last.prompt, *self._last.output)

    def generate(self, prompt: "Prompt", params: SamplingParams | None = None) -> "RequestOutput":
        """The answer to the next prompt. Its ``prompt_token_ids`` are the whole text before it."""
        [output] = [piece.output for piece in self._llm.turn(self, prompt, params) if piece.output is not None]
        return output

    def stream(self, prompt: "Prompt", params: SamplingParams | None = None) -> "Iterator[StreamPiece]":
        """Likewise, as `LLM.stream`."""
        return self._llm.turn(self, prompt, params, in_pieces=True)

    def submit(self, prompt: Sequence[int], params: SamplingParams) -> Request:
        """Queue the next turn. Raises RequestError as `Engine.submit` and `Engine.extend` do; then nothing is said."""
        engine, decoder = self._llm.engine, self._llm.tokenizer
        if self._last is None:
            self._last = engine.submit(prompt, params, decoder, keep=True)
        else:
            self._last = engine.extend(self._last, prompt, params, decoder)
        return self._last

    def close(self) -> None:
        """Give its slot and blocks up. A turn that still runs goes on."""
        if self._last is not None:
            self._llm.engine.release(self._last)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
