"""`statewise tune` without a GPU: what it tries, how it picks, what it writes, what it refuses."""

import importlib
import json
import re

import pytest
import torch
from torch.overrides import TorchFunctionMode

from statewise.bench.op import Row
from statewise.bench.workload import Shape
from statewise.cli import main
from statewise.ops import tuning
from statewise.ops.tuning.table import StepShape, Table, read
from tests.cli.test_bad_input import refused
from tests.ops.kernels import HAS_GPU

# Imported after `kernels`, which says that kernels are interpreted where there is no GPU.
tuner = importlib.import_module("statewise.bench.tune")
tune_compile = importlib.import_module("statewise.bench.tune_compile")
candidates = importlib.import_module("statewise.bench.tune_candidates")
FRONT, TUNABLES, label = candidates.FRONT, candidates.TUNABLES, candidates.label
as_table, choose = candidates.as_table, candidates.choose
every_kernel, first, second = candidates.every_kernel, candidates.first, candidates.second

SHAPE = StepShape(64, 128, 4, 2, 16, 16, prefetch=True)
SHAPES = [
    SHAPE,
    SHAPE._replace(state_bytes=2),
    SHAPE._replace(head_dim=80),
    SHAPE._replace(head_dim=16, state_size=256),
]
PLAIN, STEP, MIXER = TUNABLES
ROWS = [128, 1024, 2048, 65536]


@pytest.mark.parametrize("tunable", TUNABLES, ids=lambda tunable: tunable.op)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_candidate_fits_a_table_and_has_a_name(tunable, shape):
    for rows in ROWS:
        launches = first(tunable, rows, shape)
        assert tunable.by_rule(rows, shape) in launches
        steps = tuple((i + 1, tunable.parameters(launch)) for i, launch in enumerate(launches))
        made = Table("a GPU", tunable.op, shape.of(tunable.op), steps)  # raises for what no kernel can take
        assert [tunable.canonical(tunable.make(**held)) for _, held in made.steps] == launches
        assert len({label(tunable.op, launch) for launch in launches}) == len(launches) >= 6


def test_no_tile_is_tried_that_threads_cannot_hold():
    def tiles(state_bytes, fused, **other):
        launches = first(STEP, 1, SHAPE._replace(state_bytes=state_bytes, **other))
        return {(launch.block_p, launch.num_warps) for launch in launches if launch.fused == fused}

    assert {(32, 1), (64, 2)} <= tiles(4, True)
    assert (64, 1) not in tiles(4, True) | tiles(2, True) | tiles(4, False)
    assert (64, 1) in tiles(2, False)
    assert tiles(4, True, state_size=256) == {(16, 1), (16, 2), (16, 4), (32, 2), (32, 4), (64, 4)}
    assert {block for block, _ in tiles(4, True, head_dim=20)} == {16, 32}


@pytest.mark.parametrize("tunable", TUNABLES, ids=lambda tunable: tunable.op)
def test_few_launches_start_every_kernel(tunable):
    def kernels(launches):
        found = set()
        for launch in launches:
            fused = getattr(launch, "fused", None)
            found.add((fused, launch.block_p, launch.num_warps, getattr(launch, "prefetch", None)))
            if fused is False:
                found.add(tuple(getattr(launch, name) for name in FRONT[tunable.op][0]))
        return found

    few = every_kernel(tunable, 128, SHAPE)
    assert len(few) <= 18
    tried = [launch for rows in ROWS for launch in first(tunable, rows, SHAPE)]
    assert kernels(few) >= kernels(tried)


def test_the_second_round_takes_the_rule_the_near_ones_and_the_best_parts_together():
    rows = 65536
    quick = dict.fromkeys(first(STEP, rows, SHAPE), 100.0)
    rule = STEP.by_rule(rows, SHAPE)
    fused = STEP.make(fused=True, block_p=64, num_warps=2)
    tile, front = STEP.make(False, 64, 16, 2, 1), STEP.make(False, rule.block_p, 4, rule.num_warps, 2)
    assert {fused, tile, front} <= quick.keys()
    quick |= {fused: 62.0, tile: 60.0, front: 61.0}
    final = second(STEP, rows, SHAPE, quick)
    assert set(final) >= {rule, fused, tile, front, STEP.make(False, 64, 4, 2, 2)}
    assert len(final) == len(set(final)) <= 7


def test_launches_in_two_kernels_are_not_combined_where_one_kernel_is_far_ahead():
    quick = {launch: 5.0 if launch.fused else 9.0 for launch in first(STEP, 128, SHAPE)}
    assert all(launch.fused for launch in second(STEP, 128, SHAPE, quick))


