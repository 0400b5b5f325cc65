"""Command line: train a preset, then score it and write its card.

python -m train --preset toy                       a few minutes on two CPU cores
python -m train --preset h200 --device cuda        the model that the repository ships
"""

import argparse
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

import torch

from statewise.errors import ConfigError, StatewiseError
from statewise.eval.gsm8k import read_gsm8k
from statewise.ops.backend import resolve
from train.evaluate import Score, open_model, report_scores
from train.loop import Options, Trainer
from train.presets import PRESETS, Preset
from train.report import card, draw_curve

OUT = Path("build/train")


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0, also where --stop-after ended the run early; 2 for a mistake of the user's."""
    asked = _parser().parse_args(arguments)
    try:
        preset, options = _preset(asked), _options(asked)
        trainer = Trainer(preset, options)
        if not trainer.run():
            print(f"stopped at step {trainer.progress.step}; the same command goes on from there")
            return 0
        finish(trainer, asked.preset, asked.gsm8k)
    except StatewiseError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def finish(trainer: Trainer, name: str, gsm8k: Path | None = None) -> list[Score]:
    """Weights, scores, picture and card of a run that is over. name: of the preset that it began with."""
    preset, options, progress = trainer.preset, trainer.options, trainer.progress
    folder = trainer.export()
    torch.set_float32_matmul_precision("highest")  # the scores shall be those of a CPU
    scores = report_scores(open_model(folder, str(options.device), options.backend), preset, gsm8k)
    tokens, device = progress.step * preset.tokens_per_step, options.device
    losses, speeds = ([line[key] for line in trainer.log.lines if key in line] for key in ("loss", "tokens_per_second"))
    facts = {
        "parameters": f"{sum(weight.numel() for weight in trainer.model.parameters()):,}",
        "megabytes": f"{(folder / 'model.safetensors').stat().st_size / 2**20:.1f}",
        "steps": f"{progress.step:,}",
        "tokens": f"{tokens:,}",
        "seconds": f"{progress.seconds:,.0f}",
        "tokens_per_second": f"{median(speeds):,.0f}",
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "a CPU",
        "loss": f"{losses[-1]:.1e}",
        "command": _command(trainer, name),
        "length_of_run": _length_of_run(options.minutes),
    }
    results = {"facts": facts, "scores": [one.to_json() for one in scores]}
    (options.folder / "scores.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    (folder / "README.md").write_text(card(preset, scores, facts), encoding="utf-8")
    draw_curve(
        trainer.log.lines, options.folder / "loss.png", f"{facts['parameters']} parameters, {facts['tokens']} tokens"
    )
    for one in scores:
        names = f"names {one.names_right:4} of {one.named:4}" if one.named else " " * 18
        print(f"{one.right:5} of {one.asked:5}  {one.share:6.1%}  {names}  {one.name}")
    print(f"model and card in {folder}")
    return scores


def _command(trainer: Trainer, name: str) -> str:
    """What repeats the run: steps in place of minutes, and no folders."""
    preset, options = trainer.preset, trainer.options
    kinds = f" --kinds {','.join(preset.kinds)}" if preset.kinds != PRESETS[name].kinds else ""
    steps = f"--steps {trainer.progress.step} --seed {preset.seed}"
    how = f"--workers {options.workers}{' --compile' if options.compile else ''}"
    return f"python -m train --preset {name} --device {options.device.type} {how} {steps}{kinds}"


def _length_of_run(minutes: float | None) -> str:
    """A sentence where the steps were not the preset's or asked for."""
    return "" if minutes is None else f"The number of steps was chosen to fill {minutes:g} minutes. "


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m train", description="Train the small model of this repository.")
    parser.add_argument("--preset", choices=PRESETS, default="toy", help="sizes and schedule (default toy)")
    parser.add_argument(
        "--out", type=Path, metavar="FOLDER", help=f"of the run (default {OUT}/PRESET); one run a folder"
    )
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="default cpu")
    parser.add_argument("--steps", type=int, metavar="N", help="instead of the preset's")
    parser.add_argument("--minutes", type=float, metavar="M", help="as many steps as fill so many minutes of training")
    parser.add_argument("--stop-after", type=float, metavar="S", help="seconds; the same command goes on from there")
    parser.add_argument("--seed", type=int, help="of weights and data, instead of the preset's")
    parser.add_argument("--kinds", metavar="NAME,...", help="kinds of problems to train on, instead of the preset's")
    parser.add_argument("--workers", type=int, default=1, metavar="N", help="processes that make batches (default 1)")
    parser.add_argument("--compile", action="store_true", help="run the forward and backward through torch.compile")
    parser.add_argument("--backend", default="torch", help="of the evaluations by the engine (default torch)")
    parser.add_argument("--gsm8k", type=Path, metavar="FOLDER", help="GSM8K's train.jsonl and test.jsonl, to score too")
    return parser


def _preset(asked: argparse.Namespace) -> Preset:
    changes = {name: getattr(asked, name) for name in ("steps", "seed") if getattr(asked, name) is not None}
    if asked.kinds is not None:
        changes["kinds"] = tuple(name for name in asked.kinds.split(",") if name)
    for name, least in (("steps", 1), ("workers", 0)):
        if getattr(asked, name) is not None and getattr(asked, name) < least:
            raise ConfigError(f"{name} is {getattr(asked, name)}, expected at least {least}")
    for name in ("minutes", "stop_after"):
        if getattr(asked, name) is not None and not 0 < getattr(asked, name) < math.inf:
            raise ConfigError(f"{name} is {getattr(asked, name):g}, expected more than 0, and a number")
    if asked.minutes is not None and asked.steps is not None:
        raise ConfigError("minutes and steps both decide how long the run is; expected one of them")
    if asked.seed is not None and not 0 <= asked.seed < 2**63:
        raise ConfigError(f"seed is {asked.seed}, expected 0 to 2**63 - 1")
    return replace(PRESETS[asked.preset], **changes)


def _options(asked: argparse.Namespace) -> Options:
    """Raises now what only the end would meet: a backend that cannot run here, GSM8K's files that are not there."""
    device = torch.device(asked.device)
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise ConfigError("device is cuda, but torch sees no GPU here; possible: cpu")
        torch.set_float32_matmul_precision("high")  # the scan's products by tensor cores
    resolve(asked.backend, device)
    if asked.gsm8k is not None:
        for split in ("train", "test"):
            read_gsm8k(split, asked.gsm8k)
    return Options(
        folder=asked.out or OUT / asked.preset,
        device=device,
        workers=asked.workers,
        minutes=asked.minutes,
        stop_after=asked.stop_after,
        compile=asked.compile,
        backend=asked.backend,
    )


if __name__ == "__main__":
    sys.exit(main())
