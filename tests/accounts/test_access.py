"""Every URL, page and API call: what it declares, and that it holds for the anonymous, the stranger, and each role.

A new URL joins the table below with its permission; a new kind of object in a URL joins `world`.
"""

import io
import re
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from django.apps import apps
from django.db import connection
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver, reverse
from django.utils import timezone
from ninja.operation import Operation

from flywheel.accounts.access import ANYONE, SCOPE_NEEDS, SIGNED_IN, Key
from flywheel.accounts.actors import Actor
from flywheel.accounts.models import GRANTS, ApiKey, Membership, ModelPrice, NoticeEvent, Permission, Role, Scope, User
from flywheel.accounts.notices import notify
from flywheel.agents.models import Artifact, HubVersion, RewardModel, ShadowCopy, SplitUnit
from flywheel.core.evidence.ramp.ramp_plan import Plan, Shadow
from flywheel.edge.jobs import State
from flywheel.environments.models import Generation, Proving, RewardRecipe, Trial, WorldTrial
from flywheel.environments.playground.episode_moves import start as start_play
from flywheel.environments.task_sets.suite_definitions import put as put_suite
from flywheel.evals.models import EvalRun, Rescore, Result, RewardAudit
from flywheel.failures.buckets.bucket_definitions import Wanted, define
from flywheel.failures.models import Cluster, Clustering, Queue, QueueItem
from flywheel.promotions.models import Candidate, Ramp
from flywheel.promotions.ramps.ramp_moves import advance as advance_ramp
from flywheel.promotions.ramps.ramp_moves import begin as begin_ramp
from flywheel.promotions.ramps.ramp_moves import start as start_ramp
from flywheel.server.api import api
from flywheel.training.models import (
    Dataset,
    DatasetBuild,
    FixTrial,
    Pipeline,
    PromptAttempt,
    PromptSearch,
    TokenPreview,
)
from flywheel.trajectories.annotations import comments
from flywheel.trajectories.import_export import uploads
from flywheel.trajectories.models import Batch, Import, Quarantined, Source
from flywheel.trajectories.operations import bulk_actions
from flywheel.trajectories.search import saved_views
from tests.conftest import Build, Cast
from tests.edge.test_jobs import training_run
from tests.environments.shop import shop
from tests.environments.versions.test_reward_parts import CANARIES
from tests.promotions.conftest import agent, candidate, evaluated

__all__ = ["agent", "candidate", "evaluated"]

