"""Tables of launch parameters: files, which one is used, and what the steps take from it. No GPU is needed."""

import json
from dataclasses import replace
from errno import EACCES
from pathlib import Path

import pytest
import torch

from statewise.cli import main
from statewise.errors import ConfigError
from statewise.models.families import read_config
from statewise.ops import tuning
from statewise.ops.backend import resolve
from statewise.ops.tuning.table import PARAMETERS, SHAPES, StepShape, Table, merged, read, write

CUDA, CPU = torch.device("cuda", 0), torch.device("cpu")
SHAPE = StepShape(
    head_dim=64,
    state_size=128,
    state_bytes=4,
    activation_bytes=2,
    heads_per_group=16,
    block_w=16,
    prefetch=True,
)
STEP = {"fused": False, "block_p": 64, "num_warps": 2, "block_h": 4, "coefficient_warps": 1}
FUSED = STEP | {"fused": True}
PLAIN = {"block_p": 32, "num_warps": 1, "prefetch": True}
MIXER = {"fused": False, "block_p": 32, "num_warps": 2, "block_x": 512, "append_warps": 8}
BY_OP = {"checkpointed_step": STEP, "state_step": PLAIN, "mixer_step": MIXER}


def table(op="checkpointed_step", gpu="NVIDIA Test", steps=((128, FUSED), (1024, STEP)), shape=SHAPE):
    return Table(gpu, op, shape.of(op), steps, measured="on a Monday")


