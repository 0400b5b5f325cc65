"""What `statewise bench decode` prints, draws and writes."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from statewise.bench.decode import OURS, PLAIN, Timing, percentile
from statewise.bench.decode_ceiling import Ceiling, Products
from statewise.bench.plot import draw
from statewise.bench.rates import Rates


@dataclass
class DecodeRow:
    """One batch and state dtype. Whoever is missing in ``timings`` is in ``left_out`` with the reason."""

    batch: int
    state_dtype: str
    rates: Rates
    ceilings: dict[str, Ceiling]  # of our two modes
    products: tuple[Products, ...]
    timings: dict[str, Timing] = field(default_factory=dict)
    took_turns: bool = False  # our two modes
    shares: dict[str, float] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    @property
    def floor(self) -> float:
        """Milliseconds a step: the checkpointed ceiling."""
        return self.ceiling(OURS)

    @property
    def times(self) -> dict[str, float]:
        """Mean milliseconds a step of everyone."""
        return {name: timing.mean * 1e3 for name, timing in self.timings.items()}

    def ratio(self, other: str) -> float | None:
        """How much longer another's step takes than ours, checkpointed; None if one is missing."""
        times = self.times
        return times[other] / times[OURS] if other in times and OURS in times else None

    def ceiling(self, name: str) -> float:
        """Milliseconds a step, bytes alone: of its own mode; the checkpointed one's for a peer."""
        return self.ceilings.get(name, self.ceilings[OURS]).milliseconds(self.rates.bandwidth)

    def bound(self, name: str) -> float:
        """Milliseconds a step, with operations: products take the longer of both, all else takes its bytes."""
        return self.ceiling(name) + sum(part.excess(self.rates) for part in self.products)

    def share_of_ceiling(self, name: str) -> float:
        """How much of its own mode's ceiling a contender reaches; of the checkpointed one a peer."""
        return self.ceiling(name) / self.times[name]

    def share_of_bound(self, name: str) -> float:
        """The same of the bound."""
        return self.bound(name) / self.times[name]

    def report(self) -> dict[str, Any]:
        """For JSON. Times in milliseconds."""
        return {
            "batch": self.batch,
            "state_dtype": self.state_dtype,
            "ceilings": {
                name: {"bytes": asdict(ceiling), "step_ms": self.ceiling(name), "bound_ms": self.bound(name)}
                for name, ceiling in self.ceilings.items()
            },
            "products": [asdict(part) for part in self.products],
            "took_turns": self.took_turns,
            "runs": {name: self._run(name, timing) for name, timing in self.timings.items()},
            "ratios": {f"{name} / {OURS}": self.ratio(name) for name in self.timings if name != OURS},
            "shares": self.shares,
            "left_out": self.left_out,
        }

    def _run(self, name: str, timing: Timing) -> dict[str, Any]:
        milliseconds = [step * 1e3 for step in timing.steps]
        return {
            "first_token_p50_ms": percentile(timing.first_token, 0.5) * 1e3,
            "first_token_last_ms": max(timing.first_token) * 1e3,
            "step_ms": timing.mean * 1e3,
            "step_p50_ms": percentile(milliseconds, 0.5),
            "step_p99_ms": percentile(milliseconds, 0.99),
            "tokens_per_second": self.batch / timing.mean,
            "share_of_ceiling": self.share_of_ceiling(name),
            "share_of_bound": self.share_of_bound(name),
            "host_gap": timing.host_gap,
            "steps_ms": milliseconds,
        }