PAGES = {
    ANYONE: "accounts:login accounts:logout accounts:demo healthz readyz",
    SIGNED_IN: """
        home accounts:profile accounts:mailed_notices accounts:demo_switch
        help:index help:glossary help:guide help:design help:image
    """,
    "key:ingest": "ingest:traces ingest:logs ingest:metrics",
    "key:gateway": "gateway:chat_completions gateway:responses gateway:models",
    "key:attempt": "attempts:tools attempts:tool attempts:mcp attempts:lease attempts:result",
    Permission.VIEW: """
        overview:index overview:scene overview:find notices:index notices:read_all notices:read
        agents:index agents:agent agents:version agents:difference agents:choose_difference
        agents:downloads agents:download agents:hub_version agents:hub_version_live
        trajectories:index trajectories:facets trajectories:export
        trajectories:detail trajectories:conversation trajectories:steps
        trajectories:step trajectories:turn trajectories:search trajectories:totals
        trajectories:download trajectories:connect trajectories:connect_live trajectories:preview
        trajectories:choose_columns trajectories:save_view trajectories:delete_view trajectories:open_with
        trajectories:bulk_actions trajectories:start_bulk trajectories:bulk trajectories:bulk_live
        trajectories:cancel_bulk trajectories:resume_bulk trajectories:bulk_file
        trajectories:metrics trajectories:metrics_figures
        trajectories:comments trajectories:read_comments
        failures:index failures:bucket failures:queue failures:review failures:corrected failures:panel
        failures:queues failures:queue_detail failures:queue_agreement failures:desk failures:item
        failures:similar failures:clustering failures:clustering_live failures:cluster failures:neighbours
        failures:detectors failures:detector failures:agreement
        environments:index environments:environment environments:setting environments:task environments:task_set
        environments:reward_recipes environments:reward_recipe environments:reward_models environments:reward_model
        environments:make environments:taskless
        environments:generation_live environments:play environments:play_live
        evals:index evals:pair evals:run evals:live evals:matrix evals:compare evals:changed
        evals:rescores evals:rescore evals:rescore_live environments:proving_live evals:people evals:grid
        evals:reward evals:reward_audits evals:reward_audits_of evals:reward_audit evals:serving
        training:index training:recommendations training:datasets training:dataset training:dataset_rows training:run
        training:build training:build_live training:preview training:preview_live training:tried
        training:compare training:run_file training:checkpoints
        training:pipelines training:pipeline training:pipeline_live
        training:live training:rollouts training:fixes training:fix_trial training:fix_trial_live
        training:searches training:search training:search_live training:proposal
        promotions:index promotions:candidate promotions:final promotions:lineage promotions:suites
        promotions:suites_beside promotions:ramps promotions:ramp promotions:ramp_live
        promotions:turns promotions:turn promotions:draft
        promotions:shadow promotions:shadow_pair
    """,
    Permission.REVIEW: """
        promotions:say_verdict
        evals:judge_output evals:undo_judgement evals:finish_reward_audit
        trajectories:say trajectories:edit_comment trajectories:delete_comment trajectories:people
        failures:label failures:undo failures:correction failures:add_to_queue
        failures:take failures:decide failures:decline failures:skip failures:requeue failures:hold failures:take_back
        failures:reopen
        failures:steer_bucket failures:close_bucket failures:reopen_bucket failures:answer_recurrence
        failures:start_clustering failures:cancel_clustering failures:resume_clustering failures:delete_clustering
        failures:merge_clusters failures:name_cluster failures:move_members failures:take_apart failures:send_cluster
        failures:label_cluster
    """,
    Permission.BUILD: """
        agents:new agents:new_version agents:merge agents:cancel_hub_version agents:resume_hub_version
        failures:new_queue failures:edit_queue failures:archive_queue
        failures:define_bucket failures:edit_bucket failures:archive_bucket
        trajectories:import trajectories:map trajectories:map_preview trajectories:discard
        trajectories:import_job trajectories:import_live trajectories:cancel_import trajectories:resume_import
        trajectories:quarantine trajectories:quarantined trajectories:quarantined_raw trajectories:replay
        trajectories:dismiss trajectories:replay_group trajectories:dismiss_group trajectories:reread
        trajectories:start_reread trajectories:version_from_traffic
        environments:sandbox
        environments:create environments:server_starter
        environments:make_task environments:make_version environments:make_all environments:freeze
        environments:export environments:import_tasks environments:look_at_tasks environments:discard_tasks
        environments:import_eval
        environments:generate environments:cancel_generation environments:resume_generation environments:retire
        environments:play_any environments:start_play environments:say environments:ask environments:take_back
        environments:judge_play environments:stop_play environments:vary
        environments:world environments:write_task environments:try_world environments:world_trial
        environments:stop_world_trial environments:say_right
        environments:make_recipe
        environments:verifier environments:trial environments:prove environments:stop_trial environments:stop_proving
        promotions:put_suite promotions:retire_suite promotions:run_suite promotions:start_turn promotions:freeze_draft
        evals:new evals:cancel evals:resume evals:start_rescore evals:cancel_rescore
        evals:resume_rescore evals:begin_reward_audit training:try_fix
        training:propose_prompts training:cancel_search training:resume_search training:try_proposals
    """,
    Permission.TRAIN: """
        training:launch training:prompt_stage training:provider_file training:mix training:upload_dataset
        training:demonstrations training:dataset_format training:cancel_build training:resume_build
        training:cancel training:resume training:repeat training:checkpoint_version
        training:cancel_rest promotions:propose
        training:choose_preview training:cancel_preview training:resume_preview
        training:stop_pipeline training:resume_pipeline training:retry_pipeline training:let_pipeline_on
        training:end_pipeline
        promotions:run_suites
        training:collect training:write_dataset training:drop_rollout training:take_rollout_back training:measure_fix
    """,
    Permission.APPROVE: """
        promotions:plan promotions:move_ramp overview:harm
        promotions:approve promotions:reject promotions:open_sealed promotions:roll_back promotions:first
        promotions:say_why
        promotions:harmless evals:override_reward_audit
    """,
    Permission.ADMIN: """
        promotions:policy trajectories:connect_key evals:choose_base
        trajectories:costs trajectories:start_costs trajectories:cancel_costs
        trajectories:delete trajectories:redaction_dry_run settings:retention settings:retention_preview
        settings:index settings:add_member settings:set_roles settings:become_approver settings:keys settings:make_key
        settings:revoke_key failures:switch_detector failures:point_detector
        settings:gateway settings:providers settings:try_provider settings:remove_provider
        settings:prices settings:set_device_hour settings:end_price
        settings:redaction settings:try_redaction settings:audit
        settings:notices settings:try_notice_target settings:remove_notice_target settings:send_notices_again
    """,
}
CALLS = {
    Scope.INGEST: "import_trajectories give_feedback",
    Scope.GATEWAY: "assign_session",
    Scope.READ: """
        list_agents get_agent get_live_version list_versions get_version propose_version list_version_changes
        list_version_downloads download_version get_fetched_version
        list_trajectories get_trajectory export_trajectories list_feedback list_batches
        get_trajectory_outline search_trajectory get_trajectory_totals
        get_metrics list_reward_models get_reward_model
        list_views export_many list_bulk_actions get_bulk_action get_bulk_file
        list_comments list_mentions get_facets list_notices read_notices
        list_buckets get_bucket list_failures get_labels
        list_detectors get_detector get_agreement
        list_queues get_queue list_queue_items get_queue_item get_queue_agreement
        list_clusterings get_clustering list_clusters get_cluster list_cluster_members find_similar
        list_rollouts list_entities
        list_environments get_environment get_generation get_play get_play_state
        list_tasks list_failures_without_task get_task list_task_sets get_task_set get_task_set_power
        list_task_set_openings list_task_set_contamination list_dataset_contamination get_task_grid
        list_verifier_parts get_proofs list_verifier_probes list_reward_recipes get_reward_recipe
        list_evals get_eval list_eval_results compare_evals get_rescore list_rescored get_verifier_agreement
        list_reward_audits get_reward_audit list_audited_outputs list_audited_tasks get_reward_standing
        list_recommendations list_datasets get_dataset list_dataset_rows get_dataset_build
        list_fix_trials get_fix_trial get_bucket_evidence choose_examples
        list_prompt_searches get_prompt_search list_prompt_proposals
        list_runs get_run list_run_points list_run_alerts list_run_attempts list_run_events
        compare_training_runs list_repeats list_run_files get_run_file list_checkpoints get_training_sweep
        get_run_forecast
        get_token_preview list_pipelines get_pipeline
        list_candidates get_candidate list_never_events list_promotions get_lineage
        list_suites get_suites_of_live list_candidate_suites
        propose_ramp_plan get_ramp list_agent_ramps list_turns get_turn get_draft
        get_shadow list_shadow_calls
    """,
    Scope.REVIEW: """
        say_shadow_verdict
        judge_audited_output undo_audit_judgement finish_reward_audit
        save_view delete_view tag_trajectories queue_trajectories cancel_bulk_action resume_bulk_action read_mentions
        comment edit_comment delete_comment
        label_trajectory undo_label add_to_queue take_queue_item hold_queue_item release_queue_item review_queue_item
        decline_queue_item undo_queue_review reopen_queue_item
        steer_bucket close_bucket reopen_bucket answer_recurrence
        cluster_failures cancel_clustering resume_clustering delete_clustering merge_clusters name_cluster
        move_cluster_members take_cluster_apart label_cluster
    """,
    Scope.BUILD: """
        export_environment import_tasks import_openai_eval
        create_agent create_version create_version_from_traffic make_queue change_queue define_bucket change_bucket
        upload_version merge_version fetch_version
        list_quarantined get_quarantined replay_quarantined dismiss_quarantined
        create_environment make_environment_version make_task make_all_tasks make_tasks_of_many retire_task
        make_variants
        freeze_task_set generate_tasks cancel_generation play make_move ask_for_move take_move_back judge_play
        stop_play
        make_reward_recipe try_verifier get_trial cancel_trial prove_tasks cancel_proofs judge_verifier_probes
        claim_attempts create_eval cancel_eval resume_eval rescore_eval cancel_rescore resume_rescore begin_reward_audit
        list_sandboxes
        try_world get_world_trial write_task say_right
        put_suite retire_suite run_suite start_turn freeze_draft try_fix
        search_prompts try_prompt_proposals cancel_prompt_search resume_prompt_search
    """,
    Scope.TRAIN: """
        collect_rollouts write_dataset drop_rollout take_rollout_back
        recommend_fix build_dataset mix_datasets upload_dataset demonstrate check_dataset_contamination
        launch_run forecast_run cancel_run resume_run repeat_run preview_tokens
        cancel_dataset_build resume_dataset_build make_checkpoint_version launch_training_sweep cancel_training_sweep
        launch_pipeline stop_pipeline resume_pipeline retry_pipeline let_pipeline_on end_pipeline
        propose_candidate run_candidate_suites measure_fix
    """,
    Scope.APPROVE: """
        begin_ramp hold_ramp go_on_with_ramp advance_ramp stop_ramp take_ramp_back finish_ramp
        approve_candidate reject_candidate call_attempt_harmless open_sealed roll_back give_reason override_reward_audit
    """,
    Scope.ADMIN: """
        set_detector
        list_members set_member_roles list_keys make_key revoke_key list_audit_entries
        list_provider_keys enter_provider_key try_provider_key remove_provider_key
        list_notice_targets put_notice_target try_notice_target remove_notice_target list_dead_notices
        send_notices_again
        list_prices listed_prices set_price remove_price device_hour set_device_hour
        derive_costs get_derived_costs cancel_derived_costs
        delete_trajectory delete_trajectories get_retention set_retention
    """,
}

