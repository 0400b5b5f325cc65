"""Errors over thousands of tokens, beside those of torch's plain step, which writes its state at every one of them."""

import torch
from torch import Tensor

from statewise.ops.backend import resolve
from statewise.verify.report import Result, passed
from statewise.verify.side import PAGES, Side, make_weights
from statewise.verify.sides import FLOAT32_BOUND, FLOOR, relative
from statewise.verify.target import Target

ROWS = 2
FACTOR = 1.25  # of the plain step's error; rounding once in W tokens should only lower it
LONGEST = 256  # tokens that float64 takes at once

Point = tuple[int, float, float, float, float]


def drift(target: Target, tokens: int) -> Result:
    """New requests decode so many tokens. Looked at where the count of tokens is a power of two, and at the end."""
    points = _points(target, tokens)
    problems: list[str] = []
    worst, bounds = [0.0, 0.0], [0.0, 0.0]
    for token, *errors in points:
        for i, what in enumerate(("outputs", "state")):
            worst[i] = max(worst[i], errors[i])
            bounds[i] = FLOAT32_BOUND if target.is_float32 else max(bounds[i], FACTOR * errors[i + 2] + FLOOR)
            if not problems and not errors[i] <= bounds[i]:
                problems.append(f"batch {ROWS}: {what} beyond the bound first at token {token}: {errors[i]:.1e}")
    _, _, state, _, plain = points[-1]
    note = f"{tokens} tokens; state at the end {state:.1e}, of torch's plain step {plain:.1e}"
    figures = {"output_error": worst[0], "output_bound": bounds[0], "state_error": worst[1], "state_bound": bounds[1]}
    return passed("drift", ROWS, problems, note, points=points, **figures)


def _points(target: Target, tokens: int) -> list[Point]:
    """(token, errors of outputs since the last point and of the state now, the plain step's likewise)."""
    device = target.device
    g = torch.Generator(device).manual_seed(1)
    weights, rows = make_weights(target, g), torch.arange(ROWS, device=device)
    torch_ops, _ = resolve("torch", device)
    sides = [
        Side(target, target.tested, target.spec(), ROWS, weights),
        Side(target, torch_ops, target.spec(window=1), ROWS, weights),
    ]
    exact = Side(target, torch_ops, target.spec(is_double=True), ROWS, weights)
    for side in sides:  # as new requests; dead ring rows keep their NaN
        for name in PAGES if target.tested.reads_dead_rows else ("state", "conv_window"):
            getattr(side.pool, name).zero_()

    m, points, done = target.mamba, [], 0
    width = m.inner_size + m.conv_channels + m.heads
    powers = [2**i for i in range(tokens.bit_length()) if 2**i < tokens]
    for token in [*powers, tokens]:
        worst = [0.0, 0.0]
        while done < token:
            count = min(LONGEST, token - done)
            inputs = torch.randn(ROWS, count, width, generator=g, device=device).to(target.dtype)
            exact_y = _scan(exact, inputs, rows, continues=done > 0)
            for i, side in enumerate(sides):
                worst[i] = max(worst[i], _worst(_decode(side, inputs, rows), exact_y, m.groups))
            done += count
        state = exact.state_now(rows)
        now = [float(relative(side.state_now(rows), state, 2).max()) for side in sides]
        points.append((token, worst[0], now[0], worst[1], now[1]))
    return points


def _scan(exact: Side, inputs: Tensor, rows: Tensor, continues: bool) -> Tensor:
    """The outputs (ROWS, T, inner) of a scan over these tokens."""
    count = inputs.shape[1]
    edges = torch.arange(ROWS + 1, device=inputs.device) * count
    has_state = torch.full((ROWS,), continues, device=inputs.device)
    return exact.prefill(inputs.flatten(0, 1), edges, rows, has_state).view(ROWS, count, -1)


def _decode(side: Side, inputs: Tensor, rows: Tensor) -> Tensor:
    outputs = []
    for projected in inputs.unbind(1):
        outputs.append(side.decode(projected, rows))
        side.advance(rows)
    return torch.stack(outputs, 1)


def _worst(value: Tensor, exact: Tensor, groups: int) -> float:
    return float(relative(value.unflatten(2, (groups, -1)), exact.unflatten(2, (groups, -1)), 1).max())
