"""Completions on disk as they come: a JSON line each, so that a run that was killed goes on where it was.

    {"run": {...}}                      what was asked for, first line; a file belongs to one run
    {"started": {...}}                  one each time the run was started
    {"mode": ..., "index": ..., ...}    one a completion, in the order in which they ended

A line is written at once and handed to the system, so only a line that was being written can be torn.
"""

import fcntl
import json
from dataclasses import asdict, dataclass
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Any, Self, get_type_hints

from statewise.errors import ConfigError, DataError

HEAD = b'{"run": '  # how a file begins


@dataclass(frozen=True)
class Completion:
    """What the model said to one question. ``seconds`` since its mode began in its session."""

    mode: str
    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    error: str | None
    session: int
    seconds: float


_KINDS = get_type_hints(Completion) | {"token_ids": list, "seconds": int | float}  # as JSON gives them


class Records:
    """The completions of one run: read what is there, add to it. With ``path`` None they are only remembered.

    Raises ConfigError if the file is of another run or another process has it, DataError if it is damaged.
    """

    def __init__(self, path: Path | None, run: dict[str, Any], session: dict[str, Any]):
        self.path = path
        self.sessions: list[dict[str, Any]] = []
        self.completions: dict[tuple[str, int], Completion] = {}
        self._file: FileIO | None = None
        if path is not None:
            self._file = _open_alone(path)
            try:
                self._read(run)
            except Exception:
                self._file.close()
                raise
        self.sessions.append(session)
        self._write({"started": session})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._file is not None:
            self._file.close()

    def of(self, mode: str) -> dict[int, Completion]:
        """The completions of one mode, by the index of their question."""
        return {index: one for (name, index), one in self.completions.items() if name == mode}

    def add(self, completion: Completion) -> None:
        """Keep one more. Raises DataError if the disk takes no more."""
        self.completions[completion.mode, completion.index] = completion
        self._write(asdict(completion))

    def _write(self, record: dict[str, Any]) -> None:
        if self._file is None:
            return
        line = json.dumps(record).encode() + b"\n"
        try:
            whole = self._file.write(line) == len(line)
        except OSError as error:
            raise DataError(f"{self.path} cannot be written: {error.strerror}; what was there is kept") from error
        if not whole:
            raise DataError(f"{self.path} cannot be written: the disk is full; what was there is kept")

    def _read(self, run: dict[str, Any]) -> None:
        """Take in what is there; then cut off a torn last line."""
        assert self._file is not None
        content = self._file.read()
        *lines, torn = content.split(b"\n")
        if not (lines or [torn])[0].startswith(HEAD[: len(content)]):
            raise DataError(f"{self.path} holds something else than completions; name another output")
        if lines:
            there = self._parse(1, lines[0])["run"]
            if not isinstance(there, dict):
                raise DataError(f"{self.path} line 1 holds no run; mend it or name another output")
            expect_same_run(self.path, there, run)
        for number, line in enumerate(lines[1:], 2):
            record = self._parse(number, line)
            if "started" in record:
                self.sessions.append(record["started"])
            else:
                one = self._completion(number, record)
                self.completions[one.mode, one.index] = one
        self._file.truncate(len(content) - len(torn))
        self._file.seek(0, 2)
        if not lines:
            self._write({"run": run})

    def _parse(self, number: int, line: bytes) -> dict[str, Any]:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(
                f"{self.path} line {number} is not JSON: {error}; mend it or name another output"
            ) from error
        if not isinstance(record, dict):
            raise DataError(f"{self.path} line {number} is {str(record)[:60]!r}, expected an object")
        return record

    def _completion(self, number: int, record: dict[str, Any]) -> Completion:
        if record.keys() != _KINDS.keys():
            raise DataError(f"{self.path} line {number} is no completion: its keys are {', '.join(sorted(record))}")
        wrong = [name for name, kinds in _KINDS.items() if not isinstance(record[name], kinds)]
        if wrong:
            raise DataError(f"{self.path} line {number} is no completion: {wrong[0]} is {record[wrong[0]]!r:.60}")
        return Completion(**record | {"token_ids": tuple(record["token_ids"])})


def _open_alone(path: Path) -> FileIO:
    """Open unbuffered; made if missing. Held until closed, so that two runs cannot mix their lines."""
    file = path.open("r+b" if path.exists() else "w+b", buffering=0)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.close()
        raise ConfigError(f"{path} is being written by another run") from error
    return file


def expect_same_run(path: object, there: dict[str, Any], here: dict[str, Any]) -> None:
    """Raise ConfigError that says where two runs differ."""
    here = json.loads(json.dumps(here))
    before, now = _flat(there), _flat(here)
    differ = [name for name in before.keys() | now.keys() if before.get(name) != now.get(name)]
    differ.sort(key=lambda name: ("sha256" in name, name.count("."), name))  # what a person gave, before what follows
    if differ:
        told = "; ".join(f"{name} is {before.get(name)!r} there and {now.get(name)!r} here" for name in differ[:4])
        more = f"; and {len(differ) - 4} more" if len(differ) > 4 else ""
        raise ConfigError(f"{path} is of another run: {told}{more}; name another output or remove it")


def _flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return flat
