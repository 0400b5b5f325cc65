"""Chat templates: messages to one prompt, as the checkpoint's own Jinja template says.

The environment is the one that templates are written for, that of Hugging Face transformers: sandboxed, blocks trimmed,
`raise_exception`, `strftime_now`, a `tojson` that escapes no HTML, loop controls, and the special tokens by name.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from statewise.errors import CheckpointError, RequestError

_END = "\ue000end of the last message\ue000"  # two private characters: no text has this
Message = Mapping[str, Any]  # "role" and "content"


class ChatTemplate:
    """Renders messages. ``source``: the template; ``special``: special tokens by name, as `bos_token`."""

    def __init__(self, source: str, special: Mapping[str, str]):
        """Raises CheckpointError for a template that Jinja cannot read."""
        self.source, self.special = source, dict(special)
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        environment.filters["tojson"] = _to_json
        environment.globals |= {"raise_exception": _raise, "strftime_now": lambda form: datetime.now().strftime(form)}
        try:
            self._template = environment.from_string(source)
        except TemplateError as error:
            raise CheckpointError(f"the chat template cannot be read: {error}") from error

    @classmethod
    def load(cls, folder: Path) -> "ChatTemplate | None":
        """That of a checkpoint folder: `chat_template.jinja`, or in `tokenizer_config.json`; None if it has none.

        Of several named ones it is "default". Raises CheckpointError for files that cannot be read.
        """
        file, config = folder / "chat_template.jinja", _tokenizer_config(folder)
        try:
            source = file.read_text(encoding="utf-8") if file.is_file() else config.get("chat_template")
        except (OSError, UnicodeDecodeError) as error:
            raise CheckpointError(f"{file} cannot be read: {error}") from error
        if isinstance(source, list):
            named = {one.get("name"): one.get("template") for one in source if isinstance(one, dict)}
            source = named.get("default")
            if source is None:
                raise CheckpointError(f"{folder} has chat templates {', '.join(map(str, named))}, none called default")
        if source is None:
            return None
        if not isinstance(source, str):
            raise CheckpointError(f"{folder}: the chat template is {source!r:.60}, expected text")
        return cls(source, special_tokens(folder))

    def render(self, messages: Sequence[Message], add_generation_prompt: bool = True) -> str:
        """One prompt. Without a generation prompt it ends with the last message's content, to be continued.

        Raises RequestError if the template refuses the messages.
        """
        listed = list(messages)
        if not add_generation_prompt:
            listed[-1] = {**listed[-1], "content": f"{listed[-1]['content']}{_END} "}
        try:
            text = self._template.render(
                messages=listed, add_generation_prompt=add_generation_prompt, tools=None, **self.special
            )
        except TemplateError as error:
            raise RequestError(f"the chat template refuses the messages: {error}") from error
        if add_generation_prompt:
            return text
        before, found, after = text.rpartition(_END)
        if not found:
            raise RequestError("the chat template leaves out the last message, so it cannot be continued")
        return before if after.startswith(" ") else before.rstrip()  # without the blank, it strips contents


def special_tokens(folder: Path) -> dict[str, str]:
    """Special tokens of a checkpoint by name: bos_token, eos_token and so on. Empty if the folder names none."""
    tokens = {}
    for name, value in _tokenizer_config(folder).items():
        text = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(text, str):
            tokens[name] = text
    return tokens


def _tokenizer_config(folder: Path) -> dict[str, Any]:
    path = folder / "tokenizer_config.json"
    if not path.is_file():
        return {}
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise CheckpointError(f"{path} holds {config!r:.60}, expected an object")
    return config


def _to_json(value: object, ensure_ascii: bool = False, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)