GLOBAL = {("failures", "detector"), ("training", "format")}
"""Words in a URL that name no project's object: a detector is one of the core's, a file has a provider's format."""


@dataclass(frozen=True)
class Page:
    name: str
    room: str
    route: str
    parameters: tuple[str, ...]
    permission: str | None

    def __str__(self) -> str:
        return self.name

    @property
    def is_of_a_project(self) -> bool:
        return "project" in self.parameters

    def url(self, **values: Any) -> str:
        return reverse(self.name, kwargs={name: values[name] for name in self.parameters})


def walk(resolver: URLResolver, route: str = "", spaces: tuple[str, ...] = ()) -> Iterator[Page]:
    for pattern in resolver.url_patterns:
        whole = route + str(pattern.pattern)
        if isinstance(pattern, URLPattern):
            yield Page(
                name=":".join([*spaces, pattern.name or whole]),
                room=spaces[0] if spaces else "",
                route=whole,
                parameters=tuple(re.findall(r"<(?:\w+:)?(\w+)>", whole)),
                permission=getattr(pattern.callback, "permission", None),
            )
        elif pattern.namespace != "api":
            yield from walk(pattern, whole, (*spaces, *([pattern.namespace] if pattern.namespace else [])))


@dataclass(frozen=True)
class Call:
    method: str
    path: str
    operation: Operation

    def __str__(self) -> str:
        return str(self.operation.operation_id or self.operation.view_func.__name__)

    @property
    def key(self) -> Key | None:
        keys = [auth for auth in self.operation.auth_callbacks if isinstance(auth, Key)]
        return keys[0] if len(keys) == len(self.operation.auth_callbacks) == 1 else None

    def url(self, values: dict[str, Any]) -> str:
        return "/api/v1" + re.sub(r"{(?:\w+:)?(\w+)}", lambda match: str(values[match[1]]), self.path)


