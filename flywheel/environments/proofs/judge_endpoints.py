"""Addresses of a project's judges and simulators, judges' earlier verdicts, and scores that a canary made void.

The only servers are those that an admin or the operator has named: the project's upstream, and this installation's
vLLM. A builder names one of the two, so that no key of the worker's can be sent to an address of a builder's choice.
"""

from collections.abc import Collection, Iterable, Mapping
from datetime import timedelta
from typing import Any

from django.db import transaction
from django.utils import timezone

from flywheel.accounts.models import Project
from flywheel.accounts.project_settings.model_prices import price_of
from flywheel.accounts.project_settings.server_addresses import key_of
from flywheel.core.envs.worlds import stand_ins
from flywheel.core.network.key_hosts import VLLM_KEY
from flywheel.core.verifiers import Verdict, VerifierError, rubric
from flywheel.environments.models import EnvironmentVersion, Generation, JudgeMemory, Proving
from flywheel.system import env

KEPT = timedelta(days=30)
"""How long what was said is remembered."""
MISSING = {
    "upstream": "this project has no upstream; an admin names one under Settings › Gateway",
    "vllm": "this installation has no vLLM server; make serve starts one",
}


def endpoints(project: Project) -> dict[str, dict[str, Any]]:
    """Return the endpoints there are to ask, by the names that parts have for them."""
    found = {"upstream": dict(project.upstream)} if project.upstream else {}
    if url := env.vllm_url():
        key = VLLM_KEY if key_of(VLLM_KEY) else ""
        found["vllm"] = {"base_url": f"{url}/v1", "api_key_env": key}
    return found


def check(project: Project, verifier: Mapping[str, Any]) -> None:
    """Raise VerifierError for a judge that nobody could ask."""
    there = endpoints(project)
    for part in rubric.judges(verifier).values():
        if (wanted := part.settings["endpoint"]) not in there:
            number = [each.name for each in rubric.read(verifier).parts].index(part.name)
            raise VerifierError(f"parts.{number}.endpoint: {MISSING[wanted]}")


def check_simulator(project: Project, config: Mapping[str, Any]) -> None:
    """Raise VerifierError for a model that is to stand in for tools and that nobody could ask."""
    found = stand_ins.simulator_of(config)
    if found and found["endpoint"] not in endpoints(project):
        raise VerifierError(f"simulator.endpoint: {MISSING[found['endpoint']]}")


def unpriced(project: Project, config: Mapping[str, Any], verifier: Mapping[str, Any]) -> str:
    """Why nobody knows what the verifier's judges cost, or the model that stands in for tools, and what would be right;
    empty where it is known of each."""
    asked = {f"the judge {part.name}": part.settings for part in rubric.judges(verifier).values()}
    if simulator := stand_ins.simulator_of(config):
        asked["the simulator"] = simulator
    for name, settings in asked.items():
        if settings["endpoint"] == "vllm":
            return f"{name} is asked at this installation's vLLM, which has no price"
        if price_of(project.pk, settings["model"]) is None:
            where = "name it under Settings › Prices"
            return f"{name} asks the upstream's model {settings['model']!r}, whose price nobody named; {where}"
    return ""


def void_since(version: EnvironmentVersion) -> str:
    """Why the version's judges may prove nothing any more; empty where they may. What a canary has shown of a judge is
    not unsaid by asking it again: a new version of the verifier is."""
    kinds: tuple[type[Proving] | type[Generation], ...] = (Proving, Generation)
    for kind in kinds:
        found = kind.objects.filter(
            environment=version.environment_id, error_kind="canary", finished_at__gte=version.created_at
        )
        if (error := found.order_by("-pk").values_list("error", flat=True).first()) is not None:
            return f"{error}; make a new version of the verifier"
    return ""


class Memory:
    """Judges' verdicts on a project's attempts."""

    def __init__(self, project: Project) -> None:
        self.project = project

    def recall(self, keys: Iterable[str]) -> dict[str, Verdict]:
        rows = JudgeMemory.objects.filter(project=self.project, key__in=list(keys), at__gt=timezone.now() - KEPT)
        return {row.key: Verdict(row.score, row.reason) for row in rows}

    @transaction.atomic
    def keep(self, said: Mapping[str, Verdict]) -> None:
        JudgeMemory.objects.filter(project=self.project, at__lt=timezone.now() - KEPT).delete()
        rows = [
            JudgeMemory(project=self.project, key=key, score=verdict.score, reason=verdict.reason.replace("\0", ""))
            for key, verdict in sorted(said.items())
            if verdict.score is not None
        ]
        JudgeMemory.objects.bulk_create(
            rows, update_conflicts=True, unique_fields=["project", "key"], update_fields=["score", "reason", "at"]
        )

    def forget(self, keys: Iterable[str]) -> None:
        JudgeMemory.objects.filter(project=self.project, key__in=list(keys)).delete()


def is_touched(parts: Mapping[str, float | None], void: Collection[str]) -> bool:
    """Whether one of these judges had its say in a score."""
    return any(parts.get(name) is not None for name in void)


def voided(verdict: Verdict, void: Mapping[str, str]) -> Verdict:
    """The verdict without what void judges said: unscored where one of them had its say."""
    if not is_touched(verdict.parts, void):
        return verdict
    kept = {name: None if name in void else score for name, score in verdict.parts.items()}
    return Verdict(None, next(iter(void.values())), kept, "canary")
