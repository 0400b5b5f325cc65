"""The training forward is the engine's model: same logits, same names; and it begins as Mamba-2 does."""

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from statewise.engine.llm import LLM
from statewise.engine.request import SamplingParams
from statewise.models.families import read_config
from statewise.models.hybrid import HybridModel
from statewise.ops import causal_conv_prefill, ssd_prefill
from statewise.ops.causal_conv.torch import causal_conv_rows
from statewise.ops.ssd_prefill.torch import ssd_rows
from tests.train.conftest import TINY
from train.model import export, forward, loss_of, new_model, write_config
from train.presets import PRESETS
from train.rows import NO_LABEL
from train.tokenizer import EOS_ID, write_tokenizer

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("model")


@pytest.fixture(scope="module")
def model(folder: Path) -> HybridModel:
    """Weights far from where they begin, so that every term counts."""
    model = new_model(write_config(TINY.sizes, folder, torch.float32), 3, CPU)
    generator = torch.Generator().manual_seed(4)
    for weight in model.parameters():
        weight.data += 0.1 * torch.randn(weight.shape, generator=generator)
    return model


def logprobs(model: HybridModel, tokens: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return model.lm_head(forward(model, torch.tensor([tokens])))[0].log_softmax(-1)


def test_logits_equal_the_engines_in_prompt_and_answer(model, folder: Path, tokenizer: Tokenizer) -> None:
    export(model, TINY.sizes, folder, torch.float32)
    write_tokenizer(tokenizer, folder)
    generator = torch.Generator().manual_seed(5)
    prompts = [torch.randint(3, 512, (length,), generator=generator).tolist() for length in (1, 70, 150)]
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True, logprobs=512)
    # Chunks of 64 tokens, several requests at once, states written once in 16 tokens.
    for output in LLM(folder, quiet=True, max_batched_tokens=64).generate(prompts, params):
        ours = logprobs(model, [*output.prompt_token_ids, *output.token_ids])
        for place, top in enumerate(output.logprobs, len(output.prompt_token_ids) - 1):
            assert len(top.token_ids) == 512
            theirs = torch.tensor(top.logprobs)
            torch.testing.assert_close(theirs, ours[place][list(top.token_ids)], atol=1e-4, rtol=0)


