"""A whole run of `statewise bench decode`: both modes at every batch and state dtype, then the peers."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from statewise.bench.decode import CACHE_SHARE, OURS, Load, Run, build_engine, emptied, exact_configs, measure_modes
from statewise.bench.decode_ceiling import ceiling, products, weights_read
from statewise.bench.decode_peers import time_transformers, time_vllm, transformers_model, vllm_engine
from statewise.bench.decode_report import DecodeRow
from statewise.bench.decode_shares import eager, host_gap, shares
from statewise.bench.rates import Rates
from statewise.config import EngineConfig, ModelConfig, format_bytes
from statewise.engine.plan import make_plan
from statewise.errors import ConfigError, EngineError


@dataclass(frozen=True)
class Case:
    """One batch and state dtype: what is asked, and both modes' options for it."""

    load: Load
    configs: dict[str, EngineConfig]

    @property
    def state_dtype(self) -> str:
        """Of both modes."""
        return self.configs[OURS].state_dtype

    @property
    def new_tokens(self) -> int:
        """Tokens of a request at most."""
        length = self.configs[OURS].max_context
        assert length is not None  # `exact_configs` sets it
        return length - self.load.context


def make_cases(model: ModelConfig, bases: Sequence[EngineConfig], loads: Sequence[Load], extra: int) -> list[Case]:
    """Every state dtype with every batch. extra: steps after those that are timed.

    Raises ConfigError, or another of `make_plan`'s, for one that cannot run; memory is not looked at yet.
    """
    cases = [Case(load, exact_configs(base, load, extra)) for base in bases for load in loads]
    for case in cases:
        for config in case.configs.values():
            make_plan(model, config)
    return cases


class Session:
    """Cases over one set of weights. ``rows``: their results, one each, at first nothing but ceilings."""

    def __init__(self, model: ModelConfig, weights: dict[str, Tensor], cases: Sequence[Case], rates: Rates):
        self.model, self.weights, self.cases = model, weights, cases
        self.device = torch.device(cases[0].configs[OURS].device)
        self.rows = [self._unmeasured(case, rates) for case in cases]

    def _unmeasured(self, case: Case, rates: Rates) -> DecodeRow:
        read = weights_read(self.weights, self.model, case.load.batch)
        ceilings = {
            name: ceiling(make_plan(self.model, config), read, case.load.batch, case.load.context)
            for name, config in case.configs.items()
        }
        found = products(self.weights, self.model, case.load.batch)
        return DecodeRow(case.load.batch, case.state_dtype, rates, ceilings, found)

    def measure_modes(self, memory: int, with_shares: bool) -> Iterator[DecodeRow]:
        """Time both modes at each case. Yields its row when it is done.

        memory: bytes that are free beside the weights.
        """
        available = int(memory * CACHE_SHARE)
        for case, row in zip(self.cases, self.rows, strict=True):
            most = max(make_plan(self.model, config).cache_bytes for config in case.configs.values())
            if most > available:
                row.left_out[OURS] = (
                    f"needs {format_bytes(most)} of caches, there is room for {format_bytes(available)}"
                )
                yield row
                continue
            with noting_why([row], OURS):
                row.timings, row.took_turns = measure_modes(
                    self.weights, self.model, case.configs, case.load, available, host_gap if with_shares else None
                )
            if with_shares and OURS in row.timings:
                with noting_why([row], "shares"), emptied(self.device):
                    config = eager(case.configs[OURS])
                    row.shares = shares(Run(build_engine(self.weights, self.model, config), case.load))
            yield row

    def measure_transformers(self, folder: Path) -> None:
        """Time `generate` over the same weights, once for each batch: it has one way to keep its state."""
        with emptied(self.device), noting_why(self.rows, "transformers"):
            dtype = make_plan(self.model, self.cases[0].configs[OURS]).dtype
            theirs = transformers_model(folder, self.weights, dtype)
            for load in dict.fromkeys(case.load for case in self.cases):
                same = [row for row in self.rows if row.batch == load.batch]
                with noting_why(same, "transformers"):
                    timing, _ = time_transformers(theirs, load, self.model.vocab_size, self.device)
                    for row in same:
                        row.timings["transformers"] = timing
            del theirs

    def measure_vllm(self, folder: Path, options: Mapping[str, object]) -> None:
        """Time vLLM at each case; its weights are its own, so give up ours first (`weights.clear()`)."""
        for dtype in dict.fromkeys(case.state_dtype for case in self.cases):
            own = [(case, row) for case, row in zip(self.cases, self.rows, strict=True) if case.state_dtype == dtype]
            length = max(case.load.context + case.new_tokens for case, _ in own)
            activations = str(make_plan(self.model, own[0][0].configs[OURS]).dtype).removeprefix("torch.")
            with emptied(self.device), noting_why([row for _, row in own], "vllm"):
                engine = vllm_engine(folder, activations, dtype, [case.load for case, _ in own], length, options)
                for case, row in own:
                    with noting_why([row], "vllm"):
                        row.timings["vllm"] = time_vllm(engine, case.load, self.model.vocab_size, case.new_tokens)
                del engine


@contextmanager
def noting_why(rows: Sequence[DecodeRow], name: str) -> Iterator[None]:
    """What runs out of GPU memory or is refused is left out of these rows by name; what was measured before stays."""
    try:
        yield
    except (torch.OutOfMemoryError, EngineError) as error:
        cause = error.__cause__ if isinstance(error, EngineError) else error
        if not isinstance(cause, torch.OutOfMemoryError):
            raise
        why = f"out of memory: {str(cause).splitlines()[0][:120]}"
    except ConfigError as error:
        why = str(error)
    else:
        return
    for row in rows:
        row.left_out[name] = why