PAGE_LIST = sorted(walk(get_resolver()), key=str)
PROJECT_PAGES = [page for page in PAGE_LIST if page.is_of_a_project]
CALL_LIST = sorted(
    (
        Call(method, f"{prefix}{path}", operation)
        for prefix, router in api._routers
        for path, view in router.path_operations.items()
        for operation in view.operations
        for method in operation.methods
    ),
    key=str,
)
PLACEHOLDERS: dict[str, Any] = dict.fromkeys(["pk", "number", "version", "candidate", "baseline"], 1)


def nonsense(page: Page, project: str) -> str:
    """The page's address with objects that need not exist: who may pass is decided before anything is looked up."""
    values = {name: PLACEHOLDERS.get(name, 1 if f"<int:{name}>" in page.route else "x") for name in page.parameters}
    return page.url(**{**values, "project": project})


def either(client: Client, url: str, **more: Any) -> Any:
    """GET, or POST where there is no GET."""
    answer = client.get(url, **more)
    return client.post(url, **more) if answer.status_code == 405 else answer


# What each declares


def test_every_page_declares_its_permission_and_the_table_knows_it() -> None:
    expected = {name: permission for permission, names in PAGES.items() for name in names.split()}
    assert {page.name: page.permission for page in PAGE_LIST} == expected


def test_every_api_call_wants_a_key_with_the_scope_of_the_table() -> None:
    expected = {name: scope for scope, names in CALLS.items() for name in names.split()}
    assert {str(call): call.key.scope if call.key else None for call in CALL_LIST} == expected


def test_nothing_of_a_project_is_open_to_everybody() -> None:
    assert {page.permission for page in PROJECT_PAGES} <= set(Permission)


# Who is kept out


@pytest.mark.django_db
@pytest.mark.parametrize("page", PROJECT_PAGES, ids=str)
def test_a_page_keeps_out_who_may_not(
    page: Page, cast: Cast, client: Client, sign_in: Callable[[User], Client]
) -> None:
    url = nonsense(page, cast.project.slug)
    answer = either(client, url)
    assert (answer.status_code, answer.headers["Location"].startswith("/account/login/")) == (302, True)
    assert either(sign_in(cast.stranger), url).status_code == 404
    assert either(sign_in(cast.stranger), nonsense(page, "no-such-project")).status_code == 404
    for role in Role:
        answer = either(sign_in(getattr(cast, role)), url) if page.permission not in GRANTS[role] else None
        if answer is not None:
            assert answer.status_code == 403, role
            assert b"Roles that can: " in answer.content


@pytest.mark.django_db
@pytest.mark.parametrize("page", [page for page in PAGE_LIST if page.permission == SIGNED_IN], ids=str)
def test_an_account_page_wants_a_login(page: Page, client: Client) -> None:
    assert client.get(nonsense(page, "none")).headers["Location"].startswith("/account/login/")


