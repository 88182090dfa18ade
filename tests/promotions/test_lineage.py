"""Lineage of every kind of object, in both directions: all of it, each a link that leads somewhere."""

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import Project, User
from flywheel.agents.models import Agent, SplitUnit, Version
from flywheel.edge.jobs import State
from flywheel.edge.refusals import Missing
from flywheel.environments.models import Suite, Task, TaskSetMember
from flywheel.evals.models import Result
from flywheel.failures.labels.decisions import decide
from flywheel.failures.models import Recurrence
from flywheel.failures.queues import intake
from flywheel.failures.queues.queue_definitions import Wanted, make
from flywheel.promotions.lineage import levels
from flywheel.promotions.lineage.levels import counted, level_of, levels_of
from flywheel.promotions.lineage.passport_kinds import KINDS, find, passport
from flywheel.promotions.lineage.relations import RELATIONS
from flywheel.promotions.models import Candidate, Promotion, Ramp, Watch
from flywheel.training.models import CheckpointVersion, Dataset, FixTrial, TrainingRun
from flywheel.trajectories.models import Source, Trajectory
from tests.conftest import Build, Cast
from tests.promotions.ramps.conftest import Met, held, met, ramp

__all__ = ["held", "met", "ramp"]
SignIn = Callable[[User], Client]


def dataset(cast: Cast, name: str = "mail-sft", **fields: Any) -> Dataset:
    defaults: dict[str, Any] = {"kind": "sft", "digest": "d" * 64, "rows": 2, "recipe": {}, "file": "x", "version": 1}
    return Dataset.objects.create(project=cast.project, name=name, created_by=cast.trainer, **{**defaults, **fields})


def trained(cast: Cast, candidate: Candidate, data: Dataset, produced: Version | None = None) -> TrainingRun:
    return TrainingRun.objects.create(
        project=cast.project,
        created_by=cast.trainer,
        base=candidate.baseline,
        dataset=data,
        task_set=candidate.version_eval.task_set,
        algorithm="sft",
        settings={},
        tuning={"mode": "full"},
        spec_digest="s" * 64,
        state=State.SUCCEEDED,
        produced=produced,
        finished_at=timezone.now(),
    )


def used(cast: Cast, candidate: Candidate, row: Trajectory) -> TrainingRun:
    """The trajectory in a queue, decided, made into two tasks of the candidate's set, trained on, put forward."""
    queue = make(project=cast.project, actor=Actor(cast.builder), wanted=Wanted(name="odd <b>ones</b>"))
    intake.add(queue=queue, keys=[row.pk], actor=Actor(cast.builder))
    decide(trajectory=row, actor=Actor(cast.reviewer), bucket="wrong_tool")
    task_set = candidate.version_eval.task_set
    for split in ("held_out", "train"):
        task = TaskSetMember.objects.filter(task_set=task_set, split=split).order_by("task__number")[0].task
        type(task).objects.filter(pk=task.pk).update(source=row, failure=row.failures.get())
    return trained(cast, candidate, dataset(cast, task_set=task_set), candidate.version)


def guard(cast: Cast, candidate: Candidate) -> Suite:
    """The candidate's task set as a regression suite of its agent."""
    return Suite.objects.create(
        agent=candidate.agent,
        name="no-harm",
        version=1,
        kind="safety",
        task_set=candidate.version_eval.task_set,
        rule="no_failure",
        created_by=cast.builder,
    )


def came_back(candidate: Candidate, *rows: Trajectory) -> Recurrence:
    """The watch saw the bucket again in these."""
    return Recurrence.objects.create(
        project=candidate.project,
        bucket="wrong_tool",
        version=candidate.baseline,
        claim=0.02,
        sessions=40,
        failed=0.5,
        path=[[40, 3.0]],
        trajectories=[row.pk for row in rows],
    )


def shown(project: Project, kind: str, ref: object, way: str) -> dict[str, list[str]]:
    """What each level holds, by its name, where it holds anything; each as many as are counted."""
    known, row = find(kind, str(ref), project)
    found = {}
    for level in levels_of(known, row, project):
        titles = [passport(level.kind, each, project).title for each in level.rows.order_by("pk")]
        assert counted([level])[0].number == len(titles) == len({*level.rows.values_list("pk")}), level
        if titles and level.direction == way:
            found[level.name] = titles
    return found


