"""One full forward equals chunked prefill and then single steps: logits and state at every step, in float64."""

import pytest
import torch

from statewise.cache.window import advance
from statewise.layers.batch import Row, make_batch
from tests.models.tiny import CPU, caches, tiny_config, tiny_model
from tests.ops.test_agreement import effective_state

TIGHT = {"rtol": 1e-9, "atol": 1e-9}
PROMPT, STEPS, BLOCK = 9, 70, 4


@pytest.fixture(scope="module")
def whole():
    """Tokens, logits at every position by one forward, and per prefix the state of every Mamba layer."""
    config = tiny_config()
    model = tiny_model(config)
    tokens = torch.randint(0, 31, (PROMPT + STEPS,), generator=torch.Generator().manual_seed(1)).tolist()
    memory = caches(config, interval=1)
    blocks = list(range(19, -1, -1))
    logits = model(make_batch([], [Row(tokens, 0, 0, blocks, wants_all_logits=True)], BLOCK, CPU), memory)
    states = []
    for length in range(1, len(tokens) + 1):
        model(make_batch([], [Row(tokens[:length], 0, 1, blocks)], BLOCK, CPU), memory)
        states.append(memory.mamba.state[:, 1].clone())
    return config, model, tokens, logits, states


def states_now(memory, slot, model):
    """The state of every layer as of the last token, pending rows folded in."""
    mixers = [layer.mixer for layer in model.layers if layer.kind == "mamba"]
    pages = [memory.mamba.layer(i)._asdict() for i in range(len(mixers))]
    return torch.stack([effective_state(p, -m.A_log.exp(), slot) for p, m in zip(pages, mixers, strict=True)])


@pytest.mark.parametrize("interval", [1, 2, 3, 16, 64])
@pytest.mark.parametrize("chunk", range(1, PROMPT + 1))
def test_chunks_then_steps_equal_one_forward(whole, interval, chunk):
    config, model, tokens, logits, states = whole
    memory = caches(config, interval)
    slot, blocks = 2, list(range(20))
    for start in range(0, PROMPT, chunk):
        part = tokens[start : min(start + chunk, PROMPT)]
        got = model(make_batch([], [Row(part, start, slot, blocks, wants_all_logits=True)], BLOCK, CPU), memory)
        torch.testing.assert_close(got, logits[start : start + len(part)], **TIGHT)
        torch.testing.assert_close(memory.mamba.state[:, slot], states[start + len(part) - 1], **TIGHT)
    # Long enough for a flush at every interval once; elsewhere a few steps, since the prefill has left the same state.
    last = len(tokens) if chunk == 4 else PROMPT + 5
    for position in range(PROMPT, last):
        got = model(make_batch([Row([tokens[position]], position, slot, blocks)], [], BLOCK, CPU), memory)
        torch.testing.assert_close(got[0], logits[position], **TIGHT)
        step_trackers(memory, slot, interval)
        torch.testing.assert_close(states_now(memory, slot, model), states[position], **TIGHT)
    for other in (0, 1):
        assert memory.mamba.state[:, other].isnan().all(), "another slot was written"


def step_trackers(memory, slot, interval):
    pool = memory.mamba
    own = torch.tensor([slot])
    start, pending = advance(pool.ring_start[own], pool.pending[own], 1, 1, interval, max(1, pool.spec.ring_rows))
    pool.ring_start[own], pool.pending[own] = start, pending


@pytest.mark.parametrize("interval", [1, 3])
def test_decode_and_prefill_rows_share_a_step(whole, interval):
    """A one-token prompt beside a decode row beside a long chunk: a row's kind comes from its state, not its length."""
    config, model, tokens, logits, _ = whole
    memory = caches(config, interval)
    model(make_batch([], [Row(tokens[:6], 0, 0, [0, 1, 2])], BLOCK, CPU), memory)
    batch = make_batch(
        [Row(tokens[6:7], 6, 0, [0, 1, 2])],
        [Row(tokens[:1], 0, 1, [3]), Row(tokens[:PROMPT], 0, 2, [4, 5, 6])],
        BLOCK,
        CPU,
    )
    torch.testing.assert_close(model(batch, memory), logits[[6, 0, PROMPT - 1]], **TIGHT)


def test_the_reference_backend_gives_the_same_model(whole):
    config, _, tokens, logits, _ = whole
    model = tiny_model(config, backend="reference")
    memory = caches(config, interval=3)
    got = model(make_batch([], [Row(tokens[:PROMPT], 0, 0, [0, 1, 2])], BLOCK, CPU), memory)
    torch.testing.assert_close(got[0], logits[PROMPT - 1], **TIGHT)
    for position in range(PROMPT, PROMPT + 8):
        row = Row([tokens[position]], position, 0, [0, 1, 2, 3, 4])
        torch.testing.assert_close(model(make_batch([row], [], BLOCK, CPU), memory)[0], logits[position], **TIGHT)
        step_trackers(memory, 0, 3)
