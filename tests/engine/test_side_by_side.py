"""Served tokens are those of one forward over prompt and answer: positions of RoPE, layers side by side, no norm."""

from dataclasses import replace

import pytest

from statewise.layers.batch import Row, make_batch
from tests.engine.harness import MODEL, engine, greedy, random_prompts, run
from tests.models.tiny import CPU, caches, tiny_config, tiny_model


def falcon():
    config = tiny_config(("mamba+attention", "mlp", "mamba", "mamba+attention"))
    return tiny_model(replace(config, mamba=replace(config.mamba, norm=False)))


SIDE_BY_SIDE = falcon()


def likeliest(model, tokens):
    """Of every token's successor, by one prefill of all."""
    row = Row(tokens, 0, 0, list(range(-(-len(tokens) // 4))), wants_all_logits=True)
    return model(make_batch([], [row], 4, CPU), caches(model.config, 1)).argmax(-1).tolist()


@pytest.mark.parametrize("model", [MODEL, SIDE_BY_SIDE], ids=["tiny", "side by side"])
@pytest.mark.parametrize(
    "options",
    [
        {"checkpoint_interval": 1},
        {"checkpoint_interval": 3, "padded": (4, 8), "async_scheduling": True, "max_batched_tokens": 9},
        {"checkpoint_interval": 16, "slots": 3, "blocks": 12, "preempt": "swap"},
        {"checkpoint_interval": 4, "deterministic": True, "blocks": 16, "max_batched_tokens": 72},
    ],
    ids=str,
)
def test_tokens_are_those_of_one_forward(model, options):
    prompts = random_prompts(6, seed=7)
    for request, prompt in zip(run(engine(model=model, **options), prompts, [greedy()] * 6), prompts, strict=True):
        assert request.output == likeliest(model, [*prompt, *request.output])[len(prompt) - 1 : -1]


def test_layers_side_by_side_have_caches_of_both_kinds():
    config = SIDE_BY_SIDE.config
    assert (config.count("mamba"), config.count("attention"), config.count("mlp")) == (3, 2, 1)
    assert [(layer.mamba_index, layer.attention_index) for layer in SIDE_BY_SIDE.layers] == [
        (0, 0),
        (1, 1),
        (1, 1),
        (2, 1),
    ]
    assert not any(name.endswith("mamba.norm.weight") for name in SIDE_BY_SIDE.state_dict())