def answered_by(*versions: Version) -> dict[str, Any]:
    return {"answered_by": sorted(f"{each}:{each.digest}" for each in versions)}


def test_down_from_a_trajectory_to_the_candidate(cast: Cast, build: Build, candidate: Candidate) -> None:
    row = build.trajectory(version=candidate.baseline)
    run = used(cast, candidate, row)
    assert shown(cast.project, "trajectory", row.trace_id, "up") == {"reported": [str(candidate.baseline)]}
    assert shown(cast.project, "trajectory", row.trace_id, "down") == {
        "queue": [f"odd <b>ones</b>, item {row.queue_items.get().pk}"],
        "decision": ["wrong tool"],
        "source": [f"{task} of mail" for task in row.tasks.order_by("pk")],
        "member": [str(candidate.version_eval.task_set)],
        "test": [str(candidate.version_eval), str(candidate.baseline_eval)],
        "lesson": ["mail-sft@1"],
        "data": [str(run)],
        "product": [str(candidate.version)],
        "proposal": [f"{candidate.version} against {candidate.baseline}"],
    }


def test_up_from_a_trajectory_to_the_tasks_that_trained_the_version_which_gave_it(
    cast: Cast, build: Build, candidate: Candidate
) -> None:
    source = build.trajectory("Move it", version=candidate.baseline)
    run = used(cast, candidate, source)
    answer = build.trajectory(claims=answered_by(candidate.version))
    members = TaskSetMember.objects.filter(task_set=candidate.version_eval.task_set, split="train").order_by("task__pk")
    assert shown(cast.project, "trajectory", answer.trace_id, "up") == {
        "answered": [str(candidate.version)],
        "product": [str(run)],
        "data": ["mail-sft@1"],
        "lesson_set": [str(candidate.version_eval.task_set)],
        "lesson": [f"{each.task} of mail" for each in members],
        "correction": ["wrong tool"],
        "source": ["Move it"],
    }


def test_a_bucket_leads_to_all_that_its_failures_became(cast: Cast, build: Build, candidate: Candidate) -> None:
    row = build.trajectory("Move it", version=candidate.baseline)
    run = used(cast, candidate, row)
    other = build.trajectory("another kind")
    decide(trajectory=other, actor=Actor(cast.reviewer), bucket="wrong_arguments")
    Task.objects.filter(failure__in=row.failures.all()).update(bucket="wrong_tool")
    Watch.objects.create(
        promotion=Promotion.objects.get(agent=candidate.agent),
        agent=candidate.agent,
        claims={"bucket:wrong_tool": 0.02},
        read_to=timezone.now(),
    )
    came_back(candidate, row)
    assert shown(cast.project, "bucket", "wrong_tool", "up") == {"category": ["wrong tool"], "labelled": ["Move it"]}
    found = shown(cast.project, "bucket", "wrong_tool", "down")
    assert found["category_task"] == [f"{task} of mail" for task in row.tasks.order_by("pk")]
    assert found["category_claim"] == [str(candidate.baseline)]
    assert found["coming_back"] == ["wrong tool"]
    assert (found["data"], found["product"]) == ([str(run)], [str(candidate.version)])
    assert shown(cast.project, "bucket", "unsafe_action", "up") == {}
    with pytest.raises(Missing, match="no category nothing"):
        find("bucket", "nothing", cast.project)


def test_a_recurrence_leads_to_what_showed_it_and_to_the_version_whose_claim_broke(
    cast: Cast, build: Build, candidate: Candidate
) -> None:
    rows = [build.trajectory(text) for text in ("one", "two", "a third")]
    found = came_back(candidate, *rows[:2])
    up = shown(cast.project, "recurrence", found.pk, "up")
    assert (up["sign"], up["broken_claim"]) == (["one", "two"], [str(candidate.baseline)])
    assert shown(cast.project, "trajectory", rows[0].trace_id, "down") == {"sign": ["wrong tool"]}
    assert shown(cast.project, "trajectory", rows[2].trace_id, "down") == {}
    assert shown(cast.project, "version", candidate.baseline, "down")["broken_claim"] == ["wrong tool"]