@pytest.mark.django_db
@pytest.mark.parametrize("call", CALL_LIST, ids=str)
def test_a_call_keeps_out_who_may_not(
    call: Call, cast: Cast, client: Client, key: Callable[..., dict[str, str]]
) -> None:
    url = call.url({name: PLACEHOLDERS.get(name, 1) for name in re.findall(r"(\w+)}", call.path)})
    assert call.key is not None

    def ask(headers: dict[str, str] | None = None) -> int:
        return int(client.generic(call.method, url, "{}", "application/json", headers=headers).status_code)

    assert ask() == 401
    assert ask({"authorization": "Bearer fw_000000000000_x"}) == 401
    others = [scope for scope in Scope if scope != call.key.scope]
    assert ask(key(*others)) == 403, "every other scope is not enough"
    needed = SCOPE_NEEDS[call.key.scope]
    for role in [role for role in Role if needed not in GRANTS[role]]:
        assert ask(key(call.key.scope, by=getattr(cast, role))) == 403, f"a key of a {role}"
    headers = key(call.key.scope, by=cast.approver if needed == Permission.APPROVE else cast.admin)
    ApiKey.objects.update(revoked_at="2026-01-01T00:00Z")
    assert ask(headers) == 401, "revoked"


# Objects of another project


@dataclass(frozen=True)
class World:
    """One object of every kind that a URL can name, all of the project acme."""

    everyone: User
    """Has every role in acme."""
    values: dict[tuple[str, str], Any]

    def of(self, page: Page) -> dict[str, Any]:
        missing = [name for name in page.parameters if name != "project" and (page.room, name) not in self.values]
        assert not missing, f"teach `world` what {missing} means in {page.route}"
        return {name: self.values[page.room, name] for name in page.parameters if name != "project"}


def rollout(run: EvalRun) -> Result:
    """One that may be trained on."""
    collected = EvalRun.objects.create(
        project=run.project,
        created_by=run.created_by,
        version=run.version,
        task_set=run.task_set,
        split="train",
        state="succeeded",
        samples=1,
        verifier_digest=run.verifier_digest,
    )
    task = run.task_set.tasks.order_by("number")[0]
    return Result.objects.create(run=collected, task=task, sample=0, seed=0, score=1.0, success=True)


def shadow_copy(build: Build, ramp: Ramp) -> ShadowCopy:
    """A call at which the two versions differ."""
    live = build.trajectory(session_id="met 1", agent=ramp.agent)
    own = build.trajectory(source=Source.SHADOW, agent=ramp.agent)
    answer = {"invalid": False, "unsafe": False, "error": False, "tokens": 5, "ms": 20.0}
    return ShadowCopy.objects.create(
        split=ramp.split,
        kind=SplitUnit.Kind.SESSION,
        name="met 1",
        trace_id=live.trace_id,
        span_id=live.steps.filter(kind="assistant")[0].span_id,
        copy_trace_id=own.trace_id,
        state=ShadowCopy.State.COMPARED,
        differs=True,
        at=timezone.now() - timedelta(hours=1),
        pair={
            "same_tools": False,
            "same_arguments": None,
            "live": {**answer, "tools": ["search"]},
            "candidate": {**answer, "tools": ["send_email"], "unsafe": True},
        },
    )


def ramp_of(build: Build, cast: Cast, candidate: Candidate) -> Ramp:
    """One that runs, with a session in each arm and one that both versions answered. The candidate waits as before."""
    ramp = begin_ramp(
        candidate=candidate,
        plan=Plan(quiet_s=60, shadow=Shadow()),
        actor=Actor(cast.approver),
        reason="by steps",
        generation=candidate.agent.generation,
        override=True,
    )
    start_ramp(ramp=ramp)
    advance_ramp(ramp=ramp, actor=None, reason="enough was seen", generation=ramp.generation)
    shadow_copy(build, ramp)
    Candidate.objects.filter(pk=candidate.pk).update(state=Candidate.State.WAITING)
    for number, (is_candidate, part) in enumerate(((True, 1.0), (False, 0.0)), 1):
        row = build.trajectory(session_id=f"met {number}", agent=candidate.agent)
        SplitUnit.objects.create(
            split=ramp.split,
            kind=SplitUnit.Kind.SESSION,
            name=row.session_id,
            trace_id=row.trace_id,
            is_candidate=is_candidate,
            share=500,
            number=number,
            frozen_at=row.started_at,
            parts={"failed": part},
            wealth={"failed": 2.0 / number},
            trajectories=100,
        )
    SplitUnit.objects.create(
        split=ramp.split, kind=SplitUnit.Kind.TRACE, name="met 3", is_candidate=True, share=500, mixed="two_versions"
    )
    return ramp


