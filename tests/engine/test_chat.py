"""Chat templates render as transformers renders them."""

import json

import pytest
from transformers import AutoTokenizer

from statewise.engine.chat import ChatTemplate, special_tokens
from statewise.errors import CheckpointError, RequestError

MESSAGES = [
    {"role": "system", "content": 'Be <brief> & "kind".'},
    {"role": "user", "content": "1 + 1?\n"},
    {"role": "assistant", "content": "It is 2. "},
]
TEMPLATES = {
    "chatml": """{{- bos_token }}
{% for message in messages %}
    {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] | trim + '<|im_end|>\\n' }}
{% endfor %}
{% if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{% endif %}
""",
    "loops and json": """{% for m in messages %}{% if m.role == 'system' %}{% continue %}{% endif %}
  {{ m.role }} {{ m.content | tojson }}
{% endfor %}{% if not add_generation_prompt %}{{ eos_token }}{% endif %}{% if tools %}none{% endif %}""",
    "namespace": """{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}
[{{ ns.n }}] {{ m.content }}
{% endfor %}{{ strftime_now("%Y")[:2] }}""",
}


@pytest.fixture
def templated(broken):
    def make(template, **config):
        path = broken / "tokenizer_config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": template} | config))
        return broken

    return make


@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES)
@pytest.mark.parametrize("add_generation_prompt", [True, False])
def test_as_transformers(templated, template, add_generation_prompt):
    folder = templated(template)
    theirs = AutoTokenizer.from_pretrained(folder).apply_chat_template(
        MESSAGES,
        tokenize=False,
        add_generation_prompt=add_generation_prompt,
        continue_final_message=not add_generation_prompt,
    )
    assert ChatTemplate.load(folder).render(MESSAGES, add_generation_prompt) == theirs


def test_where_it_is_found(templated):
    assert ChatTemplate.load(templated(None)) is None
    named = [{"name": "tools", "template": "b"}, {"name": "default", "template": "a{{ bos_token }}"}]
    folder = templated(named, bos_token={"content": "<s>", "special": True})
    assert ChatTemplate.load(folder).render(MESSAGES) == "a<s>"
    assert special_tokens(folder)["eos_token"] == "<|eos|>"
    (folder / "chat_template.jinja").write_text("c")
    assert ChatTemplate.load(folder).render(MESSAGES) == "c"
    (folder / "chat_template.jinja").unlink()
    (folder / "tokenizer_config.json").unlink()
    assert ChatTemplate.load(folder) is None


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{% if %}", "the chat template cannot be read"),
        (5, "the chat template is 5, expected text"),
        ([{"name": "tools", "template": "b"}], "chat templates tools, none called default"),
    ],
)
def test_a_template_that_cannot_be_read(templated, template, message):
    with pytest.raises(CheckpointError, match=message):
        ChatTemplate.load(templated(template))


@pytest.mark.parametrize(("text", "message"), [("[", "cannot be read"), ("[]", "expected an object")])
def test_a_tokenizer_config_that_cannot_be_read(broken, text, message):
    (broken / "tokenizer_config.json").write_text(text)
    with pytest.raises(CheckpointError, match=message):
        ChatTemplate.load(broken)


def test_messages_that_are_refused():
    with pytest.raises(RequestError, match="refuses the messages: roles must alternate"):
        ChatTemplate("{{ raise_exception('roles must alternate') }}", {}).render(MESSAGES)
    with pytest.raises(RequestError, match="refuses the messages: access to attribute"):
        ChatTemplate("{{ messages.__class__.__mro__ }}", {}).render(MESSAGES)
    with pytest.raises(RequestError, match="cannot be continued"):
        ChatTemplate("x", {}).render(MESSAGES, add_generation_prompt=False)
