"""What a run leaves besides weights: its log as JSON lines, the loss curve as a picture, the model card."""

import json
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

import torch
from matplotlib.figure import Figure

from statewise import __version__
from statewise.config import is_int
from statewise.demo.kinds import NEVER_TRAINED, TRAINED
from statewise.errors import DataError
from train.evaluate import Score
from train.presets import Preset


class Log:
    """JSON lines: {"step", "loss", ...} of the training, {"step", "exact_match", "names_right"} of looks in between."""

    def __init__(self, path: Path, step: int):
        """step: where the run goes on; later lines, of a run cut off after its last checkpoint, are dropped.

        Raises DataError for a file that is no such log.
        """
        self.path = path
        self.lines = [line for line in _lines(path) if line["step"] <= step]
        path.write_text("".join(json.dumps(line) + "\n" for line in self.lines), encoding="utf-8")

    def add(self, **line: Any) -> None:
        """Write one line at once."""
        self.lines.append(line)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def _lines(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a log; a last one that was cut off in the middle is no line."""
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8")
    lines = []
    for number, line in enumerate(text[: text.rfind("\n") + 1].splitlines(), 1):
        try:
            found = json.loads(line)
        except ValueError:
            found = None
        if not isinstance(found, dict) or not is_int(found.get("step")):
            raise DataError(f"{path} line {number} is {line[:60]!r}, expected a JSON object with a step")
        lines.append(found)
    return lines


def draw_curve(lines: Sequence[Mapping[str, Any]], path: Path, title: str) -> None:
    """Loss over steps on the left; on the right exact match and answers with the right names, on held-out problems."""
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    losses = [(line["step"], line["loss"]) for line in lines if "loss" in line]
    axes.plot(*zip(*losses, strict=True), color="tab:blue", linewidth=1)
    axes.set_yscale("log")
    axes.set_xlabel("step")
    axes.set_ylabel("loss on the answers, nats a token", color="tab:blue")
    axes.grid(alpha=0.3)
    right = axes.twinx()
    for key, marker in (("exact_match", "o"), ("names_right", "x")):
        shares = [(line["step"], line[key]) for line in lines if line.get(key) is not None]
        if shares:
            right.plot(*zip(*shares, strict=True), color="tab:red", marker=marker, markersize=3)
    right.set_ylim(0, 1.04)
    right.set_ylabel("held-out problems: exact match (o), names right (x)", color="tab:red")
    axes.set_title(title)
    figure.savefig(path, dpi=110)


def card(preset: Preset, scores: Sequence[Score], facts: Mapping[str, Any]) -> str:
    """The model card: `card.md` with the names that stand there after a dollar sign. facts: those not made here."""
    sizes, held_out = preset.sizes, scores[0]
    weakest = sorted(held_out.by_kind.items(), key=lambda item: (item[1][0] / item[1][1], item[0]))[:5]
    template = Template(resources.files("train").joinpath("card.md").read_text(encoding="utf-8"))
    return template.substitute(
        facts,
        pattern=sizes.hybrid_override_pattern,
        hidden=sizes.hidden_size,
        heads=sizes.mamba_num_heads,
        head_dim=sizes.mamba_head_dim,
        states=sizes.ssm_state_size,
        groups=sizes.n_groups,
        vocab=sizes.vocab_size,
        length=preset.length,
        rows=preset.rows,
        learning_rate=preset.learning_rate,
        warmup=preset.warmup,
        decay=preset.weight_decay,
        seed=preset.seed,
        kinds=len(preset.kinds or TRAINED),
        new_kinds=len(NEVER_TRAINED),
        scores="\n".join(map(_row, scores)),
        names_right=held_out.names_right,
        named=held_out.named,
        weakest="\n".join(f"| `{kind}` | {right} of {asked} |" for kind, (right, asked) in weakest),
        version=__version__,
        torch=torch.__version__,
    )


def _row(one: Score) -> str:
    """A row of the card's table; no names where they do not count."""
    names = f"{one.names_right} of {one.named}" if one.named else "-"
    return f"| {one.name} | {one.right} of {one.asked} | {one.share:.1%} | {names} |"
