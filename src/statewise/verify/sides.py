"""The same requests three times: run by the ops under test, by torch's ops in the same dtypes, and in float64.

Requests are numbered 0 to n - 1. The last two keep request i in slot i; the ops under test keep it in ``places[i]``, a
random slot of a larger pool whose other slots, like all dead ring rows, hold NaN.
"""

from typing import Any

import torch
from torch import Tensor

from statewise.ops.backend import resolve
from statewise.verify.report import Result, passed
from statewise.verify.side import PAGES, TRACKERS, Side, make_weights, same_bits
from statewise.verify.target import Target

FLOAT32_BOUND = 1e-5  # relative, where neither activations nor states are in 16 bits
FACTOR, FLOOR = 2.0, 1e-6  # else: an error below twice that of torch's ops in the same dtypes
FREE = 5  # slots more than there are requests
AT_ONCE = 32  # states looked at together: the float64 copies are large


def relative(value: Tensor, exact: Tensor, dims: int) -> Tensor:
    """Relative error in the 2-norm over the last ``dims`` dimensions. What is no number is infinitely wrong."""
    exact = exact.double()
    over = tuple(range(-dims, 0))
    error = (value.double() - exact).norm(dim=over) / exact.norm(dim=over).clamp(min=1e-30)
    return error.nan_to_num(nan=torch.inf, posinf=torch.inf)