def test_a_ramp_leads_to_the_traffic_of_each_arm(cast: Cast, build: Build, ramp: Ramp, met: Met) -> None:
    sessions = [met(True, title="to the candidate"), met(False, title="to live")]
    traced = build.trajectory("by its trace", agent=ramp.agent, session_id="")
    SplitUnit.objects.create(
        split=ramp.split, kind="beginning", name="a digest", trace_id=traced.trace_id, is_candidate=True, share=1
    )
    build.trajectory("of another agent", agent=build.agent("other"), session_id=sessions[0].name)
    build.trajectory("before", agent=ramp.agent)
    candidate = f"{ramp.candidate.version} against {ramp.candidate.baseline}"
    found = shown(cast.project, "ramp", ramp.pk, "down")
    assert found == {"met_candidate": ["to the candidate", "by its trace"], "met_live": ["to live"]}
    up = shown(cast.project, "ramp", ramp.pk, "up")
    assert (up["release"], up["proposal"]) == ([candidate], [str(ramp.candidate.version)])
    title = f"ramp of {ramp.candidate.version}"
    assert shown(cast.project, "candidate", ramp.candidate_id, "down") == {"release": [title]}
    for name, way in (
        ("to the candidate", "met_candidate"),
        ("by its trace", "met_candidate"),
        ("to live", "met_live"),
    ):
        trace_id = Trajectory.objects.get(title=name).trace_id
        assert shown(cast.project, "trajectory", trace_id, "up")[way] == [title]
    unmet = Trajectory.objects.get(title="of another agent")
    assert shown(cast.project, "trajectory", unmet.trace_id, "up") == {}


def test_a_ramp_that_finished_leads_to_its_promotion(cast: Cast, held: Ramp) -> None:
    assert held.promotion
    title = passport(KINDS["promotion"], held.promotion, cast.project).title
    assert shown(cast.project, "ramp", held.pk, "down")["end"] == [title]
    assert shown(cast.project, "promotion", held.promotion_id, "up")["end"] == [f"ramp of {held.candidate.version}"]


def test_a_suite_and_an_environment_lead_to_their_tasks_and_evals(cast: Cast, candidate: Candidate) -> None:
    suite, task_set = guard(cast, candidate), candidate.version_eval.task_set
    evals = [str(candidate.version_eval), str(candidate.baseline_eval)]
    assert shown(cast.project, "suite", suite.pk, "down") == {"guard_run": evals}
    assert shown(cast.project, "suite", suite.pk, "up")["guard"] == [str(task_set)]
    assert shown(cast.project, "task_set", task_set, "down")["guard"] == [f"{suite} of {candidate.agent}"]
    assert shown(cast.project, "eval_run", candidate.version_eval_id, "up")["guard_run"] == [
        f"{suite} of {candidate.agent}"
    ]
    found = shown(cast.project, "environment", "mail", "down")
    task = Task.objects.order_by("pk")[0]
    assert (found["world_set"], found["world"][0]) == ([str(task_set)], f"{task} of mail")
    assert shown(cast.project, "task", f"mail:{task.number}", "up")["world"] == ["mail"]
    Task.objects.update(split="sealed")
    assert "world" not in shown(cast.project, "environment", "mail", "down"), "nobody lists sealed tasks"


def test_a_version_tells_what_it_answered_from_what_is_only_reported(cast: Cast, build: Build, agent: Agent) -> None:
    mine, other = build.version(agent, system_prompt="Mine."), build.version(agent, system_prompt="Other.")
    build.trajectory("alone", claims=answered_by(mine), version=other)
    build.trajectory("in part", claims=answered_by(mine, other), version=mine)
    build.trajectory("reported", version=mine)
    build.trajectory("of another", claims=answered_by(other), version=mine)
    build.trajectory("tried", source=Source.ROLLOUT, version=mine)
    assert shown(cast.project, "version", mine, "down") == {
        "answered": ["alone"],
        "answered_in_part": ["in part"],
        "reported": ["reported"],
    }