@pytest.mark.parametrize("length", [1, 2, 64, 70, 200])
@pytest.mark.parametrize("biases", [True, False])
def test_ops_on_rows_equal_those_on_packed_sequences_in_value_and_gradient(length: int, biases: bool) -> None:
    """In float64, with heads that decay over a few tokens and over many chunks; several chunks and one not full."""
    rows, heads, head_dim, groups, states, width = 3, 4, 5, 2, 6, 4
    channels = heads * head_dim + 2 * groups * states
    generator = torch.Generator().manual_seed(length)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()

    xBC, dt, weight = drawn(rows, length, channels), drawn(rows, length, heads), drawn(channels, width)
    A_log, D, dt_bias, bias = drawn(heads), drawn(heads), drawn(heads), drawn(channels)
    inputs = [xBC, dt, weight, A_log, *([D, dt_bias, bias] if biases else [])]
    D, dt_bias, bias = (D, dt_bias, bias) if biases else (None, None, None)
    A = -torch.exp(A_log) * torch.tensor([1e-3, 0.1, 1.0, 30.0])
    options = {"D": D, "dt_bias": dt_bias, "dt_limit": (0.01, 1.5)}
    edges = torch.arange(0, rows * length + 1, length)

    def split(y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x, B, C = y.split([heads * head_dim, groups * states, groups * states], -1)
        return x.unflatten(-1, (heads, head_dim)), B.unflatten(-1, (groups, states)), C.unflatten(-1, (groups, states))

    x, B, C = split(causal_conv_prefill(xBC.flatten(0, 1), weight, edges, bias=bias))
    packed = ssd_prefill(x, dt.flatten(0, 1), A, B, C, edges, **options)[0].unflatten(0, (rows, length))
    x, B, C = split(causal_conv_rows(xBC, weight, bias))
    ours = ssd_rows(x, dt, A, B, C, **options)
    torch.testing.assert_close(ours, packed, atol=1e-10, rtol=1e-10)

    cotangent = torch.randn(packed.shape, generator=generator, dtype=torch.float64)
    for one, other in zip(
        *(torch.autograd.grad(y, inputs, cotangent, retain_graph=True) for y in (ours, packed)), strict=True
    ):
        torch.testing.assert_close(one, other, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("autocast", [False, True])
def test_the_loss_is_one_graph_whose_backward_is_that_of_autograd(model: HybridModel, autocast: bool) -> None:
    """Traced as torch.compile traces it, run without a compiler; under autocast the scan's backward stays float32."""
    tokens = torch.randint(3, 512, (2, 130), generator=torch.Generator().manual_seed(10))
    traced = torch.compile(loss_of, dynamic=False, fullgraph=True, backend="aot_eager")
    results = []
    for run in (loss_of, traced):
        model.zero_grad()
        loss = run(model, tokens, tokens.roll(-1, 1), autocast)
        loss.backward()
        results.append([loss.detach(), *(weight.grad for weight in model.parameters())])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)


def test_rows_of_a_batch_do_not_meet(model: HybridModel) -> None:
    tokens = torch.randint(3, 512, (3, 70), generator=torch.Generator().manual_seed(6))
    together = forward(model, tokens)
    for row in range(3):
        torch.testing.assert_close(together[row], forward(model, tokens[row : row + 1])[0], atol=1e-5, rtol=1e-5)


def test_the_loss_is_the_mean_over_the_labels(model: HybridModel) -> None:
    tokens = torch.randint(3, 512, (2, 50), generator=torch.Generator().manual_seed(7))
    labels = torch.full_like(tokens, NO_LABEL)
    labels[0, 3], labels[1, 40] = 9, EOS_ID
    wanted = -(logprobs(model, tokens[0].tolist())[3, 9] + logprobs(model, tokens[1].tolist())[40, EOS_ID]) / 2
    torch.testing.assert_close(loss_of(model, tokens, labels), wanted, atol=1e-5, rtol=1e-5)


def test_every_weight_gets_a_gradient(folder: Path) -> None:
    model = new_model(write_config(TINY.sizes, folder, torch.float32), 0, CPU)
    tokens = torch.randint(3, 512, (2, 70), generator=torch.Generator().manual_seed(8))
    loss_of(model, tokens, tokens.roll(-1, 1)).backward()
    for name, weight in model.named_parameters():
        assert weight.grad is not None, name
        assert weight.grad.isfinite().all(), name
        assert (weight.grad != 0).any(), name


def test_bfloat16_autocast_changes_the_loss_and_the_gradient_little(folder: Path) -> None:
    """As on a GPU: matrices in bfloat16, the scan and all weights in float32."""
    model = new_model(write_config(TINY.sizes, folder, torch.float32), 0, CPU)
    tokens = torch.randint(3, 512, (2, 130), generator=torch.Generator().manual_seed(8))
    losses, gradients = [], []
    for enabled in (False, True):
        model.zero_grad()
        loss = loss_of(model, tokens, tokens.roll(-1, 1), autocast=enabled)
        loss.backward()
        losses.append(loss)
        gradients.append(torch.cat([weight.grad.flatten() for weight in model.parameters()]))
    assert losses[1].dtype == gradients[1].dtype == torch.float32
    torch.testing.assert_close(losses[1], losses[0], atol=1e-2, rtol=0)
    assert torch.cosine_similarity(*gradients, dim=0) > 0.995


def test_weights_begin_as_in_mamba_2_and_repeat_with_the_seed(folder: Path) -> None:
    config = write_config(PRESETS["toy"].sizes, folder, torch.float32)
    model, again, other = (dict(new_model(config, seed, CPU).named_parameters()) for seed in (0, 0, 1))
    for name, weight in model.items():
        assert weight.dtype == torch.float32
        assert torch.equal(weight, again[name])
        if name.endswith("A_log"):
            assert ((weight >= 0) & (weight <= 2.7727)).all()
        elif name.endswith("dt_bias"):
            dt = torch.nn.functional.softplus(weight)
            assert ((dt >= 0.999e-3) & (dt <= 1.001e-1)).all()
        elif name.endswith((".D", "norm.weight", "norm_f.weight")):
            assert (weight == 1).all()
        elif not name.endswith("bias"):
            assert not torch.equal(weight, other[name])
    inner, layers = PRESETS["toy"].sizes.mamba_width, len(config.pattern)
    assert model["layers.0.mixer.out_proj.weight"].abs().max() <= (inner * layers) ** -0.5


def test_the_shipped_size_fits_and_has_several_groups(folder: Path) -> None:
    sizes = PRESETS["h200"].sizes
    model = new_model(write_config(sizes, folder, torch.bfloat16), 0, CPU)
    export(model, sizes, folder, torch.bfloat16)
    assert (folder / "model.safetensors").stat().st_size < 12 * 2**20
    config = read_config(folder)
    assert config.mamba.groups >= 2
    assert set(config.pattern) == {"mamba", "attention", "mlp"}
    assert config.eos_token_ids == (EOS_ID,)


def test_transformers_reads_the_folder_and_agrees(model: HybridModel, folder: Path) -> None:
    transformers = pytest.importorskip("transformers")
    export(model, TINY.sizes, folder, torch.float32)
    theirs, info = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(info.values()), info
    tokens = torch.randint(3, 512, (70,), generator=torch.Generator().manual_seed(9)).tolist()
    with torch.no_grad():
        logits = theirs(torch.tensor([tokens])).logits[0].float()
    torch.testing.assert_close(logits.log_softmax(-1), logprobs(model, tokens), atol=1e-3, rtol=0)
