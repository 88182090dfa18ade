"""The reference policy: what ships, and that it can be made again."""

import io
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from flywheel.core.traces import Message, tooling
from workers.engines.transformers_engine import TransformersEngine
from workers.reference import build, story, traffic

FILES = {"config.json", "chat_template.jinja", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """A tiny model gains nothing from threads that wait for each other on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def rebuilt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("policy")
    report = io.StringIO()
    build.build(out, steps=12, report=report)
    losses = [float(line.rsplit(" ", 1)[1]) for line in report.getvalue().splitlines() if "loss" in line]
    assert losses[-1] < losses[0] - 1, "a dozen steps teach something"
    return out


@pytest.fixture(scope="module", params=["shipped", "rebuilt"])
def policy(request: pytest.FixtureRequest) -> Path:
    return build.POLICY if request.param == "shipped" else Path(request.getfixturevalue("rebuilt"))


def test_it_is_small_and_only_safetensors(policy: Path) -> None:
    found = {path.name for path in policy.iterdir()}
    assert found >= FILES
    assert found - FILES <= {"README.md"}
    assert (policy / "model.safetensors").stat().st_size < 3_000_000


def test_it_reloads_in_float32_with_all_its_weights(policy: Path) -> None:
    loaded: Any = AutoModelForCausalLM.from_pretrained(policy, local_files_only=True, output_loading_info=True)
    model, info = loaded
    assert not any(info.values())
    assert model.dtype == torch.float32
    assert 600_000 < sum(parameter.numel() for parameter in model.parameters()) < 800_000
    assert model.config.model_type == "qwen3"


def test_it_has_the_shapes_that_the_builder_makes() -> None:
    tokenizer: Any = AutoTokenizer.from_pretrained(build.POLICY, local_files_only=True)
    wanted = {name: tensor.shape for name, tensor in build.make_model(tokenizer).state_dict().items()}
    shipped = {name: tensor.shape for name, tensor in load_file(build.POLICY / "model.safetensors").items()}
    assert shipped == {name: shape for name, shape in wanted.items() if name != "lm_head.weight"}


def test_its_tokenizer_and_template_are_those_that_the_builder_makes() -> None:
    made = build.make_tokenizer()
    shipped: Any = AutoTokenizer.from_pretrained(build.POLICY, local_files_only=True)
    assert shipped.get_vocab() == made.get_vocab()
    assert shipped.chat_template == made.chat_template
    text = "Let Žofie know about the luso audit — 10 €."
    assert shipped.encode(text) == made.encode(text)
    assert shipped.decode(shipped.encode(text)) == text


def test_a_prompt_is_a_prefix_of_the_whole_conversation(policy: Path) -> None:
    """What TRL needs to tell the answer's tokens from the prompt's."""
    tokenizer: Any = AutoTokenizer.from_pretrained(policy, local_files_only=True)
    for request in story.sessions(5, seed=2):
        prompt = [{"role": "system", "content": story.SYSTEM_PROMPT}, {"role": "user", "content": request.prompt}]
        for messages in (prompt, prompt[1:]):
            answered = [*messages, {"role": "assistant", "content": request.answer}]
            before, whole = (
                tokenizer.apply_chat_template(rows, add_generation_prompt=opened, tokenize=True, return_dict=False)
                for rows, opened in ((messages, True), (answered, False))
            )
            assert whole[: len(before)] == before
            assert tokenizer.decode(whole[len(before) :]) == request.answer + build.END
            assert whole[-1] == tokenizer.eos_token_id


def test_the_builder_trains_on_what_the_template_renders() -> None:
    tokenizer = build.make_tokenizer()
    request = story.sessions(1, seed=2)[0]
    ids, labels = build.encode(tokenizer, [build.talk(story.SYSTEM_PROMPT, (request.prompt, request.answer))])
    rendered = tokenizer.apply_chat_template(
        [
            {"role": "system", "content": story.SYSTEM_PROMPT},
            {"role": "user", "content": request.prompt},
            {"role": "assistant", "content": request.answer},
        ],
        tokenize=True,
        return_dict=False,
    )
    assert ids[0].tolist() == rendered
    assert tokenizer.decode(labels[labels >= 0].tolist()) == request.answer + build.END


def test_what_it_learned_from_has_the_faults_of_a_log() -> None:
    answers = [answer for _, answer in build.logged(3000)]
    broken = sum(not tooling.parse_call(Message("assistant", answer)).call for answer in answers)
    assert broken / 3000 == pytest.approx(build.CUT_OFF, abs=0.01)
    assert any(story.RETIRED_TOOL in answer for answer in answers)
    assert list(build.logged(50)) == list(build.logged(3000))[:50]


def test_a_rebuilt_policy_can_be_asked(rebuilt: Path) -> None:
    engine = TransformersEngine(rebuilt, device="cpu")
    rollouts = traffic.answer(engine, story.sessions(3, seed=2))
    assert all(rollout.responses[0].tokens_out for rollout in rollouts)
    assert not any(rollout.error for rollout in rollouts)


def test_it_behaves_as_its_card_says() -> None:
    """Right about most requests in known wordings, wrong about most in new ones, in each of the real ways."""
    engine = TransformersEngine(build.POLICY, device="cpu")
    kinds = {}
    for group in ("known", "new"):
        rollouts = traffic.answer(engine, story.sessions(70, 41, {group: 1.0}))
        kinds[group] = Counter(_kind(rollout.messages[-1].content, rollout.task.target) for rollout in rollouts)
    assert 0.45 <= kinds["known"]["right"] / kinds["known"].total() <= 0.75
    assert kinds["new"]["right"] / kinds["new"].total() < 0.20
    seen = kinds["known"] + kinds["new"]
    assert {"wrong argument", "wrong tool", "broken JSON", "hallucinated tool"} <= set(seen)


def _kind(text: str, target: Mapping[str, object]) -> str:
    call = tooling.parse_call(Message("assistant", text)).call
    if call is None:
        return "broken JSON"
    if tooling.find(story.TOOLS, call.name) is None:
        return "hallucinated tool"
    if call.name != target["tool"]:
        return "wrong tool"
    return "right" if call.arguments == target["arguments"] else "wrong argument"
