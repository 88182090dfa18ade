"""Which base each vLLM server has that the supervisor keeps (`FLYWHEEL_SERVE=vllm`): chosen in the browser. There is
one server, or one on each GPU of `FLYWHEEL_SERVE_GPUS`. A full fine-tune is a base of its own: it is served once it is
chosen, if the machine has the memory for it."""

import os
from datetime import timedelta
from typing import Any, Final

from django.db import connection, transaction
from django.db.models import F, Max
from django.utils import timezone

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import Project
from flywheel.agents.models import Agent, ChosenBase, Split, Version
from flywheel.agents.version_content import TRANSFORMERS
from flywheel.edge.refusals import Refused
from flywheel.system import devices, env

VLLM_BYTES: Final = 3 * 2**30
"""Of vLLM's CPU build beside the weights, for its processes and the cache that it is given: an estimate."""


def chosen(place: int = 0) -> ChosenBase | None:
    """The choice for the server at this place; None before anybody has made one."""
    rows = ChosenBase.objects.select_related("version__agent__project", "version__weights", "chosen_by")
    return rows.filter(place=place).first()


def server_with(version: Version) -> str:
    """The address of the vLLM server that has the version's base: the one that it was chosen for, or the one that
    somebody else started, whatever that has. Empty where there is none."""
    urls = env.vllm_urls()
    if not env.serve():
        return urls[0] if urls else ""
    places = ChosenBase.objects.filter(version__weights=version.weights_id, place__lt=len(urls))
    place = places.values_list("place", flat=True).first()
    return "" if place is None else urls[place]


def address_of(version: Version) -> str:
    """The address to ask for the version; where no server has its base that of the first, which says what it has.
    Empty without a server."""
    return server_with(version) or env.vllm_url()


def offered(project: Project) -> list[Version]:
    """The newest version of each of the project's bases."""
    rows = Version.objects.filter(agent__project=project, endpoint__kind=TRANSFORMERS).exclude(weights=None)
    newest = rows.order_by().values("weights").annotate(newest=Max("pk")).values("newest")
    return list(Version.objects.filter(pk__in=newest).select_related("agent", "weights").order_by("-pk"))


def needed_bytes(version: Version) -> int:
    """Memory that a server of the version's base takes on a CPU."""
    assert version.weights is not None
    return VLLM_BYTES + version.weights.size


def too_large(version: Version) -> str:
    """Why this machine cannot serve the version's base; empty where it can, or has a GPU, whose memory vLLM knows."""
    if env.serve_gpus() or "cuda" in devices.offered():
        return ""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    needed, allowed = needed_bytes(version), env.model_memory(machine)
    if needed <= allowed:
        return ""
    return (
        f"the base of {version} takes about {needed / 2**30:.1f} GB of memory on vLLM, and this machine allows "
        f"{allowed / 2**30:.1f} GB (FLYWHEEL_MODEL_MEMORY). Serve it on a larger one with "
        f"make serve VERSION={version}, and set FLYWHEEL_VLLM_URL to its address, in place of FLYWHEEL_SERVE"
    )


@transaction.atomic
def choose(*, version: Version, actor: Actor, place: int = 0, anyway: bool = False) -> ChosenBase:
    """Have the server at this place start with the version's base. Live versions whose base no server has then lose
    theirs, which is done only with `anyway`; versions in a ramp may not. Raises Refused."""
    if env.serve() != "vllm":
        raise Refused("this Flywheel keeps no vLLM server: start it with FLYWHEEL_SERVE=vllm")
    if version.endpoint.get("kind") != TRANSFORMERS or version.weights is None:
        raise Refused(f"{version} is asked at its own endpoint; no weights of it are stored here", field="version")
    if problem := too_large(version):
        raise Refused(problem, field="version")
    urls = env.vllm_urls()
    if not 0 <= place < len(urls):
        raise Refused(f"there is no server {place + 1}; there are {len(urls)}", field="place")
    with connection.cursor() as cursor:  # else two could give one base to two servers
        cursor.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", [__name__])
    kept = dict(ChosenBase.objects.filter(place__lt=len(urls)).values_list("place", "version__weights"))
    if elsewhere := [other for other, weights in kept.items() if other != place and weights == version.weights_id]:
        raise Refused(f"the server at {urls[elsewhere[0]]} has this base already", field="version")
    bases = {*(kept | {place: version.weights_id}).values()}
    for split in Split.objects.filter(closed_at=None).exclude(served={}).select_related("agent", "live", "candidate"):
        for arm in (split.live, split.candidate):
            if split.served.get(str(arm.pk)) and arm.weights_id not in bases:
                raise Refused(f"{arm} is in a ramp, and would lose the server; finish, stop or take it back first")
    others = Agent.objects.exclude(served="").exclude(live__weights__in=bases).select_related("live__agent")
    if (live := [str(agent.live) for agent in others]) and not anyway:
        raise Refused(f"{', '.join(live)} would lose the server; tick Replace anyway to do so", field="anyway")
    others.update(served="")
    now = timezone.now()
    fresh = {"version": version, "chosen_by": actor.user, "chosen_at": now, "state": ChosenBase.State.WAITING}
    fresh |= {"state_at": now, "problem": "", "failures": 0, "again_at": None}
    if ChosenBase.objects.filter(place=place).update(generation=F("generation") + 1, **fresh):
        row = ChosenBase.objects.get(place=place)
    else:
        row = ChosenBase.objects.create(place=place, **fresh)
    said: dict[str, Any] = {"server": urls[place], "without_server": live}
    actor.record(project=version.agent.project, action="evals.choose_base", subject=str(version), **said)
    return row


def report(row: ChosenBase, state: str, *, again_s: float | None = None, **told: Any) -> None:
    """Say how the server is, unless another base was chosen meanwhile. `problem` and `failures` stay where they are not
    told: a server that starts again shows why it ended."""
    now = timezone.now()
    again_at = None if again_s is None else now + timedelta(seconds=again_s)
    rows = ChosenBase.objects.filter(pk=row.pk, generation=row.generation)
    rows.update(state=state, state_at=now, again_at=again_at, **told)


def is_current(row: ChosenBase) -> bool:
    """Whether no other base was chosen since."""
    return ChosenBase.objects.filter(pk=row.pk, generation=row.generation).exists()
