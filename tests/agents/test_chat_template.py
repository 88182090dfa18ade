"""Which chat templates may be stored: those that compile, and do little for a short conversation."""

from pathlib import Path

import pytest

from flywheel.agents import chat_template
from flywheel.agents.chat_template import problem

POLICY = Path(__file__).resolve().parents[2] / "workers" / "reference" / "policy"

USABLE = {
    "the reference policy's": (POLICY / "chat_template.jinja").read_text(),
    "one that refuses every role": "{{ raise_exception('no roles here') }}",
    "one that wants tools": "{% for tool in tools %}{{ tool.function.name }}{% endfor %}{{ tools[0].absent.more }}",
    "one that marks what is trained on": "{% generation %}{{ messages[0].content }}{% endgeneration %}",
    "one with all that transformers gives": (
        "{{ bos_token + strftime_now('%d %b %Y') }}{% set ns = namespace(n=0) %}{% macro one(m) %}"
        "{{ m | tojson(indent=2) }}{% endmacro %}{% for m in messages %}{% if loop.index > 3 %}{% break %}{% endif %}"
        "{% set ns.n = ns.n + 1 %}"
        "{{ one(m) }}{% endfor %}{{ dict(a=ns.n) | items | list }}"
    ),
    "one with letters of everywhere": "{{ 'héllo 你好 🎉' }}",
    "an empty one": "",
}
REFUSED = {
    "{% for m in messages %}{{ m.content }}": "does not compile: line 1: Unexpected end of template",
    "a\n{{ messages | nothing }}": "does not compile: line 2: No filter named 'nothing'",
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}": (
        "takes more than 2 s of processor time for a short conversation"
    ),
    "{{ 9 ** (9 ** 9) }}": "takes more than 2 s of processor time for a short conversation",
    "{% for i in range(99999) %}{% for j in range(99999) %}x{% endfor %}{% endfor %}": (
        "makes more than 1,000,000 characters of a short conversation"
    ),
    "{% if tools %}{% for i in range(99999) %}{{ 'x' * 20 }}{% endfor %}{% endif %}": "makes more than 1,000,000",
    "{% set x = 'x' * 1000000000 %}": "needs more than 512 MB of memory for a short conversation",
}


@pytest.mark.parametrize("template", USABLE.values(), ids=USABLE)
def test_a_template_that_does_little_is_taken_whatever_it_refuses(template: str) -> None:
    assert problem(template) == ""


@pytest.mark.parametrize(("template", "why"), REFUSED.items())
def test_one_that_is_broken_or_does_much_is_refused_with_the_reason(template: str, why: str) -> None:
    assert problem(template).startswith(why)


def test_a_template_has_what_transformers_gives_it() -> None:
    compiled = chat_template.environment().from_string(USABLE["one with all that transformers gives"])
    text = compiled.render(messages=[{"role": "user", "content": "é"}] * 5, bos_token="<s>")
    assert text.startswith("<s>")
    assert text.count('{\n  "role": "user",\n  "content": "é"\n}') == 3
    assert text.endswith("[('a', 3)]")


def test_a_template_learns_nothing_of_this_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Even one that got out of Jinja's sandbox would find no key."""
    monkeypatch.setenv("STORY_API_KEY", "secret")
    package = tmp_path / "flywheel" / "agents"
    package.mkdir(parents=True)
    (tmp_path / "flywheel" / "__init__.py").touch()
    (package / "__init__.py").touch()
    (package / "chat_template.py").write_text("import os\nprint(sorted(os.environ))\n")
    monkeypatch.setattr(chat_template, "ROOT", tmp_path)
    assert "PATH" in problem("")
    assert "STORY_API_KEY" not in problem("")
