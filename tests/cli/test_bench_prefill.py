"""The prefill benchmark without a GPU: the floor, who counts as the best peer, the picture."""

import io

import pytest
from rich.console import Console

from statewise.bench.prefill import PrefillRow, check
from statewise.bench.prefill_contenders import READY, prefill_bytes, prefill_operations
from statewise.bench.prefill_report import best_peer, errors_table, plot_prefill, table
from statewise.bench.workload import Shape
from statewise.errors import BackendError
from tests.cli.test_bad_input import refused

ROWS = [
    PrefillRow(tokens, sequences, has_initial, 1.0, {"statewise": 2.0}, {"statewise": ours, "peer": 8.0, READY: 1.0})
    for has_initial in (False, True)
    for sequences, ours in ((1, 4.0), (4, 2.0))
    for tokens in (512, 2048)
]


def test_the_floor_counts_every_byte_once():
    shape = Shape(heads=2, head_dim=4, groups=1, state_size=8)
    xBC, dt, y = (2 * 4 + 2 * 8) * 2, 2 * 2, 2 * 4 * 2
    state, window = 2 * 4 * 8 * 4, (2 * 4 + 2 * 8) * 3 * 2
    assert prefill_bytes(shape, 10, 3, has_initial=False) == 10 * (xBC + dt + y) + 3 * (state + window)
    assert prefill_bytes(shape, 10, 3, has_initial=True) == 10 * (xBC + dt + y) + 6 * (state + window)
    assert prefill_operations(shape, 10) == 10 * 2 * (2 * 2 * 4 * 8)


def test_the_best_peer_does_all_of_the_work():
    assert best_peer(ROWS[0]) == ("peer", 8.0)
    alone = PrefillRow(512, 1, False, 1.0, {"statewise": 2.0}, {"statewise": 4.0})
    assert best_peer(alone)[0] == "-"


def test_the_table_ends_with_the_means():
    console = Console(file=io.StringIO(), width=160)
    console.print(table(ROWS))
    console.print(errors_table({"statewise": (1e-3, 1e-6)}))
    text = console.file.getvalue()
    assert "peer / ours: 2.83 in the geometric mean, 2.00 at least" in text
    assert "1.0e-06" in text


def test_the_table_without_peers():
    console = Console(file=io.StringIO(), width=160)
    console.print(table([PrefillRow(512, 1, False, 1.0, {"statewise": 2.0}, {"statewise": 4.0})]))
    assert "no peer runs here" in console.file.getvalue()


@pytest.mark.parametrize("ours", [0.001, 0.5])
def test_what_is_wrong_is_left_out_and_if_it_is_ours_nothing_is_reported(monkeypatch, ours):
    wrong_by = {"statewise": (1e-3, ours), "peer": (0.5, 1e-3), "broken": AssertionError(), "good": (1e-3, 1e-3)}

    def errors(kind, make, shape, skips_D):
        if isinstance(make, Exception):
            raise make
        return make

    monkeypatch.setattr("statewise.bench.prefill._errors", errors)
    monkeypatch.setattr("statewise.bench.prefill.convolutions", lambda: {"statewise": (1e-3, 1e-3)})
    monkeypatch.setattr("statewise.bench.prefill.scans", lambda: wrong_by)
    said = []
    if ours > 0.1:
        with pytest.raises(BackendError, match="our scan: wrong or not able to run on this GPU, so nothing is report"):
            check(Shape(), said.append)
        return
    assert list(check(Shape(), said.append).scans) == ["statewise", "good"]
    assert said == [
        "left out: peer's scan is wrong here, relative errors (0.5, 0.001) against float64",
        "left out: broken's scan does not run here: AssertionError()",
    ]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--tokens", "0"], "tokens is 0, expected a whole number, at least 1"),
        (["--sequences", "-1"], "sequences is -1, expected a whole number, at least 1"),
        (["--tokens", "512", "100"], "100 tokens do not divide into 16 sequences of one length"),
        (["--matrix-rate", "0"], "matrix_rate is 0.0, expected operations a second"),
        (["--bandwidth", "nan"], "bandwidth is nan, expected bytes a second"),
        (["--state-size", "0"], "state_size is 0, expected a whole number, at least 1"),
        (["--plot", "/none/p.png"], "plot is /none/p.png, which cannot be written: No such file or directory"),
    ],
)
def test_mistakes_are_told_before_a_gpu_is_looked_for(capsys, flags, message):
    assert message in refused(capsys, "bench", "prefill", *flags)


def test_the_picture_is_drawn(tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    plot_prefill(ROWS, tmp_path / "bench.png", "a title")
    assert (tmp_path / "bench.png").read_bytes().startswith(b"\x89PNG")
