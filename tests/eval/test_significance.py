"""Statistics against the same numbers by fractions and by counting every outcome."""

import math
from fractions import Fraction
from itertools import product

import pytest

from statewise.eval.significance import Paired, Proportion

Z = 1.959963984540054  # of the normal distribution at 0.975


@pytest.mark.parametrize(("first", "second"), [(0, 0), (1, 0), (0, 3), (2, 2), (1, 9), (7, 4), (3, 8)])
def test_mcnemar_counts_every_outcome(first, second):
    """Of all ways in which fair coins could share out the questions, those at least as uneven as what was seen."""
    n = first + second
    uneven = sum(abs(2 * sum(way) - n) >= abs(first - second) for way in product((0, 1), repeat=n))
    assert Paired(5, first, second, 6).mcnemar() == Fraction(uneven, 2**n)


def test_mcnemar_of_many():
    assert Paired(0, 1, 9, 0).mcnemar() == Fraction(11, 512)
    assert Paired(0, 500, 500, 319).mcnemar() == 1
    p = Paired(0, 600, 719, 0).mcnemar()
    assert p == Fraction(2 * sum(math.comb(1319, k) for k in range(601)), 2**1319)
    assert float(p) == pytest.approx(0.00115, rel=0.01)


@pytest.mark.parametrize(
    ("first", "second", "rest"), [(0, 0, 1319), (3, 5, 1311), (7, 1, 13), (0, 4, 0), (40, 90, 500)]
)
def test_interval_by_fractions(first, second, rest):
    """Bonett and Price: one more of each kind that differs, then Wald."""
    n = first + second + rest + 2
    a, b = Fraction(first + 1, n), Fraction(second + 1, n)
    variance = (a + b - (b - a) ** 2) / n
    low, high = Paired(0, first, second, rest).interval()
    assert low == pytest.approx(max(-1, float(b - a) - Z * math.sqrt(variance)), abs=1e-12)
    assert high == pytest.approx(min(1, float(b - a) + Z * math.sqrt(variance)), abs=1e-12)
    assert low <= Paired(0, first, second, rest).difference <= high
    assert low < high


def test_interval_turns_with_the_runs_and_narrows_with_confidence():
    low, high = Paired(9, 3, 8, 20).interval()
    assert Paired(9, 8, 3, 20).interval() == pytest.approx((-high, -low))
    inner = Paired(9, 3, 8, 20).interval(0.5)
    assert low < inner[0] < inner[1] < high


def test_pairs_are_counted():
    first = [True, True, True, False, False, False]
    second = [True, False, False, True, False, False]
    pair = Paired.of(first, second)
    assert (pair.both, pair.only_first, pair.only_second, pair.neither) == (1, 2, 1, 2)
    assert (pair.total, pair.difference) == (6, pytest.approx(-1 / 6))
    with pytest.raises(ValueError, match="shorter"):
        Paired.of(first, second[:5])


@pytest.mark.parametrize(("right", "total"), [(0, 2), (7, 7), (3, 10), (1000, 1319)])
def test_standard_error_by_fractions(right, total):
    """The sample deviation of ones and zeros over the root of their number."""
    mean = Fraction(right, total)
    squares = (right * (1 - mean) ** 2 + (total - right) * mean**2) / (total - 1)
    assert Proportion(right, total).stderr == pytest.approx(math.sqrt(squares / total), abs=1e-15)


def test_a_single_question_has_no_standard_error():
    assert Proportion(1, 1).stderr is None
