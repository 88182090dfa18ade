"""Tasks and databases of WorkBench (Styles et al. 2024, arXiv 2405.00823), from a folder that holds them.

The folder has `calendar_events.csv`, `emails.csv`, `project_tasks.csv`, and `<domain>-tasks.jsonl` with
`{"query", "template", "expected_calls": [{"function_name", "arguments"}]}` a line.
"""

import csv
from collections.abc import Iterator
from pathlib import Path

FILES = {"calendar": "calendar_events.csv", "emails": "emails.csv", "tasks": "project_tasks.csv"}
ADDRESSES = {"calendar": "participant_email", "emails": "sender/recipient", "tasks": "assigned_to_email"}


def database(folder: Path) -> dict[str, list[dict[str, str]]]:
    """The tables, as an environment's config takes them. The directory of people is who has an address in some row."""
    found: dict[str, list[dict[str, str]]] = {}
    for table, name in FILES.items():
        with (folder / name).open(newline="", encoding="utf-8") as file:
            found[table] = list(csv.DictReader(file))
    emails = {row[column].lower() for table, column in ADDRESSES.items() for row in found[table]}
    found["contacts"] = [
        {"contact_id": str(number).zfill(8), "name": _name(email), "email": email, "phone": "", "team": ""}
        for number, email in enumerate(sorted(emails))
    ]
    return found


def rows(folder: Path) -> Iterator[bytes]:
    """The tasks of every domain, a line each, as `core.interop.foreign_tasks` takes them. Of a template all are one
    source."""
    for path in sorted(folder.glob("*-tasks.jsonl")):
        yield from path.read_bytes().splitlines()


def _name(email: str) -> str:
    return " ".join(part.capitalize() for part in email.partition("@")[0].split("."))