@pytest.mark.parametrize(
    ("times", "rules", "expected"),
    [
        ([{"r": 3, "a": 2, "b": 1}], "r", "b"),
        ([{"r": 100, "a": 99.5}], "r", "a"),
        ([{"r": 100, "a": 100.5}], "r", "r"),  # within 1 %, but slower than the rule
        ([{"r": 100, "a": 90, "b": 90.5}, {"r": 100, "a": 95, "b": 90}], "rr", "bb"),  # a tie goes to the neighbour
        ([{"r": 100, "a": 90, "b": 91}, {"r": 100, "a": 91, "b": 90}], "rr", "ab"),  # no tie
        ([{"r": 9, "a": 5}, {"r": 9, "a": 5}, {"r": 9, "b": 5}, {"r": 9, "b": 5}], "rrrr", "aabb"),
        ([{"r": 100, "a": 99.9}, {"s": 100, "a": 101, "r": 100.1}], "rs", "as"),
        ([{"r": 100, "a": 100, "b": 100}] * 3 + [{"r": 100, "b": 90}], "rrrr", "bbbb"),
    ],
)
def test_few_launches_are_chosen_and_none_is_slower_than_the_rule(times, rules, expected):
    assert "".join(choose(times, rules)) == expected


def test_a_table_says_only_what_was_measured():
    a, b = PLAIN.make(16, 1, True), PLAIN.make(32, 2, False)
    made = as_table(PLAIN, SHAPE, 8, [4, 8, 16, 32], [a, a, b, b], gpu="g", measured="m")
    of = PLAIN.parameters
    assert made.steps == ((16, None), (64, of(a)), (256, of(b)))
    assert made.shape == {"head_dim": 64, "state_size": 128, "state_bytes": 4, "prefetch": True}
    assert as_table(PLAIN, SHAPE, 8, [1], [a], gpu="g", measured="m").steps == ((8, of(a)),)


class OnCPU(TorchFunctionMode):
    """What is made on a GPU is made on the CPU."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if "cuda" in str(kwargs.get("device")):
            kwargs["device"] = "cpu"
        return function(*args, **kwargs)


@pytest.fixture
def pretend(monkeypatch, tmp_path):
    """A GPU: kernels run in the interpreter, look into the tables of an "NVIDIA Test", and take made-up times."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: "NVIDIA Test")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.version, "hip", None)
    generator = torch.Generator
    monkeypatch.setattr(torch, "Generator", lambda device: generator("cpu"))
    lookup = tuning.lookup
    monkeypatch.setattr(tuning, "lookup", lambda *a: lookup(*a[:-1], torch.device("cuda", 0)))
    monkeypatch.setattr(tuner, "measure", made_up)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("STATEWISE_TUNING", raising=False)
    tuning._user.cache_clear()
    with OnCPU():
        yield
    tuning._user.cache_clear()


def made_up(found, w, floor, replays):
    """One warp is best, in one kernel at batch 1 and in two at 4."""

    def time(name):
        size, warps = re.search(r"(\d+)x(\d)", name).groups()
        kernels = 1.0 + 0.5 * (name.startswith("two") == (w.batch == 1))
        return w.batch * int(warps) * kernels * (1 + int(size) / 1e6)

    return Row(w.batch, "made up", floor, {contender.name: time(contender.name) for contender in found})


SMALL = ["--heads", "2", "--head-dim", "16", "--groups", "1", "--state-size", "16", "--checkpoint-interval", "2"]
FLAGS = [*SMALL, "--state-dtype", "float32", "--batch", "4", "1", "4", "--jobs", "1"]


@pytest.mark.skipif(HAS_GPU, reason="runs in the interpreter")
def test_it_measures_prints_and_writes_a_table_that_is_then_used(pretend, capsys, tmp_path, monkeypatch):
    wrong = PLAIN.make(16, 1, True)
    launched = tuner.launched

    def spoiled(tunable, launch, shape):
        contender = launched(tunable, launch, shape)
        if tunable is not PLAIN or launch != wrong:
            return contender
        make = contender.make

        def doubled(w):
            call, advance = make(w)

            def step(d):
                return call(d) * 2

            return step, advance

        return type(contender)(contender.name, contender.kind, True, doubled)

    monkeypatch.setattr(tuner, "launched", spoiled)
    assert main(["tune", *FLAGS]) == 0
    printed = capsys.readouterr()
    path = tmp_path / "statewise" / "tuning.json"
    assert f"written to {path}" in printed.out
    assert "one kernel 16x1" in printed.out
    (left_out,) = re.findall("left out.*", printed.err)
    assert left_out.startswith("left out: state_step as 16x1 prefetch is wrong here, relative error of out 9.")
    tables = {table.op: table for table in read(path)}
    assert [rows for rows, _ in tables["mixer_step"].steps] == [2, 8]
    one, two = (held for _, held in tables["mixer_step"].steps)
    assert (one["fused"], one["num_warps"], two["fused"], two["num_warps"]) == (True, 1, False, 1)
    assert tables["state_step"].steps == ((8, {"block_p": 16, "num_warps": 1, "prefetch": False}),)
    key = tuner.step_shape(Shape(2, 16, 1, 16, 2), torch.float32)
    for op, table in tables.items():
        assert tuning.lookup(op, dict, 8, key, torch.device("cuda", 0)) == table.steps[-1][1]


