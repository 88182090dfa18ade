"""Tasks and databases of WorkBench (Styles et al. 2024, arXiv 2405.00823), from a folder that holds them.

The folder has `calendar_events.csv`, `emails.csv`, `project_tasks.csv`, and `<domain>-tasks.jsonl` with
`{"query", "template", "expected_calls": [{"function_name", "arguments"}]}` a line.
"""

import csv
import json
from pathlib import Path
from typing import Any

from flywheel.core.digests import digest
from flywheel.core.envs import Task

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


def tasks(folder: Path, domain: str) -> list[Task]:
    """The tasks of a domain (`calendar`, `email`, `project_management`). A template is a slice and a cluster."""
    found = []
    for line in (folder / f"{domain}-tasks.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        calls: list[dict[str, Any]] = [
            {"tool": call["function_name"], "arguments": call["arguments"]} for call in row["expected_calls"]
        ]
        name = f"workbench-{domain}-{digest(row['query'])[:12]}"
        template = row["template"][:100]
        found.append(Task(name, row["query"], {"calls": calls}, {}, cluster=f"workbench {template}", slice=template))
    return found


def _name(email: str) -> str:
    return " ".join(part.capitalize() for part in email.partition("@")[0].split("."))
