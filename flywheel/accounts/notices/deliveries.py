"""Notices are sent: to Slack, to webhooks, by e-mail. At least once each, and in order per subject and target.

A row is claimed by moving `due_at` past the longest that a try may take, sent, and marked. Who is killed in between
leaves a row that is due again a moment later, and the receiver gets the same message, with the same id, twice. A row
is due only when every earlier one of its subject and target is sent or given up. What fails is tried again after
growing pauses for a day, and then waits for a person (`dead`).
"""

import http.client
import logging
import smtplib
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

from django.conf import settings
from django.core.mail import get_connection
from django.db import connection, transaction
from django.db.models import Exists, OuterRef, Q, QuerySet
from django.utils import timezone

from flywheel.accounts.models import Notice, NoticeDelivery, NoticeTarget
from flywheel.accounts.models.seals import CannotUnseal
from flywheel.accounts.notices.outside_messages import mail_of, message_to
from flywheel.core.network.outside_posts import post

log = logging.getLogger(__name__)

State = NoticeDelivery.State
TIMEOUT_S = 10.0
"""Of one try, whatever the other side does."""
CLAIMED_FOR = timedelta(seconds=60)
"""A row that is being tried is nobody else's for as long, which is longer than a try takes."""
PAUSES = [timedelta(seconds=s) for s in (5, 30, 300, 1_800, 7_200, 18_000)]
"""After each failed try; the last one again and again."""
ROUND_S = 20.0
"""One target is served for as long before the others are looked at again."""
AT_ONCE = 8
"""Targets that are served at the same time."""
KEPT = timedelta(days=90)
"""A notice is forgotten after so long, read or not."""


class NotSent(Exception):
    """The other side did not take it; the message says why."""


def deliver() -> None:
    """Send what is due, and end. Run it every few seconds."""
    targets = list(_due().order_by().values_list("target", flat=True).distinct())
    if targets:
        with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="notices") as pool:
            list(pool.map(_serve, targets))


def forget() -> int:
    """Delete old notices, with what became of them; returns how many rows went."""
    return Notice.objects.filter(at__lt=timezone.now() - KEPT).delete()[0]


def _serve(target: int | None) -> None:
    """Send one target what is due, or everybody their e-mail, until something fails: then others come first."""
    try:
        begun = now = time.monotonic()
        while now < begun + ROUND_S and (row := _claim(target)) and _try(row, now + TIMEOUT_S):
            now = time.monotonic()
    except Exception:
        log.exception("notices to target %s were not all sent; they are tried again", target)
    finally:
        connection.close()


def _due() -> QuerySet[NoticeDelivery]:
    same = Q(target=OuterRef("target")) | Q(user=OuterRef("user"))
    earlier = NoticeDelivery.objects.filter(
        same, subject=OuterRef("subject"), state=State.WAITING, pk__lt=OuterRef("pk")
    )
    return NoticeDelivery.objects.filter(~Exists(earlier), state=State.WAITING, due_at__lte=timezone.now())


@transaction.atomic
def _claim(target: int | None) -> NoticeDelivery | None:
    row = _due().filter(target=target).order_by("due_at", "pk").select_for_update(skip_locked=True).first()
    if row is not None:
        row.attempts += 1
        row.due_at = timezone.now() + CLAIMED_FOR
        row.save(update_fields=["attempts", "due_at"])
    return row


def _try(row: NoticeDelivery, deadline: float) -> bool:
    """Send a claimed row and write down what became of it; whether it was sent. The deadline is counted from before the
    claim: whoever was stopped in between sends nothing any more."""
    mine = NoticeDelivery.objects.filter(pk=row.pk, state=State.WAITING, attempts=row.attempts)
    try:
        if row.target is not None:
            send_to(row.target, row.notice, deadline)
        else:
            _mail(row, deadline)
    except NotSent as why:
        now = timezone.now()
        pause = PAUSES[min(row.attempts, len(PAUSES)) - 1]
        is_over = now >= row.give_up_at
        mine.update(
            error=str(why)[:500],
            state=State.DEAD if is_over else State.WAITING,
            due_at=min(now + pause, max(now, row.give_up_at)),
        )
        return False
    mine.update(state=State.SENT, sent_at=timezone.now(), error="")
    return True


def send_to(target: NoticeTarget, notice: Notice, deadline: float) -> None:
    """Send it there, before `deadline` of `time.monotonic()`. Raises NotSent."""
    try:
        url, secret = target.unseal()
        message = message_to(target, notice, secret)
        status = post(url, message.body, message.headers, deadline=deadline, allowed=settings.NOTICE_NETWORKS)
    except CannotUnseal as error:
        raise NotSent(str(error)) from None
    except TimeoutError:
        raise NotSent(f"no answer within {TIMEOUT_S:.0f} s") from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise NotSent(str(error) or type(error).__name__) from None
    if 300 <= status < 400:
        raise NotSent(f"the server redirects to another address ({status}); enter that one")
    if not 200 <= status < 300:
        raise NotSent(f"the server answered {status}")


def _mail(row: NoticeDelivery, deadline: float) -> None:
    """Write to the person, unless they left, closed their inbox to it, or have no address any more."""
    user, notice = row.user, row.notice
    assert user is not None
    if not (user.is_active and user.is_mailed_notices and user.email and user.permissions(notice.project)):
        return
    if not settings.EMAIL_HOST:
        raise NotSent("FLYWHEEL_SMTP_URL names no mail server any more")
    if time.monotonic() > deadline:
        raise NotSent("it took too long to begin")
    try:
        get_connection(timeout=TIMEOUT_S).send_messages([mail_of(notice, user.email)])
    except (OSError, smtplib.SMTPException, ValueError) as error:
        raise NotSent(f"the mail server: {error or type(error).__name__}") from None