def test_a_version_leads_through_its_traffic_to_the_versions_of_the_next_turn(
    cast: Cast, build: Build, candidate: Candidate
) -> None:
    row = build.trajectory(claims=answered_by(candidate.baseline))
    run = used(cast, candidate, row)
    found = shown(cast.project, "version", candidate.baseline, "down")
    assert (found["source"], found["data"]) == ([f"{task} of mail" for task in row.tasks.order_by("pk")], [str(run)])
    assert found["product"] == [str(candidate.version)]
    up = shown(cast.project, "version", candidate.version, "up")
    assert up["gave"] == [str(candidate.baseline)], "whose failures it was trained on"


def test_a_rollout_says_which_task_and_run_it_was(cast: Cast, build: Build, candidate: Candidate) -> None:
    row = build.trajectory("the held-out request", source=Source.ROLLOUT, version=candidate.version)
    result = Result.objects.filter(run=candidate.version_eval)[0]
    Result.objects.filter(pk=result.pk).update(trajectory=row)
    dataset(cast, "demos", task_set=candidate.version_eval.task_set, recipe={"eval_run": candidate.version_eval_id})
    up = shown(cast.project, "trajectory", row.trace_id, "up")
    assert up == {
        "attempted_by": [str(candidate.version)],
        "attempt": [f"{result.task} of mail"],
        "rollout": [str(candidate.version_eval)],
    }
    assert shown(cast.project, "trajectory", row.trace_id, "down") == {"demonstration": ["demos@1"]}
    down = shown(cast.project, "eval_run", candidate.version_eval_id, "down")
    assert down["rollout"] == [str(row)], "what a held-out task asks is not shown"
    assert down["collection"] == ["demos@1"]


def test_datasets_of_trajectories_and_mixes(cast: Cast, build: Build, candidate: Candidate) -> None:
    row = build.trajectory("Copy it", version=candidate.baseline)
    task_set = candidate.version_eval.task_set
    from_set = dataset(cast, "from-set", task_set=task_set)
    from_traffic = dataset(cast, "shown", origin="trajectories", recipe={"from_traces": [row.trace_id]})
    parts = [{"dataset": each.pk} for each in (from_set, from_traffic)]
    dataset(cast, "mixed", task_set=task_set, recipe={"mix": parts})
    up = shown(cast.project, "dataset", "mixed@1", "up")
    assert (up["mix"], up["lesson_set"]) == (["from-set@1", "shown@1"], [str(task_set)])
    assert shown(cast.project, "dataset", "shown@1", "up") == {"demonstration": ["Copy it"]}
    assert shown(cast.project, "dataset", "shown@1", "down") == {"mix": ["mixed@1"]}
    assert shown(cast.project, "trajectory", row.trace_id, "down") == {"demonstration": ["shown@1"]}
    assert shown(cast.project, "task_set", task_set, "down")["lesson_set"] == ["from-set@1", "mixed@1"]


def test_versions_of_checkpoints_and_of_drafts(cast: Cast, build: Build, candidate: Candidate) -> None:
    data = dataset(cast, task_set=candidate.version_eval.task_set)
    run = trained(cast, candidate, data)
    CheckpointVersion.objects.create(
        project=cast.project, created_by=cast.trainer, run=run, step=20, version=candidate.version
    )
    trial = FixTrial.objects.create(
        project=cast.project,
        bucket="wrong_tool",
        parent=candidate.baseline,
        task_set=candidate.version_eval.task_set,
        parent_eval=candidate.baseline_eval,
        created_by=cast.builder,
    )
    trial.drafts.create(place=0, name="brief", version=candidate.version, evaluation=candidate.version_eval)
    up = shown(cast.project, "version", candidate.version, "up")
    assert (up["product"], up["draft"]) == ([str(run)], [str(trial)])
    assert shown(cast.project, "fix_trial", trial.pk, "down")["draft"] == [str(candidate.version)]


def test_a_held_out_task_is_never_said_to_be_trained_on(cast: Cast, build: Build, candidate: Candidate) -> None:
    row = build.trajectory()
    used(cast, candidate, row)
    row.tasks.filter(split="train").update(source=None)
    found = shown(cast.project, "trajectory", row.trace_id, "down")
    assert "member" in found
    assert set(found).isdisjoint({"lesson", "data", "product", "proposal"})