@pytest.fixture
def world(cast: Cast, build: Build, candidate: Candidate) -> World:
    everyone = User.objects.create_user(username="everyone")
    for role in Role:
        Membership.objects.create(user=everyone, project=cast.project, role=role)
    trajectory = build.trajectory(proposed_bucket="wrong_tool", proposed_score=0.9)
    bucket = define(project=cast.project, actor=Actor(everyone), wanted=Wanted("Refund promised", "other"))
    run = candidate.version_eval
    task = run.task_set.members.filter(split="held-out").first() or run.task_set.members.first()
    assert task is not None
    training = training_run(build)
    pipeline = Pipeline.objects.create(project=cast.project, base=training.base, created_by=cast.trainer)
    pipeline.stages.create(
        number=1,
        algorithm=training.algorithm,
        task_set=training.task_set,
        dataset=training.dataset,
        tuning=training.tuning,
        settings=training.settings,
    )
    learnt = rollout(run)
    api_key, _ = ApiKey.make(cast.project, "test", ["read"], cast.admin)
    price = ModelPrice.objects.create(project=cast.project, model="m", price_in=1, price_out=2)
    batch = Batch.objects.create(
        project=cast.project, format="otlp", received=1, inserted=0, updated=0, duplicate=0, rejected=1
    )
    rejected = Quarantined.objects.create(project=cast.project, batch=batch, at="span 0", reason="bad", content=b"{}")
    EvalRun.submit(
        key=uuid.uuid4(),
        project=cast.project,
        actor=Actor(cast.builder),
        version=run.version,
        task_set=run.task_set,
        verifier_digest=run.verifier_digest,
    )
    imported, _ = Import.submit(
        key=uuid.uuid4(), project=cast.project, actor=Actor(cast.builder), name="runs.jsonl", upload="0" * 32
    )
    play = start_play(task=task.task, actor=Actor(cast.builder))
    generation, _ = Generation.submit(
        key=uuid.uuid4(),
        project=cast.project,
        actor=Actor(cast.builder),
        environment=task.task.environment,
        count=1,
        seed=1,
    )
    about: dict[str, Any] = {"key": uuid.uuid4(), "project": cast.project, "actor": Actor(cast.builder)}
    trial, _ = Trial.submit(**about, environment=task.task.environment, verifier={})
    own = shop(cast)
    look, _ = WorldTrial.submit(**about, config=own.latest.config)
    proving, _ = Proving.submit(**about, environment=task.task.environment)
    rescore, _ = Rescore.submit(
        **about, run=run, environment_version=run.task_set.environment_version, verifier_digest=run.verifier_digest
    )
    audit = RewardAudit.objects.create(project=cast.project, run=run, seed=1, created_by=cast.builder)
    audit.items.create(place=1, result=run.results.all()[0])
    many = bulk_actions.submit(
        project=cast.project, actor=Actor(cast.builder), action="tag", options={"tags": ["a"]}, key=uuid.uuid4()
    )
    view = saved_views.save(project=cast.project, actor=Actor(everyone), name="mine", q="has:error")
    queue = Queue.objects.create(project=cast.project, name="queue", created_by=cast.builder)
    clustering = Clustering.objects.create(project=cast.project, created_by=cast.builder, up_to=0)
    cluster = Cluster.objects.create(clustering=clustering)
    suite, _ = put_suite(
        agent=candidate.agent, actor=Actor(cast.builder), name="golden", kind="safety", task_set=run.task_set
    )
    fix = FixTrial.objects.create(
        project=cast.project,
        bucket=bucket.key,
        parent=run.version,
        task_set=run.task_set,
        parent_eval=learnt.run,
        created_by=cast.builder,
    )
    fix.drafts.create(place=0, name="brief", changes=["prompt"], version=candidate.baseline, evaluation=learnt.run)
    dataset_build = DatasetBuild.objects.create(
        project=cast.project, created_by=cast.builder, name="good", origin=Dataset.Origin.TRAJECTORIES
    )
    preview = TokenPreview.objects.create(
        project=cast.project,
        created_by=cast.builder,
        base=training.base,
        dataset=training.dataset,
        task_set=training.task_set,
        algorithm="sft",
        settings={},
    )
    search = PromptSearch.objects.create(
        project=cast.project,
        created_by=cast.builder,
        bucket=bucket.key,
        parent=run.version,
        task_set=run.task_set,
        tasks=[learnt.task_id],
        endpoint={"kind": "openai", "base_url": "http://127.0.0.1:9/v1", "model": "writer"},
        sampling={},
        verifier_digest=run.verifier_digest,
        most_attempts=20,
        most_proposals=1,
        state=State.SUCCEEDED,
    )
    as_it_is = search.proposals.create(place=0, text="As it is.")
    better = search.proposals.create(place=1, text="Better.", parent=as_it_is, problem="it is empty")
    PromptAttempt.objects.create(proposal=better, task=learnt.task, transcript="User: hm", score=1.0, reason="right")
    RewardRecipe.objects.create(
        project=cast.project,
        name=run.task_set.name,
        number=task.task.number,
        parts=[{"type": "environment", "name": "task", "weight": 1}],
        digest="0" * 64,
        created_by=cast.builder,
    )
    hub_version = HubVersion.objects.create(
        project=cast.project, created_by=cast.builder, agent=candidate.agent, name="own/tiny", content={}
    )
    RewardModel.objects.create(
        project=cast.project,
        name=run.task_set.name,
        number=task.task.number,
        weights=Artifact.objects.create(digest="7" * 64, manifest={}, kind="reward_model", size=1),
        canaries=CANARIES,
        base=run.version,
        created_by=cast.trainer,
    )
    notify(project=cast.project, event=NoticeEvent.MENTION, subject="trajectory", title="hm", to=[everyone])
    ramp = ramp_of(build, cast, candidate)
    values: dict[tuple[str, str], Any] = {
        ("notices", "pk"): everyone.inbox.earliest("pk").pk,
        ("agents", "name"): candidate.agent.name,
        ("agents", "number"): candidate.version.number,
        ("agents", "other"): candidate.baseline.number,
        ("agents", "dtype"): "base",
        ("agents", "fetch"): hub_version.pk,
        ("agents", "part"): "weights",
        ("trajectories", "trace_id"): trajectory.trace_id,
        ("trajectories", "name"): candidate.agent.name,
        ("trajectories", "pk"): rejected.pk,
        ("trajectories", "token"): uploads.keep(cast.project, cast.builder, "log.csv", io.BytesIO(b"a,b\n1,2\n")).token,
        ("trajectories", "job"): imported.pk,
        ("trajectories", "number"): many.pk,
        ("trajectories", "view"): view.pk,
        ("trajectories", "comment"): comments.say(trajectory=trajectory, actor=Actor(everyone), text="hm").pk,
        ("bulk", "pk"): many.pk,
        ("views", "pk"): view.pk,
        ("failures", "trace_id"): trajectory.trace_id,
        ("failures", "key"): bucket.key,
        ("failures", "detector"): "broken_output",
        ("failures", "pk"): queue.pk,
        ("failures", "number"): clustering.pk,
        ("failures", "cluster"): cluster.pk,
        ("clusterings", "pk"): clustering.pk,
        ("clusters", "pk"): cluster.pk,
        ("failures", "item"): QueueItem.objects.create(queue=queue, trajectory=trajectory).pk,
        ("environments", "trace_id"): trajectory.trace_id,
        ("environments", "name"): run.task_set.name,
        ("environments", "version"): run.task_set.version,
        ("environments", "number"): task.task.number,
        ("environments", "of_version"): run.task_set.environment_version.number,
        ("environments", "pk"): generation.pk,
        ("environments", "token"): uploads.keep(cast.project, cast.builder, "rows.jsonl", io.BytesIO(b"{}\n")).token,
        ("environments", "play"): play.pk,
        ("environments", "trial"): trial.pk,
        ("environments", "proving"): proving.pk,
        ("environments", "world"): own.name,
        ("environments", "world_trial"): look.pk,
        ("world-trials", "trial"): look.pk,
        ("trials", "pk"): trial.pk,
        ("rescores", "pk"): rescore.pk,
        ("evals", "name"): run.task_set.environment_version.environment.name,
        ("evals", "task_set"): run.task_set.name,
        ("evals", "version"): run.task_set.version,
        ("evals", "audit"): audit.pk,
        ("evals", "place"): 1,
        ("reward-audits", "audit_id"): audit.pk,
        ("reward-audits", "place"): 1,
        ("evals", "rescore"): rescore.pk,
        ("evals", "pk"): run.pk,
        ("evals", "candidate"): run.pk,
        ("evals", "baseline"): candidate.baseline_eval_id,
        ("evals", "number"): task.task.number,
        ("training", "pk"): training.pk,
        ("training", "key"): bucket.key,
        ("training", "step"): 20,
        ("training", "trial"): fix.pk,
        ("training", "job"): dataset_build.pk,
        ("training", "preview"): preview.pk,
        ("training", "pipeline"): pipeline.pk,
        ("training-pipelines", "pipeline_id"): pipeline.pk,
        ("training", "search"): search.pk,
        ("training", "place"): better.place,
        ("dataset-builds", "pk"): dataset_build.pk,
        ("token-previews", "pk"): preview.pk,
        ("fix-trials", "trial_id"): fix.pk,
        ("prompt-searches", "search_id"): search.pk,
        ("training", "run"): learnt.run_id,
        ("training", "number"): learnt.task.number,
        ("training", "sample"): learnt.sample,
        ("rollouts", "pk"): learnt.run_id,
        ("rollouts", "number"): learnt.task.number,
        ("rollouts", "sample"): learnt.sample,
        ("training", "name"): training.dataset.name,
        ("training", "format"): "sft",
        ("training", "version"): training.dataset.version,
        ("promotions", "pk"): candidate.pk,
        ("promotions", "kind"): "version",
        ("promotions", "ref"): str(candidate.version),
        ("promotions", "agent"): candidate.agent.name,
        ("promotions", "suite"): suite.name,
        ("promotions", "generation"): candidate.agent.generation,
        ("promotions", "candidate"): candidate.version_eval_id,
        ("promotions", "baseline"): candidate.baseline_eval_id,
        ("agents", "suite"): suite.name,
        ("promotions", "number"): candidate.version.number,
        ("promotions", "ramp"): ramp.pk,
        ("promotions", "turn"): 1,
        ("agents", "turn"): 1,
        ("promotions", "copy"): ramp.split.copies.get().pk,
        ("promotions", "move"): "hold",
        ("ramps", "call"): ramp.split.copies.get().pk,
        ("ramps", "pk"): ramp.pk,
        ("settings", "pk"): api_key.pk,
        ("prices", "price"): price.pk,
        ("keys", "public"): api_key.public,
        ("members", "username"): cast.reviewer.username,
    }
    return World(everyone, values)


