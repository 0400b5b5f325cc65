"""The bytes of the ceiling, the operations of the bound and what is made of them, counted by hand."""

from dataclasses import replace

import pytest
import torch

from statewise.bench.decode import OURS, PLAIN, Load, Timing, exact_configs
from statewise.bench.decode_ceiling import Ceiling, Products, ceiling, experts_read, products, weights_read
from statewise.bench.decode_report import DecodeRow, ceiling_table, table
from statewise.bench.decode_weights import random_weights
from statewise.bench.presets import read_preset
from statewise.bench.rates import MULTIPLIED, Rates, bandwidth_of, matrix_rate_of, rates_of
from statewise.config import EngineConfig
from statewise.engine.plan import make_plan

CPU = torch.device("cpu")
BASE = EngineConfig(checkpoint_interval=4, max_batch=1, max_batched_tokens=32)
LOAD = Load(batch=3, context=20, tokens=10)
RATES = Rates(2.0, "as given", 10.0, "as given")


@pytest.fixture(scope="module")
def hybrid():
    model = read_preset("tiny-hybrid")
    return model, random_weights(model, torch.float32, CPU)


def test_the_ceiling_counts_every_byte_once(hybrid):
    model, weights = hybrid
    configs = exact_configs(BASE, LOAD)
    ours, plain = (ceiling(make_plan(model, configs[mode]), 1000, 3, 20) for mode in (OURS, PLAIN))
    layers, state = 5, 8 * 32 * 64 * 4
    row = 8 * 32 * 4 + 2 * 64 * 4 + 8 * 4  # x, B and dt of one token
    assert ours.weights == plain.weights == 1000
    assert ours.states == 3 * layers * state * 1.25
    assert plain.states == 3 * layers * state * 2
    assert ours.rings == 3 * (layers * row * (2.5 + 1) + 8)  # 1 to 4 rows pending, one written, two trackers
    assert plain.rings == 0
    assert ours.windows == plain.windows == 3 * layers * 2 * 3 * (8 * 32 + 2 * 2 * 64) * 4
    assert ours.kv == 3 * 21 * 2 * 2 * 2 * 32 * 4  # 2 layers, keys and values, 2 heads of 32
    assert ours.milliseconds(1e9) == pytest.approx(ours.bytes / 1e6)

    every = sum(tensor.nbytes for tensor in weights.values())
    assert weights_read(weights, model, 3) == every - (264 - 3) * 128 * 4
    assert weights_read(weights, model, 1000) == every
    tied = replace(model, tie_embeddings=True)
    assert weights_read(random_weights(tied, torch.float32, CPU), tied, 3) == every - 264 * 128 * 4


def test_of_experts_the_ceiling_counts_those_that_rows_are_expected_to_choose():
    model = read_preset("tiny-moe")
    weights = random_weights(model, torch.float32, CPU)
    every = sum(tensor.nbytes for name, tensor in weights.items() if name != "embeddings.weight")
    expert = 3 * 64 * 128 * 4  # gate, up and down
    assert weights_read(weights, model, 1) == every - 5 * (8 - 2) * expert
    assert weights_read(weights, model, 2) == every - 5 * (8 - 2 - 6 / 4) * expert
    assert weights_read(weights, model, 200) == pytest.approx(every)


def test_products_are_of_every_row_with_every_matrix(hybrid):
    model, weights = hybrid
    count = 5 * 128 * (776 + 256) + 5 * 2 * 128 * 256 + 2 * 128 * (128 + 64 + 64 + 128) + 264 * 128
    assert products(weights, model, 3) == (Products(4 * count, 2 * 3 * count),)
    tied = replace(model, tie_embeddings=True)
    assert products(random_weights(tied, torch.float32, CPU), tied, 3) == products(weights, model, 3)


def test_of_experts_bytes_are_of_those_read_and_operations_of_those_that_a_row_takes():
    model = read_preset("tiny-moe")
    assert model.moe is not None
    dense, experts = products(random_weights(model, torch.bfloat16, CPU), model, 40)
    each = 3 * 64 * 128  # gate, up and down
    assert experts.bytes == pytest.approx(5 * experts_read(model.moe, 40) * each * 2)
    assert experts.operations == 2 * 40 * 5 * 2 * each
    rest = 4 * 128 * (648 + 256) + 128 * (128 + 64 + 64 + 128) + 5 * 128 * (8 + 256 + 128) + 264 * 128
    assert dense == Products(2 * rest, 2 * 40 * rest)


