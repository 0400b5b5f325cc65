"""How sure a score is, and whether two scores on the same questions differ. Exact where exact is possible."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from statistics import NormalDist


@dataclass(frozen=True)
class Proportion:
    """So many right out of so many."""

    right: int
    total: int

    @property
    def value(self) -> float:
        """The share that is right."""
        return self.right / self.total

    @property
    def stderr(self) -> float | None:
        """The standard error with n - 1, as lm-evaluation-harness prints it; None for a single question."""
        if self.total < 2:
            return None
        return math.sqrt(self.value * (1 - self.value) / (self.total - 1))


@dataclass(frozen=True)
class Paired:
    """Two runs over the same questions: how many both, only one of them, neither got right."""

    both: int
    only_first: int
    only_second: int
    neither: int

    @classmethod
    def of(cls, first: Sequence[bool], second: Sequence[bool]) -> "Paired":
        """Count the pairs."""
        pairs = list(zip(first, second, strict=True))
        both, neither = pairs.count((True, True)), pairs.count((False, False))
        return cls(both, pairs.count((True, False)), pairs.count((False, True)), neither)

    @property
    def total(self) -> int:
        """Questions."""
        return self.both + self.only_first + self.only_second + self.neither

    @property
    def difference(self) -> float:
        """Score of the second run less that of the first."""
        return (self.only_second - self.only_first) / self.total

    def mcnemar(self) -> Fraction:
        """The exact two-sided p-value of McNemar's test (Psychometrika 12, 1947): are both as often right?

        If they are, each question that only one got right fell to either with probability 1/2. The p-value is twice
        the smaller tail of that binomial distribution, at most 1; it is 1 where no question tells them apart.
        """
        n, fewer = self.only_first + self.only_second, min(self.only_first, self.only_second)
        tail = sum(math.comb(n, k) for k in range(fewer + 1))
        return min(Fraction(1), Fraction(2 * tail, 2**n))

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """A confidence interval of ``difference``, within [-1, 1].

        Wald's, with one question added to each kind that tells the runs apart (Bonett and Price, J. Educ. Behav. Stat.
        37, 2012; recommended by Fagerland, Lydersen and Laake, Stat. Med. 33, 2014). Unlike Wald's own it has a width
        where no question tells them apart.
        """
        n = self.total + 2
        first, second = (self.only_first + 1) / n, (self.only_second + 1) / n
        middle = second - first
        reach = NormalDist().inv_cdf((1 + confidence) / 2) * math.sqrt((first + second - middle**2) / n)
        return max(-1.0, middle - reach), min(1.0, middle + reach)