def test_more_than_few_are_followed_too(
    cast: Cast, build: Build, candidate: Candidate, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = build.trajectory(claims=answered_by(candidate.baseline))
    used(cast, candidate, row)
    places = [("trajectory", row.trace_id), ("version", candidate.baseline), ("version", candidate.version)]
    ways = [(kind, ref, way) for kind, ref in places for way in ("up", "down")]
    as_keys = [shown(cast.project, *each) for each in ways]
    monkeypatch.setattr(levels, "FEW", 0)
    assert [shown(cast.project, *each) for each in ways] == as_keys


def test_a_long_list_is_counted_to_a_bound(
    cast: Cast, build: Build, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(levels, "MOST", 2)
    version = build.version(agent)
    for _ in range(3):
        build.trajectory(claims=answered_by(version))
    known, row = find("version", str(version), cast.project)
    [count] = counted([level_of(known, row, cast.project, "down.answered")])
    assert (count.number, count.is_more) == (2, True)


def test_every_relation_leads_both_ways_between_known_kinds() -> None:
    assert {name for each in RELATIONS for name in (each.source, each.target)} == set(KINDS)
    assert len({each.name for each in RELATIONS}) == len(RELATIONS)
    one_way = {each.name for each in RELATIONS if each.down is None or each.up is None}
    others = {"answered_in_part", "attempted_by"}  # of the same kinds, lead back
    of_buckets = {each.name for each in RELATIONS if "bucket" in (each.source, each.target)}  # which are no rows
    assert one_way == others | of_buckets


@pytest.fixture
def everything(cast: Cast, build: Build, candidate: Candidate) -> dict[str, str]:
    """A reference to one object of each kind that `used` makes."""
    row = build.trajectory("<b>Move</b> it", claims=answered_by(candidate.baseline))
    run = used(cast, candidate, row)
    promotion = Promotion.objects.get(agent=candidate.agent)
    task = row.tasks.select_related("environment")[0]
    return {
        "trajectory": row.trace_id,
        "queue_item": str(row.queue_items.get().pk),
        "bucket": "wrong_tool",
        "environment": str(task.environment),
        "suite": str(guard(cast, candidate).pk),
        "recurrence": str(came_back(candidate, row).pk),
        "failure": str(row.failures.get().pk),
        "task": f"{task.environment}:{task.number}",
        "task_set": str(candidate.version_eval.task_set),
        "eval_run": str(candidate.version_eval_id),
        "dataset": "mail-sft@1",
        "training_run": str(run.pk),
        "version": str(candidate.version),
        "candidate": str(candidate.pk),
        "promotion": str(promotion.pk),
    }


def test_every_list_of_every_object_answers_alike_as_page_and_json(
    cast: Cast, everything: dict[str, str], sign_in: SignIn, key: Any, client: Client
) -> None:
    viewer, headers = sign_in(cast.viewer), key("read")
    for kind, ref in everything.items():
        address = reverse("promotions:lineage", args=["acme", kind, ref])
        page = viewer.get(address).content.decode()
        said = client.get(f"/api/v1/lineage/{kind}/{ref}", headers=headers).json()
        assert (said["kind"], said["ref"]) == (kind, ref)
        assert "<b>Move" not in page
        for level in (*said["up"], *said["down"]):
            assert (f"?level={level['key']}" in page) == bool(level["count"]), level
            part = client.get(f"/api/v1/lineage/{kind}/{ref}?level={level['key']}", headers=headers).json()
            assert (len(part["items"]), part["up"], part["down"]) == (level["count"], [], [])
            listed = viewer.get(f"{address}?level={level['key']}").content.decode()
            assert all(f'href="{item["url"]}"' in listed for item in part["items"])
            assert {item["kind"] for item in part["items"]} <= {level["kind"]}


def test_digests_are_those_of_the_objects(
    cast: Cast, everything: dict[str, str], candidate: Candidate, key: Any, client: Client
) -> None:
    digests = {
        kind: client.get(f"/api/v1/lineage/{kind}/{ref}", headers=key("read")).json()["digest"]
        for kind, ref in everything.items()
    }
    assert digests["version"] == candidate.version.digest
    assert digests["candidate"] == candidate.report_digest
    assert digests["dataset"] == "d" * 64
    assert {kind for kind, digest in digests.items() if digest is None} == {
        *("trajectory", "queue_item", "bucket", "environment", "promotion", "recurrence")
    }
    assert all(len(digest) == 64 for digest in digests.values() if digest)


def test_a_list_is_paged(cast: Cast, build: Build, agent: Agent, key: Any, client: Client) -> None:
    version = build.version(agent)
    rows = [build.trajectory(claims=answered_by(version)) for _ in range(3)]
    address = f"/api/v1/lineage/version/{version}?level=down.answered&limit=2"
    first = client.get(address, headers=key("read")).json()
    rest = client.get(f"{address}&cursor={first['next']}", headers=key("read")).json()
    newest = [row.trace_id for row in reversed(rows)]
    assert [item["ref"] for item in (*first["items"], *rest["items"])] == newest
    assert rest["next"] is None


def test_objects_of_another_project_are_not_found(
    cast: Cast, everything: dict[str, str], sign_in: SignIn, key: Any, client: Client
) -> None:
    headers = key("read", by=cast.stranger, project=cast.elsewhere)
    said = client.get(f"/api/v1/lineage/bucket/{everything.pop('bucket')}", headers=headers).json()
    assert {level["count"] for level in (*said["up"], *said["down"])} == {0}, "a built-in one is in every project"
    for kind, ref in everything.items():
        assert client.get(f"/api/v1/lineage/{kind}/{ref}", headers=headers).status_code == 404
        page = reverse("promotions:lineage", args=["elsewhere", kind, ref])
        assert sign_in(cast.stranger).get(page).status_code == 404


@pytest.mark.parametrize(
    ("kind", "ref", "problem"),
    [
        ("ship", "1", "use one of trajectory, queue_item,"),
        ("version", "assistant", "there is no version assistant"),
        ("version", "assistant@99", "there is no version assistant@99"),
        ("version", "assistant@x", "there is no version assistant@x"),
        ("task", "mail@1", "there is no task mail@1"),
        ("eval_run", "9" * 40, "there is no eval 999"),
        ("trajectory", "x" * 300, "there is no trajectory xxx"),
    ],
)
def test_what_there_is_none_of_is_refused(cast: Cast, kind: str, ref: str, problem: str) -> None:
    with pytest.raises(Missing, match=problem):
        find(kind, ref, cast.project)


@pytest.mark.parametrize("name", ["down.nothing", "sideways.answered", "answered", "up."])
def test_an_unknown_level_is_refused(cast: Cast, build: Build, name: str, key: Any, client: Client) -> None:
    answer = client.get(f"/api/v1/lineage/version/{build.version()}?level={name}", headers=key("read"))
    assert answer.status_code == 404
    assert answer.json()["detail"] == f"a version has no level '{name}'"


def test_a_list_asks_for_no_count_and_the_page_of_a_trajectory_asks_for_the_counts(
    cast: Cast, everything: dict[str, str], sign_in: SignIn
) -> None:
    viewer = sign_in(cast.viewer)
    address = reverse("promotions:lineage", args=["acme", "trajectory", everything["trajectory"]])
    with CaptureQueriesContext(connection) as captured:
        page = viewer.get(f"{address}?level=up.answered").content.decode()
    assert not [each for each in captured if "COUNT(" in each["sql"] and "trajectories_" in each["sql"]]
    assert f'hx-get="{address}' in page or 'hx-get="?level=up.answered"' in page
    detail = viewer.get(reverse("trajectories:detail", args=["acme", everything["trajectory"]])).content.decode()
    assert f'hx-get="{address}"' in detail
    part = viewer.get(f"{address}?level=up.answered", headers={"HX-Request": "true"}).content.decode()
    assert "<html" not in part
    assert 'aria-current="true"' in part


def test_of_what_nothing_was_made_little_is_asked(cast: Cast, build: Build) -> None:
    row = build.trajectory()
    known, found = find("trajectory", row.trace_id, cast.project)
    with CaptureQueriesContext(connection) as captured:
        assert not any(count.number for count in counted(levels_of(known, found, cast.project)))
    assert len(captured) <= 8
