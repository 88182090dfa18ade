"""The tools that read and change the world.

Names, arguments and answers of the tools of calendar, email, tasks and directory are those of WorkBench (Styles et al.
2024, arXiv 2405.00823), so that runs recorded there can be judged here; the others are made in the same manner.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from flywheel.core.envs.workplace.world import BOARDS, DAY, FIELDS, KEYS, LISTS, TIME, Row, World
from flywheel.core.traces.outward_acts import OUTWARD

FOUND = 5
"""Rows that a search of events or emails answers at most."""
LONGEST = 10_000
"""Characters of a value that a tool takes."""
LONGEST_NUMBER = 18
"""Digits of one."""
NOT_OF_THE_TEAM = "Assignee email not valid. Please choose from the list of team members."

Run = Callable[[World, dict[str, str]], Any]
"""What a tool does in a world with the arguments that it was given, and what it answers."""


@dataclass(frozen=True, slots=True)
class Tool:
    name: str
    description: str
    parameters: dict[str, Any]
    run: Run
    is_change: bool
    is_outward: bool

    @property
    def definition(self) -> dict[str, Any]:
        found: dict[str, Any] = {"name": self.name, "description": self.description, "parameters": self.parameters}
        found |= {"x-unsafe": True} if self.is_change else {}
        return found | ({OUTWARD: True} if self.is_outward else {})

    def problem(self, arguments: Mapping[str, Any]) -> str:
        """Why it does not take these arguments; empty when it does. What its schema says, without what JSON schema's
        machinery costs at each call."""
        known, required = self.parameters["properties"], self.parameters["required"]
        if missing := [name for name in required if name not in arguments]:
            return f"{', '.join(missing)} must be given"
        if more := [str(name)[:100] for name in arguments if name not in known]:
            return f"{', '.join(more)[:300]}: there is no such argument, only {', '.join(known)}"
        for name, value in arguments.items():
            is_number = type(value) is int and "integer" in known[name]["type"] and abs(value) < 10**LONGEST_NUMBER
            if not is_number and not (isinstance(value, str) and len(value) <= LONGEST):
                return f"{name}: must be a text of at most {LONGEST} characters"
        return ""


TOOLS: dict[str, Tool] = {}


def call(world: World, name: str, arguments: Any) -> tuple[Any, bool]:
    """Carry out a call in this world. Returns the observation, and whether the call was one that the tool takes."""
    tool = TOOLS.get(name)
    if tool is None:
        return f"{name[:100]} is not a valid tool, try one of [{', '.join(TOOLS)}].", False
    if not isinstance(arguments, Mapping):
        return "The arguments are not a JSON object.", False
    if problem := tool.problem(arguments):
        return problem, False
    return tool.run(world, {key: str(value) for key, value in arguments.items()}), True


def _tool(
    name: str,
    description: str,
    required: str = "",
    optional: str = "",
    *,
    changes: bool = False,
    outward: bool = False,
) -> Callable[[Run], Run]:
    def register(run: Run) -> Run:
        value = {"type": ["string", "integer"], "maxLength": LONGEST}
        names = [*required.split(), *optional.split()]
        parameters = {
            "type": "object",
            "properties": {each: value | PROPERTIES.get(each, {}) for each in names},
            "required": required.split(),
            "additionalProperties": False,
        }
        TOOLS[name] = Tool(name, description, parameters, run, changes or outward, outward)
        return run

    return register


PROPERTIES: dict[str, dict[str, Any]] = {
    "event_start": {"type": "string", "description": "YYYY-MM-DD HH:MM:SS"},
    "time_min": {"type": "string", "description": "YYYY-MM-DD HH:MM:SS"},
    "time_max": {"type": "string", "description": "YYYY-MM-DD HH:MM:SS"},
    "date_min": {"type": "string", "description": "YYYY-MM-DD"},
    "date_max": {"type": "string", "description": "YYYY-MM-DD"},
    "day": {"type": "string", "description": "YYYY-MM-DD"},
    "due_date": {"type": "string", "description": "YYYY-MM-DD"},
    "duration": {"description": "minutes"},
    "list_name": {"type": "string", "description": f"one of {', '.join(LISTS)}"},
    "board": {"type": "string", "description": f"one of {', '.join(BOARDS)}"},
}


def _information(name: str, table: str, noun: str) -> None:
    """The tool of this name, which answers one field of a row."""

    @_tool(name, f"One field of {noun}. Fields: {', '.join(FIELDS[table])}", f"{KEYS[table]} field")
    def run(world: World, given: dict[str, str]) -> Any:
        row = world.tables[table].get(given[KEYS[table]])
        if row is None:
            return f"{_subject(noun)} not found."
        return {given["field"]: row[given["field"]]} if given["field"] in row else "Field not found."


def _delete(name: str, table: str, noun: str) -> None:
    @_tool(name, f"Deletes {noun}.", KEYS[table], changes=True)
    def run(world: World, given: dict[str, str]) -> Any:
        key = given[KEYS[table]]
        if world.tables[table].pop(key, None) is None:
            return f"{_subject(noun)} not found."
        world.made[table].discard(key)
        return f"{_subject(noun)} deleted successfully."


def _update(
    name: str,
    table: str,
    noun: str,
    problem: Callable[[World, str, str], str] = lambda *_: "",
    then: Callable[[World, str, str], None] = lambda *_: None,
) -> None:
    """The tool of this name; `problem` says of a column and a value why the row may not have it, and `then` is what
    else happens."""

    @_tool(name, f"Sets one field of {noun} to a new value.", f"{KEYS[table]} field new_value", changes=True)
    def run(world: World, given: dict[str, str]) -> Any:
        key, column, value = given[KEYS[table]], given["field"], given["new_value"]
        if not value:
            return f"{_subject(noun)} ID, field, or new value not provided."
        if key not in world.tables[table]:
            return f"{_subject(noun)} not found."
        if column not in FIELDS[table] or column == KEYS[table]:
            return "Field not valid."
        if wrong := problem(world, column, value):
            return wrong
        world.set(table, key, column, value.lower() if "email" in column else value)
        then(world, column, value)
        return f"{_subject(noun)} updated successfully."


def _subject(noun: str) -> str:
    """`an event` as the subject of an answer: `Event`."""
    return noun.partition(" ")[2].capitalize()


# Calendar

_information("calendar.get_event_information_by_id", "calendar", "an event")
_delete("calendar.delete_event", "calendar", "an event")


@_tool(
    "calendar.search_events",
    "At most 5 events whose name or participant contains the query and that start within the times.",
    "", "query time_min time_max",
)  # fmt: skip
def _search_events(world: World, given: dict[str, str]) -> Any:
    query = given.get("query", "").lower()
    low, high = given.get("time_min", ""), given.get("time_max", "")
    found = [
        row
        for row in world.tables["calendar"].values()
        if (query in row["event_name"].lower() or query in row["participant_email"].lower())
        and row["event_start"] >= low
        and (not high or row["event_start"] <= high)
    ]
    return found[:FOUND] or "No events found."


@_tool(
    "calendar.create_event", "Creates an event and answers its id.",
    "event_name participant_email event_start duration", outward=True,
)  # fmt: skip
def _create_event(world: World, given: dict[str, str]) -> Any:
    if not all(given.values()):
        return "Event name, participant email, start or duration not provided."
    world.invite(given["participant_email"])
    return world.put("calendar", given | {"participant_email": given["participant_email"].lower()})


def _invited(world: World, column: str, value: str) -> None:
    if column == "participant_email":
        world.invite(value)


_update("calendar.update_event", "calendar", "an event", then=_invited)


@_tool(
    "calendar.find_free_slot",
    "The first time from 09:00 to 18:00 of a day at which nothing is on for so many minutes.",
    "day duration",
)
def _find_free_slot(world: World, given: dict[str, str]) -> Any:
    try:
        wanted = timedelta(minutes=int(given["duration"]))
        at = datetime.strptime(given["day"], DAY).replace(hour=9)
    except (ValueError, OverflowError):
        return "Day or duration not valid."
    end = at.replace(hour=18)
    taken = sorted(_taken(world, given["day"]))
    for start, stop in taken:
        if start - at >= wanted:  # a difference always exists; a sum may lie beyond the year 9999
            break
        at = max(at, stop)
    return at.strftime(TIME) if end - at >= wanted else "No free slot on this day."


def _taken(world: World, day: str) -> Iterable[tuple[datetime, datetime]]:
    for row in world.tables["calendar"].values():
        if row["event_start"].startswith(day):
            try:
                start = datetime.strptime(row["event_start"], TIME)
                yield start, start + timedelta(minutes=int(row["duration"]))
            except (ValueError, OverflowError):
                continue  # somebody wrote no time there, or one that never ends


# Email

_information("email.get_email_information_by_id", "emails", "an email")
_delete("email.delete_email", "emails", "an email")


@_tool(
    "email.search_emails",
    "The newest 5 emails that hold all words of the query in subject, body or address, sent within the dates.",
    "", "query date_min date_max",
)  # fmt: skip
def _search_emails(world: World, given: dict[str, str]) -> Any:
    words = given.get("query", "").lower().split()
    low, high = given.get("date_min", "")[:10], given.get("date_max", "")[:10]
    found = [
        row
        for row in world.tables["emails"].values()
        if all(word in f"{row['subject']} {row['body']} {row['sender/recipient']}".lower() for word in words)
        and row["sent_datetime"][:10] >= low
        and (not high or row["sent_datetime"][:10] <= high)
    ]
    return sorted(found, key=lambda row: row["sent_datetime"], reverse=True)[:FOUND] or "No emails found."


@_tool("email.list_recent_emails", "The newest 5 emails of the inbox or the outbox.", "folder")
def _list_recent(world: World, given: dict[str, str]) -> Any:
    found = [row for row in world.tables["emails"].values() if row["inbox/outbox"] == given["folder"]]
    return sorted(found, key=lambda row: row["sent_datetime"], reverse=True)[:FOUND] or "No emails found."


@_tool("email.send_email", "Sends an email.", "recipient subject body", outward=True)
def _send_email(world: World, given: dict[str, str]) -> Any:
    if not all(given.values()):
        return "Recipient, subject, or body not provided."
    return _send(world, given["recipient"], given["subject"], given["body"], "sent")


@_tool("email.reply_email", "Replies to an email.", "email_id body", outward=True)
def _reply_email(world: World, given: dict[str, str]) -> Any:
    row = world.tables["emails"].get(given["email_id"])
    if not given["body"] or row is None:
        return "Email not found." if given["body"] else "Email ID or body not provided."
    return _send(world, row["sender/recipient"], row["subject"], given["body"], "replied")


@_tool("email.forward_email", "Forwards an email.", "email_id recipient", outward=True)
def _forward_email(world: World, given: dict[str, str]) -> Any:
    row = world.tables["emails"].get(given["email_id"])
    if row is None:
        return "Email not found."
    return _send(world, given["recipient"], f"FW: {row['subject']}", row["body"], "forwarded")


def _send(world: World, recipient: str, subject: str, body: str, done: str) -> str:
    if "@" not in recipient or "." not in recipient:
        return "Invalid recipient email address."
    columns = {"inbox/outbox": "outbox", "sender/recipient": recipient.lower(), "subject": subject, "body": body}
    world.put("emails", columns | {"sent_datetime": world.now})
    world.send(recipient, subject, body)
    return f"Email {done} successfully."


# Tasks

_information("project_management.get_task_information_by_id", "tasks", "a task")
_delete("project_management.delete_task", "tasks", "a task")


@_tool(
    "project_management.search_tasks", "Tasks whose fields contain what is given.",
    "", "task_name assigned_to_email list_name due_date board",
)  # fmt: skip
def _search_tasks(world: World, given: dict[str, str]) -> Any:
    wanted = {column: value.lower() for column, value in given.items() if value}
    if not wanted:
        return "No search parameters provided."
    return [
        row
        for row in world.tables["tasks"].values()
        if all(value in row[column].lower() for column, value in wanted.items())
    ]


@_tool("project_management.list_overdue_tasks", "Tasks of a person that are due before now and not completed.", "email")
def _list_overdue(world: World, given: dict[str, str]) -> Any:
    return [
        row
        for row in world.tables["tasks"].values()
        if row["assigned_to_email"] == given["email"].lower()
        and row["due_date"] < world.now[:10]
        and row["list_name"] != "Completed"
    ]


@_tool(
    "project_management.create_task", "Creates a task and answers its id.",
    "task_name assigned_to_email list_name due_date board", changes=True,
)  # fmt: skip
def _create_task(world: World, given: dict[str, str]) -> Any:
    if not all(given.values()):
        return "Missing task details."
    for column in ("assigned_to_email", "list_name", "board"):
        if wrong := _task_problem(world, column, given[column]):
            return wrong
    return world.put("tasks", given | {"assigned_to_email": given["assigned_to_email"].lower()})


def _task_problem(world: World, column: str, value: str) -> str:
    if column == "assigned_to_email":
        known = {row["assigned_to_email"].lower() for row in world.tables["tasks"].values()}
        known |= {row["email"].lower() for row in world.tables["contacts"].values()}
        return "" if value.lower() in known else NOT_OF_THE_TEAM
    options = {"list_name": ("List", LISTS), "board": ("Board", BOARDS)}.get(column)
    if options is None or value in options[1]:
        return ""
    return f"{options[0]} not valid. Please choose from: {', '.join(repr(each) for each in options[1])}."


_update("project_management.update_task", "tasks", "a task", _task_problem)


# Contacts

_information("contacts.get_contact_information_by_id", "contacts", "a contact")
_delete("contacts.delete_contact", "contacts", "a contact")


@_tool("company_directory.find_email_address", "Email addresses of people whose name contains this.", "name")
def _find_email_address(world: World, given: dict[str, str]) -> Any:
    name = given["name"].lower()
    if not name:
        return "Name not provided."
    found = [row["email"] for row in world.tables["contacts"].values() if _is_called(row, name)]
    return found or "No email address found."


def _is_called(row: Row, name: str) -> bool:
    return name in row["name"].lower() or name.replace(" ", ".") in row["email"].lower()


@_tool("contacts.search_contacts", "Contacts whose name, address or team contains the query.", "query")
def _search_contacts(world: World, given: dict[str, str]) -> Any:
    query = given["query"].lower()
    found = [row for row in world.tables["contacts"].values() if query in " ".join(row.values()).lower()]
    return found or "No contacts found."


@_tool("contacts.create_contact", "Creates a contact and answers its id.", "name email phone team", changes=True)
def _create_contact(world: World, given: dict[str, str]) -> Any:
    if "@" not in given["email"]:
        return "Invalid email address."
    if any(row["email"] == given["email"].lower() for row in world.tables["contacts"].values()):
        return "There is a contact with this email address already."
    return world.put("contacts", given | {"email": given["email"].lower()})


_update("contacts.update_contact", "contacts", "a contact")


@_tool("contacts.list_team", "The contacts of a team.", "team")
def _list_team(world: World, given: dict[str, str]) -> Any:
    team = given["team"].lower()
    return [row for row in world.tables["contacts"].values() if row["team"].lower() == team] or "No contacts found."


DEFINITIONS: list[dict[str, Any]] = [tool.definition for tool in TOOLS.values()]
