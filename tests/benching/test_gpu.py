"""The table of training on a GPU: what it says where there is none, and of what did not go well."""

import sys

import pytest

from tests import gpu


def test_without_a_gpu_nothing_is_measured_and_nothing_written(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["gpu"])
    before = gpu.PAGE.read_text()
    with pytest.raises(SystemExit) as ended:
        gpu.main()
    assert ended.value.code == gpu.NO_GPU
    assert "no GPU is here" in capsys.readouterr().err
    assert gpu.PAGE.read_text() == before
    assert before.count(gpu.BEGIN) == before.count(gpu.END) == 1


def test_speed_leaves_the_first_step_out() -> None:
    steps = {number: {"step_time_s": 60.0 if number == 1 else 2.0, "tokens": 100.0 * number} for number in (1, 2, 3)}
    assert gpu.speed(steps) == 50


def test_a_row_that_failed_has_no_numbers_and_says_why() -> None:
    good = {
        "model": "tiny",
        "name": "SFT",
        "ours": 1234.0,
        "bare": 1200.0,
        "ratio": 1.028,
        "in_vllm": True,
        "problem": "",
    }
    bad = good | {
        "name": "GRPO",
        "ours": None,
        "bare": None,
        "ratio": None,
        "in_vllm": None,
        "problem": "out of memory",
    }
    found = {"device": "a GPU", "versions": {"torch": "2"}, "rows": [good, bad], "left_out": ["tiny, QLoRA: no"]}
    lines = gpu.table(found).splitlines()
    assert lines[0] == "a GPU; torch 2"
    assert "| tiny | SFT | 1,234 | 1,200 | 1.03 | yes | yes |  |" in lines
    assert "| tiny | GRPO | – | – | – | – | – | out of memory |" in lines
    assert lines[-1] == "Left out: tiny, QLoRA: no."
