"""Environments and their versions: making one, the next version of one, and what no version may be."""

import re
from collections.abc import Mapping
from typing import Any

from django.core.exceptions import PermissionDenied
from django.db import transaction

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import Permission, Project
from flywheel.accounts.project_settings import provider_keys
from flywheel.accounts.project_settings.server_addresses import check_address, check_variable
from flywheel.core import envs, verifiers
from flywheel.core.digests import digest
from flywheel.core.envs.kinds import KINDS, check_new
from flywheel.core.envs.worlds import server_world, stand_ins
from flywheel.core.traces import tooling
from flywheel.core.verifiers import rubric
from flywheel.edge.refusals import Refused, at_field
from flywheel.environments.models import Environment, EnvironmentVersion
from flywheel.environments.proofs import judge_endpoints
from flywheel.environments.proofs.proof_jobs import prove_all_again
from flywheel.environments.versions import reward_parts
from flywheel.environments.versions.environment_terms import Terms
from flywheel.trajectories.models import Source, Trajectory

LOOKED_AT = 200
"""Newest runs whose tools are looked at."""
NAME = re.compile(r"[a-z0-9]+(?:[-_][a-z0-9]+)*")


@transaction.atomic
def environment(
    *,
    project: Project,
    name: str,
    actor: Actor,
    config: dict[str, Any],
    verifier: dict[str, Any],
    terms: Terms,
    description: str = "",
) -> Environment:
    """A new environment with its first version. Raises Refused and core.verifiers.VerifierError."""
    check_name(name)
    _check_may_attach(project, terms.kind, actor)
    terms.check()
    made, is_new = Environment.objects.get_or_create(
        project=project,
        name=name,
        defaults={
            "kind": terms.kind,
            "agent": terms.agent,
            "held_out_share": terms.held_out_share,
            "sealed_share": terms.sealed_share,
            "reserved_slices": sorted({slice_.strip() for slice_ in terms.reserved_slices if slice_.strip()}),
            "description": description,
        },
    )
    if not is_new:
        raise Refused(f"an environment {name!r} already exists", field="name")
    actor.record(project=project, action="environments.create", subject=name)
    environment_version(environment=made, actor=actor, config=config, verifier=verifier)
    return made


@transaction.atomic
def environment_version(
    *, environment: Environment, actor: Actor, config: dict[str, Any], verifier: dict[str, Any]
) -> EnvironmentVersion:
    """The environment's version with this content: its newest when nothing changed, else the next number; that too
    where the code that judges has changed since (`core.verifiers.REVISION`), for its scores are another verifier's.

    Proofs that its tasks have are made again under the new version, by a worker where they are many. Raises
    core.verifiers.VerifierError for settings that are wrong.
    """
    _check_may_attach(environment.project, environment.kind, actor)
    if "tools" in config:
        config = config | {"tools": tooling.definitions(config["tools"])}
    if environment.versions.order_by("-number").values_list("config", flat=True).first() != config:
        check_new(environment.kind, config)  # what the newest has stays
    check_verifier(environment, config, verifier)
    verifier = reward_parts.frozen(environment.project, verifier)
    Environment.objects.select_for_update(no_key=True).get(pk=environment.pk)
    content = digest({"kind": environment.kind, "config": config, "verifier": verifier})
    newest = environment.versions.order_by("-number").first()
    judged_by = verifiers.digest(verifier)
    if newest and (newest.digest, newest.verifier_digest) == (content, judged_by):
        return newest
    made = EnvironmentVersion.objects.create(
        environment=environment,
        number=newest.number + 1 if newest else 1,
        config=config,
        verifier=verifier,
        digest=content,
        verifier_digest=judged_by,
        created_by=actor.user,
    )
    prove_all_again(environment, made, actor)
    actor.record(project=environment.project, action="environments.version", subject=made)
    return made


def settings_of(version: EnvironmentVersion) -> dict[str, Any]:
    """Return a version's settings for the next one, without those that its kind had once and takes no more."""
    known = KINDS[version.environment.kind].settings
    return {name: value for name, value in version.config.items() if known is None or name in known}


def check_verifier(environment: Environment, config: dict[str, Any], verifier: dict[str, Any]) -> None:
    """Raise core.errors.FieldError for what no version of this environment can have."""
    if verifier.get("kind", environment.kind) not in (environment.kind, rubric.KIND):
        raise verifiers.VerifierError(f"kind: {verifier['kind']!r} is neither {environment.kind} nor {rubric.KIND}")
    envs.build(environment.kind, config, verifier)
    if KINDS[environment.kind].is_external:
        check_address(config["base_url"])
    if environment.kind == server_world.KIND:
        check_server(environment.project, config)
    elif standing_in := stand_ins.server_settings(config):
        check_server(environment.project, standing_in, "server.")
    judge_endpoints.check(environment.project, verifier)
    judge_endpoints.check_simulator(environment.project, config)


def check_server(project: Project, config: Mapping[str, Any], where: str = "") -> None:
    """Raise FieldError for a tool server that no worker may ask, or may not send this key to. `where` begins the names
    of its settings."""
    server = server_world.server_of(config)
    with at_field(f"{where}api_key_env"):
        name = check_variable(server.api_key_env)
        if name and (problem := provider_keys.refusal(project.pk, name, server.base_url)):
            raise Refused(problem)


def _check_may_attach(project: Project, kind: str, actor: Actor) -> None:
    """Raise PermissionDenied for one who may not say to whose server this installation talks."""
    if kind in KINDS and KINDS[kind].is_external and not may_attach(project, actor):
        raise PermissionDenied("only an admin attaches a server, or changes how one is attached")


def may_attach(project: Project, actor: Actor) -> bool:
    known = actor.user.project(project.slug)
    return known is not None and Permission.ADMIN in known[1]


def check_name(name: str) -> None:
    """Raise Refused for a name that cannot stand in an address."""
    if not NAME.fullmatch(name) or len(name) > 100:
        raise Refused(f"{name[:100]!r} is not of the form mail-requests (small letters, digits, - and _)", field="name")


def recorded_tools(project: Project) -> list[dict[str, Any]]:
    """The tools that the newest recorded runs bring, each name's newest definition; none where no run brings any."""
    rows = Trajectory.objects.filter(project=project).exclude(source__in=Source.ATTEMPTS).exclude(tools=[])
    found: dict[str, dict[str, Any]] = {}
    seen = set[str]()  # runs bring the same definitions again and again, and to check one takes a while
    for tools in rows.order_by("-pk").values_list("tools", flat=True)[:LOOKED_AT]:
        for tool in tools:
            if (content := digest(tool)) in seen:
                continue
            seen.add(content)
            if not tooling.check_definitions([tool]) and not tooling.unjudgeable([tool]):
                found.setdefault(tool["name"], tool)
    return [found[name] for name in sorted(found)]


def latest(environment: Environment) -> EnvironmentVersion:
    """Its newest version. Raises Refused where there is none."""
    version = environment.versions.order_by("-number").select_related("environment").first()
    if version is None:
        raise Refused(f"{environment} has no version yet: give it tools and a verifier first")
    return version
