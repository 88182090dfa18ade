"""What vLLM is told of a base; that it does so is tried by `make test-serve`."""

import json
from pathlib import Path

import pytest

from tests.workers.engines.test_tool_calls import TEMPLATES, tokenizer_with
from workers.processes.vllm_process import CannotServe
from workers.programs.vllm_server import reading
from workers.reference.build import POLICY


@pytest.mark.parametrize("template", ["llama3_1", "glm4moe", "gptoss", "qwen3_5_think", "gemma4_v5"])
def test_calls_are_read_by_the_response_template_of_the_bases_own(tmp_path: Path, template: str) -> None:
    base, aside = tmp_path / "base", tmp_path / "aside"
    tokenizer = tokenizer_with(TEMPLATES[template].read_text())
    del tokenizer.response_template
    tokenizer.save_pretrained(base)
    assert reading(base, aside) == ["--tokenizer", str(aside), "--tool-call-parser", "hf"]
    config = json.loads((aside / "tokenizer_config.json").read_bytes())
    assert "tool_calls" in config["response_template"]["fields"]
    assert (aside / "chat_template.jinja").read_text() == TEMPLATES[template].read_text()


@pytest.mark.parametrize("template", ["qwen3", "qwen2_5"])
def test_templates_that_write_as_hermes_are_read_so(tmp_path: Path, template: str) -> None:
    tokenizer = tokenizer_with(TEMPLATES[template].read_text())
    tokenizer.save_pretrained(tmp_path)
    assert reading(tmp_path, tmp_path / "aside") == ["--tool-call-parser", "hermes"]


def test_of_a_template_that_nobody_knows_hermes_is_read(tmp_path: Path) -> None:
    assert reading(POLICY, tmp_path) == ["--tool-call-parser", "hermes"]


def test_a_base_whose_tokenizer_is_cut_is_refused_with_its_place(tmp_path: Path) -> None:
    for path in POLICY.glob("*.json"):
        (tmp_path / path.name).write_bytes(path.read_bytes()[:20])
    with pytest.raises(CannotServe, match=f"the tokenizer in {tmp_path} cannot be loaded"):
        reading(tmp_path, tmp_path / "aside")