class Sides:
    """``tested``, ``same``, ``exact``, and the errors of the first two as they come."""

    def __init__(self, target: Target, requests: int, places: Tensor | None = None, slots: int | None = None):
        """places, slots: which slots the ops under test use, and of how many; None: random ones, FREE more."""
        device = target.device
        self.target, self.requests = target, requests
        self.g = torch.Generator(device).manual_seed(0)
        slots = requests + FREE if slots is None else slots
        order = torch.randperm(slots, generator=self.g, device=device)
        self.places = order[:requests] if places is None else places
        weights = make_weights(target, self.g)
        torch_ops, _ = resolve("torch", device)
        self.tested = Side(target, target.tested, target.spec(), slots, weights)
        self.same = Side(target, torch_ops, target.spec(), requests, weights)
        self.exact = Side(target, torch_ops, target.spec(is_double=True), requests, weights)
        self.outputs: list[tuple[Tensor, Tensor]] = []  # errors of tested and same, (live rows,), a step
        self.live: list[Tensor] = []
        taken = torch.zeros(slots, dtype=torch.bool, device=device).index_fill_(0, self.places, True)
        self.free = (~taken).nonzero().squeeze(1)[:FREE]
        self._free_bits = self.tested.copy_of(self.free)

    def randn(self, *shape: int) -> Tensor:
        """Random numbers of the activations' dtype."""
        return torch.randn(*shape, generator=self.g, device=self.target.device).to(self.target.dtype)

    def inputs(self, rows: int) -> Tensor:
        """What an input projection makes of so many tokens: z, x, B, C and dt side by side."""
        m = self.target.mamba
        return self.randn(rows, m.inner_size + m.conv_channels + m.heads)

    def fill(self, requests: Tensor) -> None:
        """Give requests states, windows and pending rows, at every phase: each count of rows at each start in turn."""
        rows, window = self.tested.spec.ring_rows, self.target.window
        for part in requests.split(AT_ONCE):
            saved = {name: self._random_pages(name, len(part)) for name in PAGES}
            pending = part % (window + 1)
            start = (7 * part + part // (window + 1)) % max(1, rows)
            if rows:
                place = torch.arange(rows, device=part.device)
                is_dead = (place - start[:, None]) % rows >= pending[:, None]  # (n, R)
                dead = 0.0 if self.tested.ops.reads_dead_rows else torch.nan
                for name, behind in (("x_ring", 1), ("B_ring", 1), ("dt_ring", 0)):
                    mask = is_dead.view(1, len(part), 1, rows, *[1] * behind)
                    saved[name] = saved[name].masked_fill(mask, dead)
            else:
                pending, start = torch.zeros_like(part), torch.zeros_like(part)
            saved |= {"ring_start": start.int(), "pending": pending.int()}
            self.tested.restore(self.places[part], saved)
            self.same.restore(part, saved)
            self.exact.restore(part, {name: t.double() if name in PAGES else t for name, t in saved.items()})

    def _random_pages(self, name: str, count: int) -> Tensor:
        shape, dtype = self.tested.spec.slot_shapes()[name]
        values = torch.randn(1, count, *shape, generator=self.g, device=self.target.device)
        return values.abs().div(20).to(dtype) if name == "dt_ring" else values.to(dtype)

    def places_of(self, requests: Tensor) -> Tensor:
        """Their slots under test; -1 stays -1."""
        return torch.where(requests < 0, -1, self.places[requests.clamp(min=0)])

    def decode(self, requests: Tensor) -> None:
        """A token each, -1 being a padded row with NaN for its input."""
        projected = self.inputs(len(requests)).masked_fill((requests < 0)[:, None], torch.nan)
        slots = self.places_of(requests)
        outputs = [self.tested.decode(projected, slots)]
        outputs += [side.decode(projected, requests) for side in (self.same, self.exact)]
        self.tested.advance(slots)
        for side in (self.same, self.exact):
            side.advance(requests)
        live = (requests >= 0).nonzero().squeeze(1)
        self._compare([y[live] for y in outputs], requests[live])

    def prefill(self, requests: Tensor, lengths: list[int], has_state: list[bool]) -> None:
        """So many tokens of each."""
        device = self.target.device
        edges = torch.tensor([0, *lengths], device=device).cumsum(0)
        continues = torch.tensor(has_state, device=device)
        projected = self.inputs(sum(lengths))
        outputs = [self.tested.prefill(projected, edges, self.places_of(requests), continues)]
        outputs += [side.prefill(projected, edges, requests, continues) for side in (self.same, self.exact)]
        owner = requests.repeat_interleave(torch.tensor(lengths, device=device))
        self._compare(outputs, owner)

    def move(self, sources: Tensor, destinations: Tensor) -> None:
        """Requests take over other requests' slots, all at once; -1 pads."""
        self.tested.move(self.places_of(sources), self.places_of(destinations))
        for side in (self.same, self.exact):
            side.move(sources, destinations)

    def _compare(self, outputs: list[Tensor], live: Tensor) -> None:
        tested, same, exact = (y.unflatten(1, (self.target.mamba.groups, -1)) for y in outputs)
        self.outputs.append((relative(tested, exact, 1).amax(1), relative(same, exact, 1).amax(1)))
        self.live.append(live)

    def state_errors(self, requests: Tensor) -> tuple[float, float, int]:
        """Worst errors of any head of any request's state now, of tested and same, and the worst request of tested."""
        tested, same = [], []
        for part in requests.split(AT_ONCE):
            exact = self.exact.state_now(part)
            tested.append(relative(self.tested.state_now(self.places[part]), exact, 2).amax(1))
            same.append(relative(self.same.state_now(part), exact, 2).amax(1))
        errors = torch.cat(tested)
        return float(errors.max()), float(torch.cat(same).max()), int(requests[errors.argmax()])

    def bound(self, same: float) -> float:
        """What an error may be where that of torch's ops in the same dtypes is ``same``."""
        return FLOAT32_BOUND if self.target.is_float32 else FACTOR * same + FLOOR

    def result(self, check: str, batch: int, requests: Tensor, idle: Tensor | None = None, note: str = "") -> Result:
        """What the steps so far come to. requests: those that live; idle: those of them that no step touched."""
        error = max(float(tested.max()) for tested, _ in self.outputs)
        bound = self.bound(max(float(same.max()) for _, same in self.outputs))
        state_error, state_same, worst = self.state_errors(requests)
        state_bound = self.bound(state_same)
        problems = self._first_beyond(batch, bound)
        if not state_error <= state_bound:
            problems.append(f"the state of request {worst} is beyond its bound at batch {batch}")
        problems += self._differences(requests) + self._touched(idle)
        figures: dict[str, Any] = {"output_error": error, "output_bound": bound}
        return passed(check, batch, problems, note, **figures, state_error=state_error, state_bound=state_bound)

    def _first_beyond(self, batch: int, bound: float) -> list[str]:
        """Where a row first left its bound, and how many did."""
        for step, ((errors, _), live) in enumerate(zip(self.outputs, self.live, strict=True)):
            beyond = (~(errors <= bound)).nonzero().squeeze(1)
            if len(beyond):
                worst = int(live[errors.argmax()])
                rows = f"{len(beyond)} of {len(errors)} rows beyond the bound"
                return [f"batch {batch}: {rows} first at step {step + 1}, the worst of request {worst}"]
        return []

    def _differences(self, requests: Tensor) -> list[str]:
        """What must be equal bit by bit: trackers, and windows, which only copy inputs."""
        tested, exact = self.tested.copy_of(self.places[requests]), self.exact.copy_of(requests)
        problems = [f"{name} differs" for name in TRACKERS if not torch.equal(tested[name], exact[name])]
        windows_equal = torch.equal(tested["conv_window"].double(), exact["conv_window"])
        return problems if windows_equal else [*problems, "a convolution window differs"]

    def _touched(self, idle: Tensor | None) -> list[str]:
        """Slots that no step named: free ones are as they were, idle requests are as torch's, which no step touched."""
        problems = []
        if not same_bits(self._free_bits, self.tested.copy_of(self.free)):
            problems.append("a slot that nobody has was written")
        if idle is not None and not same_bits(self.tested.copy_of(self.places[idle]), self.same.copy_of(idle)):
            problems.append("a slot that was not in the batch was written")
        return problems
