"""The training loop: one step after another, a checkpoint now and then, an end that another process can go on from."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from statewise.engine.text import load_tokenizer
from statewise.errors import ConfigError
from statewise.models.hybrid import HybridModel
from train.evaluate import open_model, problems, score
from train.model import export, loss_of, new_model, write_config
from train.optimizer import learning_rate, make_optimizer
from train.presets import Preset
from train.report import Log
from train.rows import Batch, Steps
from train.tokenizer import EOS_ID, build_tokenizer, write_tokenizer

MEASURED_LAP = 3  # from log line to log line: the one whose speed decides how many steps fill the minutes asked for


@dataclass(frozen=True, kw_only=True)
class Options:
    """How a run goes that does not change its weights, except `minutes`, which decide on the number of steps."""

    folder: Path
    device: torch.device
    workers: int = 0  # processes that make batches
    minutes: float | None = None  # of training, instead of the preset's steps
    stop_after: float | None = None  # seconds; then a checkpoint, and the same command goes on from there
    checkpoint_every: float = 120.0  # seconds
    compile: bool = False
    backend: str = "torch"  # of the evaluations
    say: Callable[[str], None] = field(default=print)


@dataclass(frozen=True)
class Progress:
    """How far a run is: what a checkpoint holds besides the tensors."""

    step: int = 0
    seconds: float = 0.0  # of training, evaluations and checkpoints left out
    total: int | None = None  # steps in all; None: still to be decided from the speed


class Trainer:
    """One run in one folder. ``run`` goes on from the folder's checkpoint if there is one."""

    def __init__(self, preset: Preset, options: Options):
        """Raises ConfigError for a folder that cannot be made or of another preset, or too short a warm-up.

        A folder that is refused is left as it is.
        """
        if options.minutes and preset.warmup < MEASURED_LAP * preset.log_every:
            raise ConfigError(f"minutes need a warm-up of {MEASURED_LAP} log lines, it has {preset.warmup} steps")
        self.preset, self.options = preset, options
        self.model_folder, self.checkpoint = options.folder / "model", options.folder / "checkpoint.pt"
        try:
            self.model_folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"{options.folder} cannot be written: {error.strerror}") from error
        found = self._found()
        config = write_config(preset.sizes, self.model_folder, torch.bfloat16)
        self.tokenizer = self._tokenizer()
        self.model = new_model(config, preset.seed, options.device)
        self.optimizer = make_optimizer(self.model, preset)
        self.progress = self._resume(found)
        self.log = Log(options.folder / "log.jsonl", self.progress.step)
        self._loss: Callable[[HybridModel, Tensor, Tensor, bool], Tensor] = loss_of
        if options.compile:
            self._loss = torch.compile(loss_of, dynamic=False, fullgraph=True)

    @property
    def is_done(self) -> bool:
        """Whether no step is left."""
        return self.progress.step == self.progress.total

    def run(self) -> bool:
        """Train to the end or until ``stop_after``. Returns whether it is the end."""
        if self.is_done:
            return True
        options, began = self.options, time.monotonic()
        if options.compile:
            self._compile()
        clock = _Clock()
        deadline, due = began + (options.stop_after or float("inf")), began + options.checkpoint_every
        steps, losses = Steps(self.preset, self.tokenizer, EOS_ID), []
        for batch in steps.loader(self.progress.step, options.workers, pin=options.device.type == "cuda"):
            loss, norm = self._step(batch)
            losses.append(loss)
            self.progress = replace(self.progress, step=self.progress.step + 1)
            if self.progress.step % self.preset.log_every and not self.is_done:
                continue
            self._say(losses, norm, clock)
            losses.clear()
            with clock.pause():
                if self.progress.step % self.preset.evaluate_every == 0 and not self.is_done:
                    self._evaluate()
                now = time.monotonic()
                if self.is_done or now > min(due, deadline):
                    self.save()
                    due = now + options.checkpoint_every
            if self.is_done or now > deadline:
                break
        return self.is_done

    def _compile(self) -> None:
        """Have forward and backward compiled, on tokens that mean nothing, so that no step takes longer than others."""
        began = time.monotonic()
        tokens = torch.zeros(self.preset.rows, self.preset.length, dtype=torch.int64, device=self.options.device)
        labels = tokens.clone()  # the same tensor twice would be a case of its own, and the first step another one
        self._backward(tokens, labels).item()  # waits for the device
        self.optimizer.zero_grad(set_to_none=True)
        self.options.say(f"compiled in {time.monotonic() - began:.0f} s")

    def save(self) -> None:
        """Write the checkpoint, whole or not at all."""
        content = {
            "preset": asdict(self.preset),
            "progress": asdict(self.progress),
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }
        fresh = self.checkpoint.with_suffix(".new")
        torch.save(content, fresh)
        fresh.replace(self.checkpoint)

    def export(self) -> Path:
        """The model folder as it stands, in bfloat16."""
        export(self.model, self.preset.sizes, self.model_folder, torch.bfloat16)
        return self.model_folder

    def _tokenizer(self) -> Tokenizer:
        if not (self.model_folder / "tokenizer.json").exists():
            write_tokenizer(build_tokenizer(self.preset.sizes.vocab_size), self.model_folder)
        return load_tokenizer(self.model_folder)

    def _found(self) -> dict[str, Any] | None:
        """The folder's checkpoint, if it has one."""
        if not self.checkpoint.exists():
            return None
        try:
            # To the host: a GPU without room is no damaged file.
            content: dict[str, Any] = torch.load(self.checkpoint, map_location="cpu", weights_only=True)
            preset = content["preset"]
        except (OSError, RuntimeError, EOFError, UnpicklingError, KeyError, TypeError) as error:
            raise ConfigError(
                f"{self.checkpoint} cannot be read ({type(error).__name__}); remove it or its folder"
            ) from error
        if preset != asdict(self.preset):
            raise ConfigError(
                f"{self.options.folder} holds a run of another preset; expected an empty folder or that one"
            )
        return content

    def _resume(self, found: dict[str, Any] | None) -> Progress:
        if found is None:
            return Progress(total=None if self.options.minutes else self.preset.steps)
        progress = Progress(**found["progress"])
        self.model.load_state_dict(found["model"])
        self.optimizer.load_state_dict(found["optimizer"])
        self.options.say(f"going on from step {progress.step} of {self.checkpoint}")
        return progress

    def _step(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """One update. Returns loss and gradient norm, on the device, for which it does not wait."""
        device = self.options.device
        tokens, labels = (side.to(device, non_blocking=True) for side in batch)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.progress.step, self.progress.total, self.preset)
        loss = self._backward(tokens, labels)
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.preset.max_grad_norm)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss, norm

    def _backward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        """Adds the gradients of a batch. Returns its loss."""
        loss = self._loss(self.model, tokens, labels, self.options.device.type == "cuda")
        loss.backward()
        return loss.detach()

    def _say(self, losses: list[Tensor], norm: Tensor, clock: "_Clock") -> None:
        mean = torch.stack(losses).mean().item()  # waits for the device
        seconds, step = clock.lap(), self.progress.step
        if not math.isfinite(mean):
            raise FloatingPointError(f"the loss is {mean} at step {step}")
        total = self._steps_that_fit(seconds / len(losses)) if clock.laps == MEASURED_LAP else self.progress.total
        self.progress = replace(self.progress, seconds=self.progress.seconds + seconds, total=total)
        rate, speed = self.optimizer.param_groups[0]["lr"], len(losses) * self.preset.tokens_per_step / seconds
        self.log.add(step=step, loss=mean, lr=rate, grad_norm=norm.item(), tokens_per_second=round(speed))
        self.options.say(
            f"step {step:6} of {total or '?'}  loss {mean:.2e}  lr {rate:.2e}  gradient {norm.item():.2f}  "
            f"{speed:,.0f} tokens/s"
        )

    def _steps_that_fit(self, seconds_per_step: float) -> int | None:
        """The number of steps, decided once where minutes are given."""
        if self.progress.total is not None or self.options.minutes is None:
            return self.progress.total
        total = max(self.preset.warmup + 1, round(60 * self.options.minutes / seconds_per_step))
        self.options.say(f"{seconds_per_step:.3f} s a step: {total} steps fill {self.options.minutes:g} minutes")
        return total

    def _evaluate(self) -> None:
        llm = open_model(self.export(), str(self.options.device), self.options.backend)
        result = score(llm, "held-out", problems(self.preset, "held-out", self.preset.evaluate_on))
        self.log.add(step=self.progress.step, exact_match=result.share, names_right=result.names_share)
        self.options.say(
            f"step {self.progress.step:6}  {result.right} of {result.asked} held-out problems right, "
            f"names in {result.names_right} of {result.named}"
        )


class _Clock:
    """Seconds of training: what passes from lap to lap, pauses left out."""

    def __init__(self) -> None:
        self.laps = 0
        self._since = time.monotonic()

    def lap(self) -> float:
        """Seconds since the last one."""
        now = time.monotonic()
        seconds, self._since = now - self._since, now
        self.laps += 1
        return seconds

    @contextmanager
    def pause(self) -> Iterator[None]:
        """What runs inside does not count."""
        began = time.monotonic()
        yield
        self._since += time.monotonic() - began
