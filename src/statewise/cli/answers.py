"""A question with the answers of both modes, side by side."""

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from statewise.cli.modes import label
from statewise.eval.compare import Mode
from statewise.eval.questions import Question
from statewise.eval.scoring import extract_strict


def show_answers(
    console: Console, index: int, question: Question, modes: Sequence[Mode], is_right: Sequence[bool]
) -> None:
    """Print question ``index``, a column a mode. is_right: whether each answer is; empty: that was not asked."""
    console.print(Text(f"\nQuestion {index + 1}: {printable(question.question)}"))
    if is_right:
        console.print(Text(f"Answer: {extract_strict(question.answer)}"))
    table = Table(box=SIMPLE_HEAD, expand=True)
    verdicts = [f": {'right' if right else 'wrong'}" for right in is_right] or [""] * len(modes)
    for mode, verdict in zip(modes, verdicts, strict=True):
        table.add_column(f"{label(mode.checkpoint_interval)}{verdict}", ratio=1)
    outputs = [mode.outputs[index] for mode in modes]
    table.add_row(*(Text(str(output.error) if output.error else printable(output.text.strip())) for output in outputs))
    console.print(table)


def printable(text: str) -> str:
    """The text with what a terminal would obey, rather than show, as escapes; lines stay lines."""
    return "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text)