def test_products_take_longer_than_reading_only_where_operations_do():
    assert Products(bytes=4, operations=20).excess(RATES) == 0
    assert Products(bytes=4, operations=19).excess(RATES) == 0
    assert Products(bytes=4, operations=50).excess(RATES) == 3000


def a_row() -> DecodeRow:
    ours, plain = (Ceiling(weights=6, states=states, rings=0, windows=0, kv=0) for states in (4, 8))
    return DecodeRow(7, "float32", RATES, {OURS: ours, PLAIN: plain}, (Products(4, 50), Products(2, 1)))


def test_the_bound_adds_what_operations_take_beyond_the_bytes_of_their_weights():
    row = a_row()
    assert (row.ceiling(OURS), row.ceiling(PLAIN)) == (5000, 7000)
    assert (row.bound(OURS), row.bound(PLAIN)) == (5000 + 3000, 7000 + 3000)
    row.timings = {OURS: Timing((1.0,), (10.0,)), PLAIN: Timing((1.0,), (20.0,)), "vllm": Timing((1.0,), (16.0,))}
    assert [row.share_of_ceiling(name) for name in row.timings] == [0.5, 0.35, 5 / 16]
    assert [row.share_of_bound(name) for name in row.timings] == [0.8, 0.5, 0.5]
    report = row.report()
    assert report["ceilings"][PLAIN]["bound_ms"] == 10000
    assert report["products"] == [{"bytes": 4, "operations": 50}, {"bytes": 2, "operations": 1}]
    assert report["runs"]["vllm"]["share_of_bound"] == 0.5


def test_both_tables_show_the_bound_beside_the_ceiling():
    row = a_row()
    row.timings = {OURS: Timing((1.0,), (10.0,))}

    def last(made, count):
        return {str(column.header): next(iter(column.cells)) for column in made.columns[-count:]}

    assert last(ceiling_table([row]), 7) == {
        "ceiling\nms": "5e+03", "ceiling\ntokens/s": "1", "ceiling\nplain, ms": "7e+03", "ceiling\nratio": "1.40",
        "bound\nms": "8e+03", "bound\nplain, ms": "1e+04", "bound\nratio": "1.25",
    }  # fmt: skip
    assert last(table([row]), 4) == {"of ceiling": "50%", "of bound": "80%", "host gap": "-", "/ ours": "1.00"}


def test_the_rates_of_a_cpu_are_measured():
    bandwidth, origin = bandwidth_of(CPU)
    assert 1e8 < bandwidth < 1e13
    assert origin == "measured with a copy"
    for dtype in (torch.float32, torch.bfloat16):
        rate, origin = matrix_rate_of(CPU, dtype)
        assert 1e7 < rate < 1e14
        assert origin == f"measured with a product in {str(dtype).removeprefix('torch.')}"


def test_rates_that_are_given_are_not_measured(monkeypatch):
    monkeypatch.setattr("statewise.bench.rates._seconds", lambda device, call: pytest.fail("measured"))
    assert rates_of(CPU, torch.float32, 1e9, 1e10) == Rates(1e9, "as given", 1e10, "as given")


def test_the_rate_is_of_the_fastest_product(monkeypatch):
    monkeypatch.setattr("statewise.bench.rates._seconds", lambda device, call: [0.5, 0.25, 1.0])
    assert matrix_rate_of(CPU, torch.float32)[0] == 2 * MULTIPLIED["cpu"] ** 3 / 0.25


def test_an_h200_is_known_in_16_bits(monkeypatch):
    monkeypatch.setattr("torch.cuda.get_device_name", lambda device: "NVIDIA H200")
    monkeypatch.setattr("statewise.bench.rates._product_rate", lambda device, dtype: 5e13)
    cuda = torch.device("cuda")
    assert rates_of(cuda, torch.bfloat16) == Rates(
        4.4e12, "read bandwidth of an H200", 7.9e14, "16-bit products of an H200"
    )
    assert matrix_rate_of(cuda, torch.float32) == (5e13, "measured with a product in float32")
    monkeypatch.setattr("torch.cuda.get_device_name", lambda device: "NVIDIA L4")
    assert matrix_rate_of(cuda, torch.bfloat16) == (5e13, "measured with a product in bfloat16")
