"""Text from tokens as they come: no half characters, and nothing that may yet turn out to be a stop string."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from tokenizers import Tokenizer

from statewise.errors import CheckpointError, RequestError

_UNFINISHED = "�"


@runtime_checkable
class Decoder(Protocol):
    """What turns token ids into text."""

    def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str: ...


def load_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer of a checkpoint folder. Raises CheckpointError if ``tokenizer.json`` is missing or unreadable."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise CheckpointError(f"{folder} has no tokenizer.json")
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the Rust library raises bare Exception
        raise CheckpointError(f"{path} cannot be read: {error}") from error


class TextStream:
    """The text of one request. ``push`` tokens; ``text`` grows; ``stopped`` once a stop string has appeared.

    Without stop strings nothing is decoded before somebody asks for the text. Decoding is incremental over a short
    tail, as in Hugging Face's text-generation-inference: a token's text can depend on the token before it, so the tail
    since the last finished character is decoded with and without the newcomers.
    """

    def __init__(self, decoder: Decoder, stop: Sequence[str] = (), min_tokens: int = 0):
        """min_tokens: a stop string that ends within the text of so many tokens does not count.

        Raises RequestError for what is no decoder: else the engine would meet it in the middle of a step.
        """
        if not isinstance(decoder, Decoder):
            raise RequestError(f"decoder is {decoder!r:.60}, expected one with a method decode")
        self.stopped = False
        self._text = ""
        self._queue: list[int] = []  # tokens that have not been looked at
        self._decoder = decoder
        self._stop = tuple(stop)
        self._tail: list[int] = []
        self._done = 0  # how many tokens of the tail are already in the text
        self._too_early = min_tokens  # tokens to come whose text cannot stop it
        self._unstoppable = 0  # characters of text that came too early

    def push(self, token: int) -> None:
        """Take one more token. No effect once stopped."""
        if self.stopped:
            return
        self._too_early -= 1
        self._queue.append(token)
        if self._stop:
            self._catch_up()

    @property
    def text(self) -> str:
        """Whole characters so far; up to the stop string if one has appeared."""
        self._catch_up()
        return self._text

    def finish(self) -> None:
        """No token follows: an unfinished character at the end becomes part of the text as it is."""
        self._catch_up()
        if not self.stopped and self._done < len(self._tail):
            before = self._decoder.decode(self._tail[: self._done])
            self._append(self._decoder.decode(self._tail)[len(before) :])
            self._done = len(self._tail)

    @property
    def settled(self) -> int:
        """How many characters no later token can take back: all but a suffix that may begin a stop string."""
        if self.stopped:
            return len(self.text)
        longest = max((len(stop) for stop in self._stop), default=1) - 1
        for length in range(min(longest, len(self.text)), 0, -1):
            if any(stop.startswith(self.text[-length:]) for stop in self._stop):
                return len(self.text) - length
        return len(self.text)

    def _catch_up(self) -> None:
        """Decode what is in the queue: all at once, or token by token where that ends within a character."""
        queue, self._queue = self._queue, []
        if len(queue) > 1 and self._take(queue):
            return
        for token in queue:
            if not self._take([token]):
                self._tail.append(token)

    def _take(self, tokens: list[int]) -> bool:
        """Extend the text by these tokens, if they end with a whole character."""
        tail = self._tail + tokens
        before, now = self._decoder.decode(self._tail[: self._done]), self._decoder.decode(tail)
        if len(now) <= len(before) or now.endswith(_UNFINISHED):
            return False
        self._append(now[len(before) :])
        self._tail = tail[self._done :]
        self._done = len(self._tail)
        return True

    def _append(self, piece: str) -> None:
        reach = max((len(stop) for stop in self._stop), default=1) - 1
        start = max(0, len(self._text) - reach)
        self._text += piece
        if self._too_early >= 0:
            self._unstoppable = len(self._text)
            return
        starts = {stop: max(start, self._unstoppable - len(stop) + 1) for stop in self._stop}
        found = [at for stop, first in starts.items() if (at := self._text.find(stop, first)) >= 0]
        if found:
            self._text, self.stopped = self._text[: min(found)], True