@pytest.mark.django_db
def test_objects_of_another_project_are_not_found(world: World, cast: Cast, sign_in: Callable[[User], Client]) -> None:
    """The stranger has every role in a project of their own; nothing of ours can be reached through it."""
    stranger = sign_in(cast.stranger)
    found = {}
    for page in PROJECT_PAGES:
        values = world.of(page)
        if values and not all((page.room, name) in GLOBAL for name in values):
            answer = either(stranger, page.url(project=cast.elsewhere.slug, **values))
            if answer.status_code != 404:
                found[page.name] = answer.status_code
    assert found == {}


def rooms_of(path: str) -> str:
    """Which room's words a path of the API uses."""
    first = path.strip("/").partition("/")[0]
    rooms = {
        "task-sets": "environments",
        "datasets": "training",
        "training-runs": "training",
        "training-sweeps": "training",
        "candidates": "promotions",
        "lineage": "promotions",
        "quarantine": "trajectories",
        "queues": "failures",
        "buckets": "failures",
        "generations": "environments",
        "plays": "environments",
        "reward-models": "environments",
    }
    return rooms.get(first, first)


@pytest.mark.django_db
def test_calls_cannot_name_objects_of_another_project(
    world: World, cast: Cast, client: Client, key: Callable[..., dict[str, str]]
) -> None:
    headers = key(*Scope, by=cast.stranger, project=cast.elsewhere)
    aliases = {"eval_id": "pk", "run_id": "pk", "queue_id": "pk", "item_id": "item", "comment_id": "comment"}
    found = {}
    for call in CALL_LIST:
        names = re.findall(r"(\w+)}", call.path)
        if not names:
            continue
        room = rooms_of(call.path)
        values = {name: world.values.get((room, aliases.get(name, name)), "x") for name in names}
        answer = client.generic(call.method, call.url(values), "{}", "application/json", headers=headers)
        if answer.status_code not in (404, 422):  # 422: the body is looked at before the object
            found[str(call)] = answer.status_code
    assert found == {}


