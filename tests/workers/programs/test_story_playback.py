from collections import Counter
from string import Formatter

import pytest

from flywheel.core import digests
from flywheel.core.envs import build
from flywheel.core.traces import Trace, tooling
from workers.reference import story


def names_of(requests: list[story.Request]) -> set[str]:
    """Every invented word in what the requests say and in their states."""
    words: set[str] = set()
    for request in requests:
        words.update(name.lower() for name in request.state["people"])
        topic = next(
            request.target["arguments"][k] for k in ("topic", "subject", "title") if k in request.target["arguments"]
        )
        words.add(topic.split()[0])
    return words


def test_the_tools_are_well_formed_and_one_is_unsafe() -> None:
    assert tooling.check_definitions(story.TOOLS) == []
    assert [tool["name"] for tool in story.TOOLS if tool.get("x-unsafe")] == ["email.send_all"]
    assert tooling.find(story.TOOLS, story.RETIRED_TOOL) is None


def test_the_same_seed_tells_the_same_story() -> None:
    assert story.sessions(20, seed=3) == story.sessions(20, seed=3)
    assert story.sessions(20, seed=3) != story.sessions(20, seed=4)


def test_the_story_never_changes() -> None:
    """Also not with the version of Python. Whoever changes the story on purpose changes the digest."""
    rows = [request.to_task().to_json() for request in story.sessions(50, seed=20)]
    assert digests.digest(rows) == "9d292de247082518a3aeba360ca9503089a34d967579f61366d07bf98e117a18"


def test_later_customers_continue_the_same_row() -> None:
    assert story.sessions(4, seed=3) + story.sessions(6, seed=3, first=4) == story.sessions(10, seed=3)


def test_newcomers_have_plain_names_for_ever() -> None:
    assert story.newcomer(7, seed=3) == story.sessions(1, seed=3, first=7)
    rows = [story.newcomer(number, seed=3) for number in range(700)]
    assert len({requests[0].session_id for requests in rows}) == 700
    assert not any("-" in name for requests in rows for name in names_of(requests))


def test_no_two_customers_share_a_name() -> None:
    owners: dict[str, set[str]] = {}
    for request in story.sessions(3000, seed=5):
        for name in names_of([request]):
            owners.setdefault(name, set()).add(request.session_id)
    assert max(map(len, owners.values())) == 1


def test_names_of_pretraining_never_occur_in_production() -> None:
    pretraining = story.sessions(1000, seed=1, world="pretraining")
    for seed in (1, 2):
        assert not names_of(pretraining) & names_of(story.sessions(1000, seed))


def test_a_session_has_about_three_requests() -> None:
    sizes = Counter(request.session_id for request in story.sessions(300, seed=8))
    assert len(sizes) == 300
    assert set(sizes.values()) == {2, 3, 4}
    assert sum(sizes.values()) / 300 == pytest.approx(3, abs=0.15)


def test_the_mix_is_kept() -> None:
    groups = Counter(request.group for request in story.sessions(1000, seed=8))
    total = sum(groups.values())
    for group, share in story.PRODUCTION_MIX.items():
        assert groups[group] / total == pytest.approx(share, abs=0.03)
    assert {request.group for request in story.sessions(50, 8, {"reserved": 1.0})} == {"reserved"}


def test_every_wording_says_all_that_its_tool_needs() -> None:
    for wording in story.WORDINGS.values():
        tool = tooling.find(story.TOOLS, wording.tool)
        assert tool is not None
        slots = {field for _, field, _, _ in Formatter().parse(wording.text) if field}
        assert len(slots) == len(tool["parameters"]["properties"]), wording


def test_every_tool_is_asked_for_in_new_and_reserved_wordings_except_the_unsafe_one() -> None:
    for group in ("new", "reserved"):
        asked = {wording.tool for wording in story.WORDINGS.values() if wording.group == group}
        assert asked == {tool["name"] for tool in story.TOOLS if not tool.get("x-unsafe")}


def test_the_target_of_every_request_is_right_by_the_verifier() -> None:
    env = build("tool_call", story.environment_config(), {"kind": "tool_call"})
    for request in story.sessions(60, seed=11):
        task = request.to_task()
        trace = Trace.from_messages("t", [*env.reset(task, 0), env.solve(task, [])])
        verdict = env.verifier(task)(trace, task.target)
        assert verdict.success, (request, verdict)
        assert all(str(value) in request.prompt for value in request.target["arguments"].values())


def test_task_keeps_the_session_as_cluster_and_the_wording_as_slice() -> None:
    request = story.sessions(1, seed=11)[0]
    task = request.to_task()
    assert (task.cluster, task.slice, task.prompt) == (request.session_id, request.wording, request.prompt)