@pytest.fixture(autouse=True)
def gpu(monkeypatch, tmp_path):
    """An NVIDIA Test, no shipped table for it, and no user's table but the one at the path that is returned."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: "NVIDIA Test")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(tuning, "SHIPPED", tmp_path / "shipped")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("STATEWISE_TUNING", raising=False)
    forget()
    path = tmp_path / "statewise" / "tuning.json"
    path.parent.mkdir()
    (tmp_path / "shipped").mkdir()
    yield path
    forget()


def forget():
    for cached in (tuning._user, tuning._shipped, tuning._steps):
        cached.cache_clear()


def found(rows, op="checkpointed_step", shape=SHAPE, device=CUDA):
    return tuning.lookup(op, dict, rows, shape, device)


def test_every_table_comes_back_from_its_file(tmp_path):
    tables = [table(op, steps=((64, None), (128, BY_OP[op]))) for op in PARAMETERS]
    write(tmp_path / "t.json", tables)
    assert read(tmp_path / "t.json") == tuple(tables)
    assert [path.name for path in tmp_path.glob("t.json*")] == ["t.json"]
    assert max(map(len, (tmp_path / "t.json").read_text().splitlines())) < 350


def test_a_step_holds_up_to_its_rows_and_the_rule_above_the_last(gpu):
    write(gpu, [table(steps=((64, None), (128, FUSED), (1024, STEP)))])
    expected = {1: None, 64: None, 65: FUSED, 128: FUSED, 129: STEP, 1024: STEP, 1025: None, 10**9: None}
    assert {rows: found(rows) for rows in expected} == expected


@pytest.mark.parametrize("field", StepShape._fields)
def test_only_the_shape_that_was_measured_is_found(gpu, field):
    write(gpu, [table(op, steps=((128, BY_OP[op]),)) for op in PARAMETERS])
    value = getattr(SHAPE, field)
    other = SHAPE._replace(**{field: (not value) if field == "prefetch" else value * 2})
    for op in PARAMETERS:
        assert found(1, op) == BY_OP[op]
        assert found(1, op, other) == (None if field in SHAPES[op] else BY_OP[op])


def test_the_users_table_comes_before_the_shipped_one_and_the_rule_last(gpu, tmp_path, monkeypatch):
    shipped = [table(steps=((128, STEP),)), table("state_step", steps=((128, PLAIN),))]
    write(tmp_path / "shipped" / "test.json", shipped)
    assert (found(1), found(1, "state_step"), found(1, "mixer_step")) == (STEP, PLAIN, None)
    assert tuning.origin("state_step", SHAPE, CUDA) == "shipped table for NVIDIA Test (on a Monday)"
    write(gpu, [table(steps=((128, FUSED),))])
    forget()
    assert (found(1), found(1, "state_step"), found(1, "mixer_step")) == (FUSED, PLAIN, None)
    assert tuning.origin("checkpointed_step", SHAPE, CUDA) == f"measured on this GPU (on a Monday), {gpu}"
    assert tuning.origin("mixer_step", SHAPE, CUDA) == "rule"
    named = tmp_path / "mine.json"
    write(named, [table(steps=((128, FUSED | {"block_p": 16}),))])
    monkeypatch.setenv("STATEWISE_TUNING", str(named))
    forget()
    assert found(1)["block_p"] == 16
    assert str(named) in tuning.origin("checkpointed_step", SHAPE, CUDA)


def test_a_table_of_another_gpu_is_not_used(gpu):
    write(gpu, [table(gpu="NVIDIA Other")])
    assert found(1) is None
    assert tuning.origin("checkpointed_step", SHAPE, CUDA) == "rule"


def test_a_step_reads_no_file_and_asks_no_gpu(gpu, monkeypatch):
    write(gpu, [table()])
    assert found(1) == FUSED
    gpu.unlink()
    monkeypatch.setattr(torch.cuda, "get_device_name", None)
    assert found(1) == FUSED
    assert found(200) == STEP


def test_on_a_cpu_no_table_is_read(gpu):
    gpu.write_text("{")
    assert found(1, device=CPU) is None
    assert resolve("torch", CPU)[0].name == "torch"


@pytest.mark.parametrize("backend", ["auto", "triton"])
def test_a_table_that_cannot_be_used_is_told_at_start(gpu, backend, monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert resolve(backend, CUDA)[0].name == "triton"
    forget()
    gpu.write_text("{")
    with pytest.raises(ConfigError, match=r"tuning.json cannot be read as JSON: .* \(remove it or run `statewise"):
        resolve(backend, CUDA)
    assert resolve("torch", CUDA)[0].name == "torch"
    monkeypatch.setenv("STATEWISE_TUNING", str(gpu.parent / "none.json"))
    with pytest.raises(ConfigError, match=r"none.json cannot be read: No such file .* \(STATEWISE_TUNING names it\)"):
        resolve(backend, CUDA)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve(backend, CUDA)[0].name == "triton", "a plan for another machine"


def test_a_folder_that_may_not_be_searched_is_told_at_start(monkeypatch):
    monkeypatch.setattr(Path, "exists", _denied)
    with pytest.raises(
        ConfigError, match=r"tuning.json cannot be read: Permission denied \(.*; STATEWISE_TUNING names"
    ):
        tuning.check(CUDA)


def _denied(path):
    raise PermissionError(EACCES, "Permission denied")


def test_info_says_where_launch_parameters_come_from(gpu, capsys, demo_folder, monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setenv("COLUMNS", "400")

    def shown(*flags):
        assert main(["info", str(demo_folder), "--device", "cuda", "--state-dtype", "float32", *flags]) == 0
        lines = capsys.readouterr().out.splitlines()
        return [line.split(maxsplit=2)[2].strip() for line in lines if line.startswith("launch parameters")]

    model = read_config(demo_folder)
    mamba, per_group = model.mamba, model.mamba.heads // model.mamba.groups
    shape = StepShape(mamba.head_dim, mamba.state_size, 4, model.dtype.itemsize, per_group, 16, True)
    assert shown() == ["rule"]
    write(gpu, [table("mixer_step", steps=((8, MIXER),), shape=shape)])
    forget()
    assert shown() == [f"measured on this GPU (on a Monday), {gpu}"]
    assert shown("--checkpoint-interval", "1") == ["rule"]
    assert shown("--backend", "torch") == []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert shown() == ["as the GPU has it: none is here"]


def change(held, *places, value):
    *path, last = places
    for place in path:
        held = held[place]
    held[last] = value


@pytest.mark.parametrize(
    ("places", "value", "message"),
    [
        (("version",), 2, "its version is 2, expected 1: tune again"),
        (("extra",), 2, "the file has version, tables, extra, expected version, tables"),
        (("tables",), {}, "tables is {}, expected a list"),
        (("tables", 0), 3, "a table has 3, expected gpu, op, shape, measured, steps"),
        (("tables", 0, "gpu"), 3, "gpu is 3, expected a name"),
        (("tables", 0, "op"), "conv", "op is 'conv', expected one of state_step, checkpointed_step, mixer_step"),
        (("tables", 0, "shape", "heads"), 3, "shape of checkpointed_step has"),
        (("tables", 0, "shape", "head_dim"), "64", "checkpointed_step: head_dim is '64'"),
        (("tables", 0, "shape", "prefetch"), 7, "checkpointed_step: prefetch is 7"),
        (("tables", 0, "steps"), [], "rows are [], expected whole numbers that ascend"),
        (("tables", 0, "steps"), [[1, None, 2]], "expected a list of [rows, parameters]"),
        (("tables", 0, "steps", 1, 0), 128, "rows are [128, 128], expected whole numbers that ascend"),
        (("tables", 0, "steps", 0, 0), 0, "rows are [0, 1024], expected"),
        (("tables", 0, "steps", 0, 0), True, "rows are [True, 1024], expected"),
        (("tables", 0, "steps", 0, 1), [], "parameters of checkpointed_step has [], expected fused, block_p"),
        (("tables", 0, "steps", 0, 1, "block_p"), 8, "block_p is 8, expected one of 16, 32, 64, 128"),
        (("tables", 0, "steps", 0, 1, "block_p"), 48, "block_p is 48, expected one of 16"),
        (("tables", 0, "steps", 0, 1, "num_warps"), 3, "num_warps is 3, expected one of 1, 2, 4, 8, 16"),
        (("tables", 0, "steps", 0, 1, "num_warps"), True, "num_warps is True, expected one of 1, 2"),
        (("tables", 0, "steps", 0, 1, "fused"), 1, "fused is 1, expected one of False, True"),
        (("tables", 1), {"op": "mixer_step"}, "a table has op, expected"),
    ],
)
def test_what_no_kernel_can_take_is_named(gpu, places, value, message):
    write(gpu, [table(), table("state_step", steps=((1, PLAIN),))])
    held = json.loads(gpu.read_text())
    change(held, *places, value=value)
    gpu.write_text(json.dumps(held))
    with pytest.raises(ConfigError) as error:
        read(gpu)
    assert message in str(error.value)
    assert str(error.value).startswith(f"tuning table {gpu} cannot be used: ")


def test_two_tables_of_one_shape_are_refused(gpu):
    write(gpu, [table(), table()])
    with pytest.raises(ConfigError, match="two tables of one GPU, op and shape"):
        read(gpu)


def test_merging_replaces_the_same_shape_and_keeps_the_rest():
    old = [table(), table(gpu="NVIDIA Other"), table("state_step", steps=((1, PLAIN),))]
    new = [replace(table(), steps=((9, STEP),)), table(shape=SHAPE._replace(state_bytes=2))]
    assert merged(old, new) == (new[0], old[1], old[2], new[1])


def test_what_cannot_be_written_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match="which cannot be written: No such file or directory"):
        write(tmp_path / "none" / "t.json", [table()])


def test_every_shipped_table_can_be_used(monkeypatch):
    monkeypatch.undo()
    paths = sorted(tuning.SHIPPED.glob("*.json"))
    assert sum(len(read(path)) for path in paths) == len(tuning._shipped())