# GET changes nothing


def picture() -> dict[str, str]:
    """What every table holds, but for what is no state: sessions, a key's last use, kept calculations."""
    apart = {"django_session", "accounts_apikey", "evals_comparison", "training_contaminationcheck"}
    tables = {model._meta.db_table for model in apps.get_models()} - apart
    with connection.cursor() as cursor:
        found = {}
        for table in sorted(tables):
            cursor.execute(f"SELECT md5(coalesce(string_agg(t::text, '' ORDER BY t::text), '')) FROM {table} t")
            found[table] = cursor.fetchone()[0]
    return found


@pytest.mark.django_db
def test_get_changes_nothing_and_every_page_answers(
    world: World, cast: Cast, sign_in: Callable[[User], Client]
) -> None:
    """Whoever may do everything opens every page."""
    client = sign_in(world.everyone)
    client.raise_request_exception = False
    before = picture()
    wrong: dict[str, Any] = {}
    for page in PROJECT_PAGES:
        answer = client.get(page.url(project=cast.project.slug, **world.of(page)))
        if answer.status_code not in (200, 204, 286, 302, 404, 405):
            wrong[page.name] = answer.status_code
        if (after := picture()) != before:
            wrong[page.name] = [table for table in after if after[table] != before[table]]
            before = after
    assert wrong == {}


@pytest.mark.django_db
def test_a_get_call_changes_nothing(world: World, client: Client, key: Callable[..., dict[str, str]]) -> None:
    headers = key(*Scope, by=world.everyone)
    before = picture()
    for call in [call for call in CALL_LIST if call.method == "GET" and "{" not in call.path]:
        assert client.get(call.url({}), headers=headers).status_code == 200, str(call)
        assert picture() == before, str(call)