@pytest.mark.skipif(HAS_GPU, reason="runs in the interpreter")
def test_what_a_file_holds_of_other_shapes_stays(pretend, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(tuner.Checked, "is_good", lambda self, tunable, launch: True)
    path = tmp_path / "table.json"
    assert main(["tune", *FLAGS, "--output", str(path)]) == 0
    first_file = read(path)
    again = ["--output", str(path), "--state-dtype", "bfloat16", "--op", "state_step"]
    assert main(["tune", *FLAGS, *again]) == 0
    assert read(path)[:3] == first_file
    assert [table.op for table in read(path)[3:]] == ["state_step"]


@pytest.mark.skipif(HAS_GPU, reason="runs in the interpreter")
def test_a_launch_that_does_not_run_is_left_out_and_the_rules_own_is_an_error(pretend, capsys, monkeypatch):
    def fails(tunable, launch, shape):
        def make(w):
            def step(d):
                raise RuntimeError("out of resource: registers\nand more")

            return step, None

        return type("", (), {"make": staticmethod(make), "name": "x"})()

    monkeypatch.setattr(tuner, "launched", fails)
    assert main(["tune", *FLAGS]) == 2
    error = capsys.readouterr().err.splitlines()
    assert error[0] == "left out: state_step as 16x4 prefetch does not run here: out of resource: registers"
    assert error[1].endswith("the rule's own launch, 16x4 prefetch, is wrong or does not run on this GPU")


@pytest.mark.skipif(HAS_GPU, reason="runs in the interpreter")
def test_processes_share_the_kernels(pretend, monkeypatch):
    shape, dtypes = Shape(2, 16, 1, 16, 2), [torch.float32, torch.bfloat16]
    started = []

    def launched(tunable, launch, key):
        def make(w):
            return (lambda d: started.append((w.state_dtype, tunable, launch))), None

        return type("", (), {"make": staticmethod(make)})()

    monkeypatch.setattr(tune_compile, "launched", launched)
    for share in range(3):
        tune_compile.compile_share(shape, dtypes, ["state_step", "mixer_step"], share, 3)
    every = tune_compile.launches(shape, dtypes, [PLAIN, MIXER])
    assert len(started) == len(every)
    assert {*started} == {*every}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--state-dtype", "int8"], "state_dtype is 'int8', expected one of float32, float16, bfloat16"),
        (["--batch", "1", "0"], "batch is 0, expected a whole number, at least 1"),
        (["--jobs", "0"], "jobs is 0, expected a whole number, at least 1"),
        (["--head-dim", "-64"], "head_dim is -64, expected a whole number, at least 1"),
        (["--groups", "0"], "groups is 0, expected a whole number, at least 1"),
        (["--heads", "12"], "12 heads do not divide into 8 groups"),
        (["--checkpoint-interval", "1"], "checkpoint_interval is 1, expected a whole number, 2 to 64"),
        (["--model", "/none/model"], "model folder /none/model does not exist"),
        (["--model", "/none/model", "--heads", "8"], "--model says the shape, and so do --heads: give one of them"),
        (["--output", "/none/t.json"], "output is /none/t.json, which cannot be written: No such file or directory"),
        (["--output", "/" + "long" * 100], "cannot be read: File name too long"),
    ],
)
def test_impossible_options(capsys, flags, message):
    assert message in refused(capsys, "tune", *flags)


def test_an_output_that_is_no_table_is_not_overwritten(capsys, tmp_path):
    path = tmp_path / "report.json"
    path.write_text(json.dumps({"rows": []}))
    assert f"tuning table {path} cannot be used: the file has rows" in refused(capsys, "tune", "--output", path)
    assert json.loads(path.read_text()) == {"rows": []}


@pytest.mark.skipif(HAS_GPU, reason="there is a GPU")
def test_without_a_gpu_there_is_nothing_to_measure(capsys, demo_folder, tmp_path):
    message = "tune measures kernels on a CUDA GPU, and torch sees none here"
    assert message in refused(capsys, "tune", "--model", demo_folder)
    assert message in refused(capsys, "tune", "--output", tmp_path / "t.json")
    assert not (tmp_path / "t.json").exists()
