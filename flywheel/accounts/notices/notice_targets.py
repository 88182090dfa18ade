"""Where a project's notices are sent outside: made, changed and removed by an admin."""

import base64
import ipaddress
import secrets
import time
from collections.abc import Collection
from typing import NamedTuple
from urllib.parse import urlsplit

from django.conf import settings
from django.db import transaction
from django.db.models import Count, Q, QuerySet
from django.utils import timezone

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import Notice, NoticeDelivery, NoticeEvent, NoticeTarget, Project
from flywheel.accounts.notices import deliveries
from flywheel.accounts.notices.notice_writer import TRIED_FOR
from flywheel.accounts.project_settings.server_addresses import is_host
from flywheel.core.network.link_local import is_metadata, is_private
from flywheel.edge.refusals import Refused, check_choice

AT_MOST = 20
"""Targets of one project."""


class Put(NamedTuple):
    target: NoticeTarget
    secret: str
    """To be shown once; empty where there is none or it was shown before."""


def targets(project: Project) -> QuerySet[NoticeTarget]:
    """The project's targets, with how many notices wait for each (`waiting`) and were given up (`dead`)."""
    state = NoticeDelivery.State
    return NoticeTarget.objects.filter(project=project).annotate(
        waiting=Count("deliveries", filter=Q(deliveries__state=state.WAITING)),
        dead=Count("deliveries", filter=Q(deliveries__state=state.DEAD)),
    )


def dead_letters(project: Project) -> QuerySet[NoticeDelivery]:
    rows = NoticeDelivery.objects.filter(project=project, state=NoticeDelivery.State.DEAD)
    return rows.select_related("notice", "target", "user")


@transaction.atomic
def put(*, project: Project, actor: Actor, name: str, kind: str, url: str, events: Collection[str]) -> Put:
    """Send these events there from now on. A target of the name is changed; without `url` it keeps its address, and a
    webhook keeps its secret as long as it keeps its address. Raises Refused."""
    name, url = name.strip(), url.strip()
    if not name or len(name) > 60 or not name.isprintable() or "/" in name:
        raise Refused("expected 1 to 60 visible characters without /", field="name")
    check_choice(kind, NoticeTarget.Kind.values, field="kind")
    if not events:
        raise Refused(f"expected at least one of {', '.join(NoticeEvent.values)}", field="events")
    for event in events:
        check_choice(event, NoticeEvent.values, field="events")
    Project.objects.select_for_update(no_key=True).get(pk=project.pk)
    row = NoticeTarget.objects.filter(project=project, name=name).first()
    if row is None and NoticeTarget.objects.filter(project=project).count() >= AT_MOST:
        raise Refused(f"a project has at most {AT_MOST} targets; remove one first", field="name")
    if row is not None and row.kind != kind:
        raise Refused(f"{name} is already a {row.get_kind_display()} target", field="name")
    if row is None and not url:
        raise Refused("expected the address, for example https://hooks.slack.com/services/…", field="url")
    row = row or NoticeTarget(project=project, name=name, kind=kind)
    row.created_by, row.events = actor.user, [event for event in NoticeEvent.values if event in events]
    secret = _set_address(row, url) if url else ""
    row.save()
    actor.record(
        project=project, action="accounts.put_notice_target", subject=name, kind=kind, host=row.host, events=row.events
    )
    return Put(row, secret)


@transaction.atomic
def remove(*, target: NoticeTarget, actor: Actor) -> None:
    """Send nothing there any more, nor what waits."""
    actor.record(project=target.project, action="accounts.remove_notice_target", subject=target.name, host=target.host)
    target.delete()


def try_target(target: NoticeTarget) -> str:
    """Send a message there now that is no notice, and say why it was not taken; empty where it was."""
    url = f"/p/{target.project.slug}/notices/"
    notice = Notice(project=target.project, event="test", subject="test", title="A test message from Flywheel", url=url)
    try:
        deliveries.send_to(target, notice, time.monotonic() + deliveries.TIMEOUT_S)
    except deliveries.NotSent as why:
        return str(why)
    return ""


@transaction.atomic
def send_again(*, project: Project, actor: Actor, letters: Collection[int] | None = None) -> int:
    """Try these dead letters of the project, or all, for another day; returns how many."""
    now = timezone.now()
    rows = NoticeDelivery.objects.filter(project=project, state=NoticeDelivery.State.DEAD)
    if letters is not None:
        rows = rows.filter(pk__in=letters)
    count = rows.update(state=NoticeDelivery.State.WAITING, attempts=0, due_at=now, give_up_at=now + TRIED_FOR)
    if count:
        actor.record(project=project, action="accounts.send_notices_again", subject=f"{count} notices")
    return count


def _set_address(row: NoticeTarget, url: str) -> str:
    """Seal the address, and for a webhook a new secret, which is returned. Raises Refused."""
    row.host = _check_url(url)
    secret = f"whsec_{base64.b64encode(secrets.token_bytes(32)).decode()}" if row.kind == "webhook" else ""
    row.seal(url, secret)
    return secret


def _check_url(url: str) -> str:
    """The host of an address that may be sent to, as far as the address alone tells. Raises Refused."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        host = ""
    is_plain = url.isascii() and url.isprintable() and " " not in url and len(url) <= 2_000
    if not host or parts.scheme not in ("http", "https") or not is_plain or not is_host(host):
        raise Refused("expected an address such as https://hooks.slack.com/services/…", field="url")
    if parts.username is not None or parts.fragment:
        raise Refused("leave out logins and #", field="url")
    if is_metadata(host) or (_is_address(host) and is_private(host, settings.NOTICE_NETWORKS)):
        raise Refused(
            f"{host} is no public address; the operator can allow a network with FLYWHEEL_NOTICE_NETWORKS", field="url"
        )
    return parts.netloc


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