def ceiling_table(rows: Sequence[DecodeRow]) -> Table:
    """Printed before anything is timed."""
    rates = rows[0].rates
    made = Table(
        title=f"ceiling: bytes of a step over {rates.bandwidth / 1e12:.3g} TB/s ({rates.bandwidth_from})\n"
        "bound: products of rows and weights take no less than their operations at "
        f"{rates.matrix_rate / 1e12:.3g} T/s ({rates.matrix_rate_from})",
        title_justify="left",
        box=SIMPLE_HEAD,
        collapse_padding=True,
    )
    parts = ("weights", "states", "rings", "windows", "kv")
    ceiling, bound = ("ms", "tokens/s", "plain, ms", "ratio"), ("ms", "plain, ms", "ratio")
    titles = ["state", "batch", *(f"{part}\nGB" for part in parts), *(f"ceiling\n{title}" for title in ceiling)]
    for header in (*titles, *(f"bound\n{title}" for title in bound)):
        made.add_column(header, justify="right", no_wrap=True)
    for row in rows:
        ours, plain = row.ceilings[OURS], row.ceiling(PLAIN)
        bound_ours, bound_plain = row.bound(OURS), row.bound(PLAIN)
        made.add_row(
            row.state_dtype, str(row.batch), *(f"{getattr(ours, part) / 1e9:.3g}" for part in parts),
            f"{row.floor:.3g}", f"{row.batch / row.floor * 1e3:.0f}", f"{plain:.3g}", f"{plain / row.floor:.2f}",
            f"{bound_ours:.3g}", f"{bound_plain:.3g}", f"{bound_plain / bound_ours:.2f}",
        )  # fmt: skip
    return made


def table(rows: Sequence[DecodeRow]) -> Table:
    """A line a batch and contender. rows: of one state dtype."""
    made = Table(
        title=f"decode, {rows[0].state_dtype} state: milliseconds, from tokens to tokens on the host",
        title_justify="left",
        box=SIMPLE_HEAD,
    )
    headers = (
        "batch",
        "",
        "first token",
        "last first",
        "step",
        "p50",
        "p99",
        "tokens/s",
        "of ceiling",
        "of bound",
        "host gap",
        "/ ours",
    )
    for header in headers:
        made.add_column(header, justify="left" if header == "" else "right", no_wrap=True)
    for row in rows:
        for name, timing in row.timings.items():
            first, ratio = timing.first_token, row.ratio(name)
            p50, p99 = (percentile(timing.steps, share) * 1e3 for share in (0.5, 0.99))
            made.add_row(
                str(row.batch), name, f"{percentile(first, 0.5) * 1e3:.1f}", f"{max(first) * 1e3:.1f}",
                f"{timing.mean * 1e3:.2f}", f"{p50:.2f}", f"{p99:.2f}", f"{row.batch / timing.mean:.0f}",
                f"{row.share_of_ceiling(name):.0%}", f"{row.share_of_bound(name):.0%}",
                "-" if timing.host_gap is None else f"{timing.host_gap:.1%}", "-" if ratio is None else f"{ratio:.2f}",
            )  # fmt: skip
        if row.timings and not row.took_turns:
            made.caption = "both pools do not fit at once at some batch: there one mode ran after the other"
    return made


def left_out_lines(rows: Sequence[DecodeRow]) -> list[str]:
    """Who was left out where, and why."""
    return [
        f"left out at batch {row.batch}, {row.state_dtype} state: {name}: {reason}"
        for row in rows
        for name, reason in row.left_out.items()
    ]


def shares_table(rows: Sequence[DecodeRow]) -> Table:
    """Shares of an eager checkpointed step by kind of layer."""
    made = Table(title="shares of a step, eager", title_justify="left", box=SIMPLE_HEAD)
    kinds = list(dict.fromkeys(kind for row in rows for kind in row.shares))
    for header in ("state", "batch", *kinds):
        made.add_column(header, justify="right", no_wrap=True)
    for row in rows:
        made.add_row(row.state_dtype, str(row.batch), *(f"{row.shares[kind]:.1%}" for kind in kinds if row.shares))
    return made


@dataclass(frozen=True)
class _Point:
    """A row as `draw` takes it: everyone has a time, NaN where it was left out."""

    batch: int
    floor: float
    times: Mapping[str, float]


def plot_decode(rows: Sequence[DecodeRow], path: Path, title: str) -> None:
    """Write a PNG: milliseconds a step over batch, the bound below, a panel a state dtype. Raises as `draw` does."""
    names = list(dict.fromkeys(name for row in rows for name in row.timings))
    panels = []
    for dtype in dict.fromkeys(row.state_dtype for row in rows):
        points = [
            _Point(row.batch, row.bound(OURS), {name: row.times.get(name, float("nan")) for name in names})
            for row in rows
            if row.state_dtype == dtype
        ]
        panels.append((f"{dtype} state", points))
    draw([panels], path, title, x="batch", dashed="plain", y="milliseconds a step")
