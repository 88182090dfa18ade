"""The world of the workplace: four tables of rows, every value text, and the time that it is."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from flywheel.core.text.normal_form import COMPARISONS

Row = dict[str, str]
NOW = "2023-11-30 00:00:00"
LISTS = ("Backlog", "In Progress", "In Review", "Completed")
BOARDS = ("Back end", "Front end", "Design")
KEYS = {"calendar": "event_id", "emails": "email_id", "tasks": "task_id", "contacts": "contact_id"}
FIELDS = {
    "calendar": ("event_id", "event_name", "participant_email", "event_start", "duration"),
    "emails": ("email_id", "inbox/outbox", "sender/recipient", "subject", "sent_datetime", "body"),
    "tasks": ("task_id", "task_name", "assigned_to_email", "list_name", "due_date", "board"),
    "contacts": ("contact_id", "name", "email", "phone", "team"),
}
EXACT = {"list_name", "board"}
"""Fields in which capitals matter."""
TIME, DAY = "%Y-%m-%d %H:%M:%S", "%Y-%m-%d"


@dataclass(slots=True)
class World:
    tables: dict[str, dict[str, Row]]
    now: str = NOW
    made: dict[str, set[str]] = field(default_factory=lambda: {name: set() for name in KEYS})
    """Ids of rows that were not there in the beginning."""
    journal: "list[Change]" = field(default_factory=list)
    """What has left this world: `(table, "sent" | "invited", field=value, …)`. Nothing takes an entry back."""

    @classmethod
    def of(cls, tables: Mapping[str, Iterable[Mapping[str, Any]]], now: str = NOW) -> "World":
        """From lists of rows. Raises KeyError for a table or a field that is missing."""
        kept: dict[str, dict[str, Row]] = {}
        for name, key in KEYS.items():
            rows = [{column: str(row[column]) for column in FIELDS[name]} for row in tables.get(name, ())]
            kept[name] = {row[key]: row for row in rows}
        return cls(kept, now)

    def copy(self) -> "World":
        """Another world in which things may happen; rows are shared until they are changed."""
        return World({name: dict(rows) for name, rows in self.tables.items()}, self.now)

    def put(self, table: str, row: Mapping[str, str]) -> str:
        """Add a row under the next free id."""
        rows = self.tables[table]
        key = str(max((int(each) for each in rows if each.isdecimal()), default=-1) + 1).zfill(8)
        rows[key] = {KEYS[table]: key, **row}
        self.made[table].add(key)
        return key

    def set(self, table: str, key: str, column: str, value: str) -> None:
        rows = self.tables[table]
        rows[key] = {**rows[key], column: value}

    def send(self, recipient: str, subject: str, body: str) -> None:
        """Note a mail: each one arrives, whatever becomes of its copy here."""
        said = {"recipient": recipient, "subject": subject, "body": body}
        self.journal.append(("emails", "sent", *(f"{name}={_plain(name, value)}" for name, value in said.items())))

    def invite(self, participant: str) -> None:
        """Note an invitation. Who is invited twice, since the event was made anew, was invited."""
        entry = ("calendar", "invited", f"participant={_plain('participant', participant)}")
        if entry not in self.journal:
            self.journal.append(entry)


Change = tuple[str, ...]
"""(table, "gone", id), (table, "set", id, field, value), or (table, "new", field=value, …)."""


def unasked(made: World, wanted: World) -> Counter[Change]:
    """Count what left the one world beyond what left the other."""
    return Counter(made.journal) - Counter(wanted.journal)


def changes(before: World, after: World) -> dict[Change, int]:
    """Count each change of the world. New rows have no id: in which order they were made does not matter."""
    found: dict[Change, int] = {}
    for table, rows in after.tables.items():
        old = before.tables[table]
        for key in old.keys() - (rows.keys() - after.made[table]):
            found[(table, "gone", key)] = 1
        for key, row in rows.items():
            if key in after.made[table]:
                said = (f"{name}={_plain(name, value)}" for name, value in sorted(row.items()) if name != KEYS[table])
                change = (table, "new", *said)
                found[change] = found.get(change, 0) + 1
            elif row is not old[key]:
                for name, value in row.items():
                    if _plain(name, value) != _plain(name, old[key].get(name, "")):
                        found[(table, "set", key, name, _plain(name, value))] = 1
    return found


def _plain(name: str, value: str) -> str:
    return COMPARISONS["spaces" if name in EXACT else "case"](value)
