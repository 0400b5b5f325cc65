"""Completions on disk: nothing that was written is lost, nothing of another run gets in."""

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from statewise.errors import ConfigError, DataError
from statewise.eval.records import Completion, Records

RUN = {"task": "gsm8k", "sampling": {"max_tokens": 64, "stop": ["a"]}}


def completion(index: int, mode: str = "plain", text: str = "so\u2028 \ufffd#### 1") -> Completion:
    return Completion(mode, index, text, (1, 2), "stop", None, 1, 0.5)


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "x.completions.jsonl"
    with Records(path, RUN, {"gpu": None}) as records:
        for index in (0, 2, 1):
            records.add(completion(index))
    return path


def test_what_was_written_is_read(path):
    with Records(path, RUN, {"gpu": "b"}) as records:
        assert records.of("plain") == {i: completion(i) for i in range(3)}
        assert records.of("checkpointed") == {}
        assert records.sessions == [{"gpu": None}, {"gpu": "b"}]
        records.add(completion(0, "checkpointed"))
    with Records(path, RUN, {}) as records:
        assert (len(records.of("plain")), len(records.of("checkpointed")), len(records.sessions)) == (3, 1, 3)


def test_a_line_is_on_disk_at_once(tmp_path):
    with Records(tmp_path / "x", RUN, {}) as records:
        records.add(completion(5))
        assert json.loads((tmp_path / "x").read_text().splitlines()[-1])["index"] == 5


def test_torn_at_every_byte(path):
    """Killed while it wrote: whole lines stay, the torn one goes, and what is added next is whole again."""
    content = path.read_bytes()
    for cut in range(len(content) + 1):
        path.write_bytes(content[:cut])
        whole = sum(b'"mode"' in line for line in content[:cut].split(b"\n")[:-1])
        with Records(path, RUN, {}) as records:
            assert len(records.completions) == whole, cut
            records.add(completion(9))
        with Records(path, RUN, {}) as records:
            assert records.of("plain")[9] == completion(9)


def test_a_file_of_another_run(path):
    other = {"task": "gsm8k", "sampling": {"max_tokens": 32, "stop": ["a"]}, "new": 1}
    before = path.read_bytes()
    with pytest.raises(ConfigError, match=r"of another run: new is None there and 1 here; sampling\.max_tokens is 64"):
        Records(path, other, {})
    assert path.read_bytes() == before


@pytest.mark.parametrize("content", ["a\nb\n", "notes without a line end", '{"question": 1}\n', "{}\n", "[]\n"])
def test_a_file_of_something_else_is_left_alone(tmp_path, content):
    path = tmp_path / "x"
    path.write_text(content)
    with pytest.raises(DataError, match="holds something else than completions"):
        Records(path, RUN, {})
    assert path.read_text() == content


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 3 is not JSON"),
        ("[" * 100_000, "line 3 is not JSON"),
        ("[1]", r"line 3 is '\[1\]', expected an object"),
        ('{"mode": 1}', "no completion"),
        *(
            (json.dumps(asdict(completion(0)) | {name: value}), f"line 3 is no completion: {name} is ")
            for name, value in (("mode", [1]), ("index", "0"), ("text", 5), ("token_ids", 5), ("seconds", "x"))
        ),
    ],
)
def test_a_damaged_line_in_the_middle(path, line, message):
    lines = path.read_text().splitlines()
    lines[2] = line
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(DataError, match=message):
        Records(path, RUN, {})


def test_a_damaged_first_line(path):
    lines = path.read_text().splitlines()
    path.write_text("\n".join(['{"run": [1]}', *lines[1:]]) + "\n")
    with pytest.raises(DataError, match="line 1 holds no run"):
        Records(path, RUN, {})


def test_two_runs_at_once(path):
    with Records(path, RUN, {}), pytest.raises(ConfigError, match="is being written by another run"):
        Records(path, RUN, {})


LIMITED = """
import resource, signal, sys
from pathlib import Path
from statewise.errors import DataError
from statewise.eval.records import Records
from tests.eval.test_records import RUN, completion

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
with Records(Path(sys.argv[1]), RUN, {}) as records:
    for index in range(100):
        try:
            records.add(completion(index))
        except DataError as error:
            print(index, error)
            break
"""


def test_a_disk_that_is_full(tmp_path):
    """A file that may have 2,000 bytes: an error in a line, and all that was written before is there."""
    path = tmp_path / "x"
    command = [sys.executable, "-c", LIMITED, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2])
    index, _, message = done.stdout.partition(" ")
    assert "cannot be written" in message
    with Records(path, RUN, {}) as records:
        assert list(records.of("plain")) == list(range(int(index)))


def test_without_a_file_they_are_remembered():
    with Records(None, RUN, {}) as records:
        records.add(completion(1))
        assert records.of("plain") == {1: completion(1)}
