"""A notice as others are sent it: signed after Standard Webhooks, as a message in Slack, or as an e-mail."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import NamedTuple

from django.conf import settings
from django.core.mail import EmailMessage
from standardwebhooks import Webhook

from flywheel.accounts.models import Notice, NoticeTarget

_AGENT = {"Content-Type": "application/json", "User-Agent": "flywheel"}
_SLACK = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})
"""As Slack asks for it: nothing in a text is then a link, or calls `<!channel>`."""


class Message(NamedTuple):
    body: bytes
    headers: Mapping[str, str]


def message_to(target: NoticeTarget, notice: Notice, secret: str) -> Message:
    return _to_slack(notice) if target.kind == NoticeTarget.Kind.SLACK else _to_webhook(notice, secret)


def link_to(notice: Notice) -> str:
    """The address of the subject's page; empty where it has none."""
    return settings.PUBLIC_URL + notice.url if notice.url else ""


def mail_of(notice: Notice, address: str) -> EmailMessage:
    lines = [notice.title, notice.text, link_to(notice), f"From {notice.project.name}. Your account page ends these."]
    return EmailMessage(
        subject=f"[{notice.project.name}] {notice.title}",
        body="\n\n".join(filter(None, lines)),
        from_email=settings.DEFAULT_FROM_EMAIL,
        to=[address],
        headers={"Message-ID": f"<{notice.uuid.hex}@flywheel>", "Auto-Submitted": "auto-generated"},
    )


def _to_slack(notice: Notice) -> Message:
    lines = [notice.title.translate(_SLACK), notice.text.translate(_SLACK), link_to(notice).translate(_SLACK)]
    body = {"text": "\n".join(filter(None, lines)), "mrkdwn": False, "link_names": False, "unfurl_links": False}
    return Message(json.dumps(body).encode(), _AGENT)


def _to_webhook(notice: Notice, secret: str) -> Message:
    now, name = datetime.now(UTC), f"msg_{notice.uuid.hex}"
    data = {
        "project": notice.project.slug,
        "subject": notice.subject,
        "title": notice.title,
        "text": notice.text,
        "url": link_to(notice),
    }
    body = json.dumps({"type": notice.event, "timestamp": notice.at.isoformat(), "data": data})
    signed = {
        "webhook-id": name,
        "webhook-timestamp": str(int(now.timestamp())),
        "webhook-signature": Webhook(secret).sign(name, now, body),
    }
    return Message(body.encode(), {**_AGENT, **signed})
