"""The prefill benchmark without a GPU: the floor, who counts as the best peer, the picture."""

import io

import pytest
from rich.console import Console

from statewise.bench.prefill import PrefillRow
from statewise.bench.prefill_contenders import READY, prefill_bytes, prefill_operations
from statewise.bench.prefill_report import best_peer, errors_table, plot_prefill, table
from statewise.bench.workload import Shape

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


def test_the_picture_is_drawn(tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    plot_prefill(ROWS, tmp_path / "bench.png", "a title")
    assert (tmp_path / "bench.png").read_bytes().startswith(b"\x89PNG")
