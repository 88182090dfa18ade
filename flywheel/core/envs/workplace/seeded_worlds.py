"""Worlds out of a seed: who is in the company, and what lies in their calendar, mail, task lists and contacts."""

import random
from datetime import datetime, timedelta
from functools import lru_cache

from flywheel.core.envs.workplace.world import BOARDS, DAY, LISTS, NOW, TIME, Row, World

FIRST = (
    "Aisha", "Bako", "Carlos", "Chenwei", "Dmitri", "Elif", "Fatima", "Gita", "Hana", "Ines", "Jinsoo", "Kofi",
    "Leila", "Luis", "Mina", "Nadia", "Olu", "Priya", "Ravi", "Sofia", "Tomas", "Uma", "Yuki", "Zsofia",
)  # fmt: skip
LAST = (
    "Alvarez", "Chen", "Costa", "Diallo", "Fischer", "Haddad", "Ivanov", "Khan", "Kim", "Lopez", "Mensah", "Nakamura",
    "Okafor", "Patel", "Rossi", "Singh", "Tanaka", "Weber",
)  # fmt: skip
TEAMS = ("Design", "Engineering", "Finance", "Sales", "Support")
TOPICS = (
    "budget review", "sprint planning", "product roadmap", "annual report", "hiring plan", "risk review", "design sync",
    "customer interviews", "security audit", "release checklist", "quarterly forecast", "team retrospective",
)  # fmt: skip
WORK = (
    "Fix the login page", "Improve the search index", "Write the onboarding guide", "Clean up the billing job",
    "Add dark mode", "Review the data model", "Update the price list", "Measure page speed", "Draw the new icons",
)  # fmt: skip
PEOPLE, EVENTS, EMAILS, TASKS = 10, 26, 30, 28


@lru_cache(maxsize=256)
def world_of(seed: int) -> World:
    """The world of a seed, always the same. Copy it before anything happens in it."""
    rng = random.Random(f"workplace {seed}")
    contacts = []
    firsts = rng.sample(FIRST, PEOPLE)
    for number, first in enumerate(firsts):
        last = rng.choice(LAST)
        email = f"{first}.{last}@atlas.com".lower()
        phone = f"+44 20 7946 {rng.randrange(10_000):04}"
        contacts.append(
            _row("contact", number, name=f"{first} {last}", email=email, phone=phone, team=rng.choice(TEAMS))
        )
    emails = [row["email"] for row in contacts]
    now = datetime.strptime(NOW, TIME)
    events = []
    for number in range(EVENTS):
        start = now + timedelta(days=rng.randrange(-7, 14), minutes=30 * rng.randrange(18, 34))
        events.append(
            _row(
                "event", number, event_name=rng.choice(TOPICS), participant_email=rng.choice(emails),
                event_start=start.strftime(TIME), duration=str(rng.choice((30, 60, 90))),
            )
        )  # fmt: skip
    letters = []
    for number in range(EMAILS):
        topic, sent = rng.choice(TOPICS), now - timedelta(minutes=rng.randrange(60, 60 * 24 * 14))
        letters.append(
            _row(
                "email", number, subject=f"{rng.choice(('Update on', 'Question about', 'Notes from'))} {topic}",
                body=f"Some words about the {topic}.", sent_datetime=sent.strftime(TIME),
            ) | {"inbox/outbox": rng.choice(("inbox", "inbox", "outbox")), "sender/recipient": rng.choice(emails)}
        )  # fmt: skip
    tasks = [
        _row(
            "task", number, task_name=rng.choice(WORK), assigned_to_email=rng.choice(emails),
            list_name=rng.choice(LISTS), board=rng.choice(BOARDS),
            due_date=(now + timedelta(days=rng.randrange(-10, 15))).strftime(DAY),
        )
        for number in range(TASKS)
    ]  # fmt: skip
    return World.of({"calendar": events, "emails": letters, "tasks": tasks, "contacts": contacts})


def _row(kind: str, number: int, **columns: str) -> Row:
    return {f"{kind}_id": str(number).zfill(8), **columns}
