"""The decode step's kernels are launched as a table says. In the interpreter, as if it were a GPU that has a table."""

import pytest
import torch

from statewise.ops import tuning
from statewise.ops.tuning.table import StepShape, Table
from tests.ops import kernels
from tests.strategies import Dims, Inputs, Options

TILE = {"block_p": 64, "num_warps": 2}
STEP = TILE | {"fused": False, "block_h": 4, "coefficient_warps": 1}
PLAIN = {"block_p": 32, "num_warps": 1, "prefetch": True}
MIXER = {"fused": False, "block_p": 32, "num_warps": 2, "block_x": 512, "append_warps": 8}


@pytest.fixture
def launched(monkeypatch):
    """Steps on a CPU that look into the tables as if they were on the GPU, and what their kernels were started with."""
    real, gpu = tuning.lookup, torch.device("cuda", 0)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA Test")
    monkeypatch.setattr(tuning, "lookup", lambda *a: real(*a[:-1], gpu))
    started = {}

    class Spy:
        def __init__(self, name, kernel):
            self.name, self.kernel = name, kernel

        def __getitem__(self, grid):
            def start(**arguments):
                started[self.name] = arguments
                return self.kernel[grid](**arguments)

            return start

    from statewise.ops.checkpointed_step import triton as step
    from statewise.ops.mixer_step import triton as mixer
    from statewise.ops.state_step import triton as plain

    for module, name in [
        (plain, "state_step_kernel"),
        (step, "fused_kernel"),
        (step, "coefficients_kernel"),
        (step, "output_kernel"),
        (mixer, "append_kernel"),
    ]:
        monkeypatch.setattr(module, name, Spy(name, getattr(module, name)))
    return started


def run_step(op, d, window=3):
    """One step of float32 zeros and noise, a row a slot, on the CPU in the interpreter."""
    from statewise.ops import checkpointed_step, mixer_step, state_step

    batch, slots = 2, torch.arange(2, dtype=torch.int32)
    row = Inputs(d, (batch, 1), Options(True, False, True, False), 0, torch.float32)
    pool = {
        "state": torch.zeros(batch, d.heads, d.head_dim, d.state_size),
        "x_ring": torch.zeros(batch, d.heads, window + 1, d.head_dim),
        "B_ring": torch.zeros(batch, d.groups, window + 1, d.state_size),
        "dt_ring": torch.zeros(batch, d.heads, window + 1),
        "ring_start": torch.zeros(batch, dtype=torch.int32),
        "pending": torch.full((batch,), window, dtype=torch.int32),
    }
    where = {"read_slots": slots, "backend": "triton"}
    if op == "state_step":
        return state_step(row.x[:, 0], row.dt[:, 0], row.A, row.B[:, 0], row.C[:, 0], pool["state"], **where)
    if op == "checkpointed_step":
        return checkpointed_step(row.x, row.dt, row.A, row.B, row.C, window=window, **pool, **where)
    channels = d.heads * d.head_dim + 2 * d.groups * d.state_size
    conv = {"conv_weight": torch.ones(channels, 4), "conv_window": torch.zeros(batch, channels, 3)}
    xBC = torch.cat([t.flatten(1) for t in (row.x, row.B, row.C)], 1)
    return mixer_step(xBC, row.dt[:, 0], None, A=row.A, window=window, **conv, **pool, **where)


D = Dims(4, 16, 2, 16)
OF_D = StepShape(16, 16, 4, 4, 2, 16, prefetch=False)


@pytest.mark.skipif(kernels.HAS_GPU, reason="looks at the interpreter's launches")
@pytest.mark.parametrize(
    ("op", "parameters", "expected"),
    [
        ("state_step", PLAIN, {"state_step_kernel": {"BLOCK_P": 32, "num_warps": 1, "PREFETCH": False}}),
        ("checkpointed_step", STEP | {"fused": True}, {"fused_kernel": {"BLOCK_P": 64, "num_warps": 2}}),
        (
            "checkpointed_step",
            STEP,
            {
                "coefficients_kernel": {"BLOCK_H": 4, "num_warps": 1},
                "output_kernel": {"BLOCK_P": 64, "num_warps": 2},
            },
        ),
        (
            "mixer_step",
            MIXER,
            {
                "append_kernel": {"BLOCK_X": 512, "num_warps": 8},
                "output_kernel": {"BLOCK_P": 32, "num_warps": 2, "X_IN_RING": True},
            },
        ),
        ("mixer_step", MIXER | {"fused": True}, {"fused_kernel": {"BLOCK_P": 32, "num_warps": 2}}),
    ],
)
def test_steps_are_launched_as_the_table_says(launched, op, parameters, expected):
    with tuning.use([]):
        by_rule = run_step(op, D)
    launched.clear()
    with tuning.use([Table("NVIDIA Test", op, OF_D.of(op), ((8, parameters),))]):
        torch.testing.assert_close(run_step(op, D), by_rule)
    assert launched.keys() == expected.keys()
    for kernel, arguments in expected.items():
        assert {name: launched[kernel][name] for name in arguments} == arguments
