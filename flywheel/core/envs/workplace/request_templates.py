"""Requests out of a seed: what somebody asks for in a world, and what has to be done then.

A template writes a request about one world and the calls that fulfil it, reads included. Those in `HELD_OUT` are for
measuring: an environment that reserves them never trains on their kind of request.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from flywheel.core.envs.environment import Task
from flywheel.core.envs.workplace.seeded_worlds import FIRST, LAST, TEAMS, TOPICS, WORK, world_of
from flywheel.core.envs.workplace.world import BOARDS, DAY, NOW, TIME, Row, World
from flywheel.core.envs.workplace.world_tools import call

TASKS_PER_WORLD = 4

Calls = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Request:
    parts: tuple[object, ...]
    """What fills the wording."""
    calls: Calls


class NothingToAsk(LookupError):
    """This world has nothing that the template could ask about."""


Template = Callable[[random.Random, World], Request]
"""Raises NothingToAsk."""
TEMPLATES: dict[str, tuple[Template, tuple[str, ...]]] = {}
"""Each with its wordings; the numbers in their braces are places in what the template gives."""
HELD_OUT = ("first_free_slot", "write_to_a_team", "email_into_task", "move_and_tell")


def generate(count: int, *, seed: int) -> Iterator[Task]:
    """Tasks of all templates in turn, a few in each world; a world is a cluster, a template is a slice."""
    number, at = 0, 0
    names = list(TEMPLATES)
    while number < count:
        world_seed = seed * 1_000_003 + at // TASKS_PER_WORLD
        name = names[at % len(names)]
        rng = random.Random(f"workplace {seed} {at}")
        at += 1
        template, wordings = TEMPLATES[name]
        with suppress(NothingToAsk):
            asked = template(rng, world_of(world_seed))
            prompt = rng.choice(wordings).format(*asked.parts)
            state, cluster = {"world": world_seed}, f"world-{world_seed}"
            yield Task(f"work-{seed}-{number}", prompt, {"calls": asked.calls}, state, cluster, name)
            number += 1


def _template(*wordings: str) -> Callable[[Template], Template]:
    """Register the function below it, by its name, with these wordings of what it asks."""

    def register(run: Template) -> Template:
        TEMPLATES[run.__name__.removeprefix("_")] = run, wordings
        return run

    return register


def _call(tool: str, **arguments: str) -> dict[str, Any]:
    return {"tool": tool, "arguments": arguments}


def _person(rng: random.Random, world: World) -> tuple[str, Row, dict[str, Any]]:
    """Somebody, as one calls them, and the call that finds their address."""
    row = rng.choice(list(world.tables["contacts"].values()))
    first = row["name"].split()[0]
    return first, row, _call("company_directory.find_email_address", name=first)


def _events(world: World, day: str = "", email: str = "", after: str = "") -> list[Row]:
    """By their start; those that start at the same time are ambiguous and none of them is asked about."""
    found = [
        row
        for row in world.tables["calendar"].values()
        if row["event_start"].startswith(day) and row["event_start"] > after and email in row["participant_email"]
    ]
    starts = [row["event_start"] for row in found]
    return sorted((row for row in found if starts.count(row["event_start"]) == 1), key=lambda row: row["event_start"])


def _a_day(rng: random.Random) -> tuple[str, str]:
    """A day to come, as written in a table and as said."""
    at = datetime.strptime(NOW, TIME) + timedelta(days=rng.randrange(1, 14))
    return at.strftime(DAY), f"{at:%B} {at.day}"


def _whole_day(rng: random.Random, world: World) -> tuple[str, list[Row], Calls]:
    """A day whose events a search shows all, each starting at a time of its own."""
    day, said = _a_day(rng)
    every = [row for row in world.tables["calendar"].values() if row["event_start"].startswith(day)]
    events = _events(world, day)
    if not 0 < len(every) == len(events) <= 5:
        raise NothingToAsk
    search = _call("calendar.search_events", time_min=f"{day} 00:00:00", time_max=f"{day} 23:59:59")
    return said, events, [search]


@_template("Cancel my first meeting on {}", "Delete the first event on {}", "Drop my first meeting on {}")
def _cancel_first_meeting(rng: random.Random, world: World) -> Request:
    said, events, calls = _whole_day(rng, world)
    return Request((said,), [*calls, _call("calendar.delete_event", event_id=events[0]["event_id"])])


@_template("Rename the last event on {} to '{}'", "Change the name of my last meeting on {} to '{}'")
def _rename_last_event(rng: random.Random, world: World) -> Request:
    said, events, calls = _whole_day(rng, world)
    last, name = events[-1], rng.choice(TOPICS)
    if name == last["event_name"]:
        raise NothingToAsk
    change = _call("calendar.update_event", event_id=last["event_id"], field="event_name", new_value=name)
    return Request((said, name), [*calls, change])


def _next_with(rng: random.Random, world: World) -> tuple[str, Row, Calls]:
    who, row, find = _person(rng, world)
    coming = _events(world, email=row["email"], after=world.now)
    ambiguous = [each for each in world.tables["calendar"].values() if each["participant_email"] == row["email"]]
    if not coming or len([each for each in ambiguous if each["event_start"] > world.now]) > 5:
        raise NothingToAsk
    search = _call("calendar.search_events", query=row["email"], time_min=world.now)
    return who, coming[0], [find, search]


@_template("Cancel my next meeting with {}", "Please delete my next event with {}")
def _cancel_next_with(rng: random.Random, world: World) -> Request:
    who, event, calls = _next_with(rng, world)
    return Request((who,), [*calls, _call("calendar.delete_event", event_id=event["event_id"])])


def _later(event: Row, minutes: int) -> str:
    return (datetime.strptime(event["event_start"], TIME) + timedelta(minutes=minutes)).strftime(TIME)


@_template("Push back my next meeting with {} by {} minutes", "Start my next meeting with {} {} minutes later")
def _push_back_next_with(rng: random.Random, world: World) -> Request:
    who, event, calls = _next_with(rng, world)
    minutes = rng.choice((30, 60, 90))
    change = _call(
        "calendar.update_event", event_id=event["event_id"], field="event_start", new_value=_later(event, minutes)
    )
    return Request((who, minutes), [*calls, change])


@_template(
    "Create a {1} minute event called '{0}' on {2} at {3}:00 with {4}",
    "Put '{0}' into my calendar for {1} minutes on {2} at {3}:00 with {4}",
)
def _create_event(rng: random.Random, world: World) -> Request:
    who, row, find = _person(rng, world)
    (day, said), topic = _a_day(rng), rng.choice(TOPICS)
    hour, minutes = rng.randrange(9, 17), rng.choice((30, 60, 90))
    made = _call(
        "calendar.create_event", event_name=topic, participant_email=row["email"],
        event_start=f"{day} {hour:02}:00:00", duration=str(minutes),
    )  # fmt: skip
    return Request((topic, minutes, said, hour, who), [find, made])


@_template(
    "Book a 30 minute 'catch-up' with {} in my first free slot from 9:00 on {}",
    "Find the first half hour free from 9:00 and meet {} for a 'catch-up' on {}",
)
def _first_free_slot(rng: random.Random, world: World) -> Request:
    who, row, find = _person(rng, world)
    day, said = _a_day(rng)
    slot = _call("calendar.find_free_slot", day=day, duration="30")
    at, _ = call(world.copy(), slot["tool"], slot["arguments"])
    if not str(at).startswith(day):
        raise NothingToAsk
    made = _call(
        "calendar.create_event", event_name="catch-up", participant_email=row["email"], event_start=at, duration="30"
    )
    return Request((who, said), [find, slot, made])


def _last_from(rng: random.Random, world: World) -> tuple[str, Row, Calls]:
    who, row, find = _person(rng, world)
    mine = [each for each in world.tables["emails"].values() if each["sender/recipient"] == row["email"]]
    found = sorted(mine, key=lambda each: each["sent_datetime"])
    if not found or found[-1]["inbox/outbox"] != "inbox":
        raise NothingToAsk
    return who, found[-1], [find, _call("email.search_emails", query=row["email"])]


@_template("Delete my last email from {}", "Throw away the newest mail that {} sent me")
def _delete_last_from(rng: random.Random, world: World) -> Request:
    who, email, calls = _last_from(rng, world)
    return Request((who,), [*calls, _call("email.delete_email", email_id=email["email_id"])])


@_template("Reply to the latest email from {} with '{}'", "Answer the last mail of {} with '{}'")
def _reply_to_last_from(rng: random.Random, world: World) -> Request:
    who, email, calls = _last_from(rng, world)
    body = rng.choice(("Got it, thank you!", "Thanks, I will get back to you tomorrow.", "Sounds good to me."))
    return Request((who, body), [*calls, _call("email.reply_email", email_id=email["email_id"], body=body)])


@_template("Forward my most recent email from {} to {}", "Send the last mail of {} on to {}")
def _forward_last_from(rng: random.Random, world: World) -> Request:
    who, email, calls = _last_from(rng, world)
    other, row, find = _person(rng, world)
    if email["sender/recipient"] == row["email"]:
        raise NothingToAsk
    passed = _call("email.forward_email", email_id=email["email_id"], recipient=row["email"])
    return Request((who, other), [*calls, find, passed])


@_template("Send an email to {} saying '{}' and title it '{}'", "Write to {}: '{}', with subject '{}'")
def _send_email(rng: random.Random, world: World) -> Request:
    who, row, find = _person(rng, world)
    subject, body = rng.choice(TOPICS).capitalize(), rng.choice(("Please read the notes.", "Can we talk tomorrow?"))
    sent = _call("email.send_email", recipient=row["email"], subject=subject, body=body)
    return Request((who, body, subject), [find, sent])


@_template("Send everyone in {} an email '{}' with subject '{}'", "Write to all of {}: '{}', subject '{}'")
def _write_to_a_team(rng: random.Random, world: World) -> Request:
    team = rng.choice(TEAMS)
    members = [row for row in world.tables["contacts"].values() if row["team"] == team]
    if not 2 <= len(members) <= 4:
        raise NothingToAsk
    subject, body = rng.choice(TOPICS).capitalize(), "Please send me your numbers."
    sent = [_call("email.send_email", recipient=row["email"], subject=subject, body=body) for row in members]
    return Request((team, body, subject), [_call("contacts.list_team", team=team), *sent])


def _in_list(rng: random.Random, world: World, name: str) -> tuple[str, list[Row], Calls]:
    who, row, find = _person(rng, world)
    found = [
        t for t in world.tables["tasks"].values() if (t["assigned_to_email"], t["list_name"]) == (row["email"], name)
    ]
    if not 0 < len(found) <= 4:
        raise NothingToAsk
    search = _call("project_management.search_tasks", assigned_to_email=row["email"], list_name=name)
    return who, found, [find, search]


def _set_task(task: Row, field: str, value: str) -> dict[str, Any]:
    return _call("project_management.update_task", task_id=task["task_id"], field=field, new_value=value)


@_template(
    "Move all of {}'s tasks that are in progress to in review", "{}'s tasks in progress are ready for review, move them"
)
def _to_in_review(rng: random.Random, world: World) -> Request:
    who, tasks, calls = _in_list(rng, world, "In Progress")
    return Request((who,), [*calls, *(_set_task(task, "list_name", "In Review") for task in tasks)])


@_template("{} is sick, so give their tasks in progress to {}", "Reassign what {} has in progress to {}")
def _reassign_in_progress(rng: random.Random, world: World) -> Request:
    who, tasks, calls = _in_list(rng, world, "In Progress")
    other, row, find = _person(rng, world)
    if tasks[0]["assigned_to_email"] == row["email"]:
        raise NothingToAsk
    changes = [_set_task(task, "assigned_to_email", row["email"]) for task in tasks]
    return Request((who, other), [*calls, find, *changes])


@_template(
    "Move all of {}'s overdue tasks in the backlog to in progress", "Start the overdue tasks that {} has in the backlog"
)
def _start_overdue(rng: random.Random, world: World) -> Request:
    who, row, find = _person(rng, world)
    late = [
        task
        for task in world.tables["tasks"].values()
        if (task["assigned_to_email"], task["list_name"]) == (row["email"], "Backlog")
        and task["due_date"] < world.now[:10]
    ]
    if not late:
        raise NothingToAsk
    changes = [_set_task(task, "list_name", "In Progress") for task in late]
    return Request((who,), [find, _call("project_management.list_overdue_tasks", email=row["email"]), *changes])


@_template(
    "Add a task '{}' to the {} backlog for {}, due on {}",
    "Put '{}' into the backlog of {}, assigned to {} and due on {}",
)
def _create_task(rng: random.Random, world: World) -> Request:
    who, row, find = _person(rng, world)
    (day, said), name, board = _a_day(rng), rng.choice(WORK), rng.choice(BOARDS)
    made = _call(
        "project_management.create_task", task_name=name, assigned_to_email=row["email"], list_name="Backlog",
        due_date=day, board=board,
    )  # fmt: skip
    return Request((name, board, who, said), [find, made])


@_template(
    "Make the last email from {} a task for {}, named like its subject, in the {} backlog, due on {}",
    "Turn {}'s newest mail into a task of {} with its subject as the name, {} backlog, due on {}",
)
def _email_into_task(rng: random.Random, world: World) -> Request:
    who, email, calls = _last_from(rng, world)
    other, row, find = _person(rng, world)
    (day, said), board = _a_day(rng), rng.choice(BOARDS)
    made = _call(
        "project_management.create_task", task_name=email["subject"], assigned_to_email=row["email"],
        list_name="Backlog", due_date=day, board=board,
    )  # fmt: skip
    return Request((who, other, board, said), [*calls, find, made])


@_template(
    "Push back my next meeting with {0} by an hour and email them '{1}' with subject 'Our meeting'",
    "Move my next event with {0} an hour later, then write them '{1}', subject 'Our meeting'",
)
def _move_and_tell(rng: random.Random, world: World) -> Request:
    who, event, calls = _next_with(rng, world)
    body = "I have to start an hour later."
    moved = _call("calendar.update_event", event_id=event["event_id"], field="event_start", new_value=_later(event, 60))
    told = _call("email.send_email", recipient=event["participant_email"], subject="Our meeting", body=body)
    return Request((who, body), [*calls, moved, told])


@_template("Add {} to my contacts: {}, {}, team {}", "Save the contact {}, {}, {}, of {}")
def _new_contact(rng: random.Random, world: World) -> Request:
    first, last, team = rng.choice(FIRST), rng.choice(LAST), rng.choice(TEAMS)
    email, phone = f"{first}.{last}@northwind.com".lower(), f"+44 20 7946 {rng.randrange(10_000):04}"
    made = _call("contacts.create_contact", name=f"{first} {last}", email=email, phone=phone, team=team)
    return Request((f"{first} {last}", email, phone, team), [made])


@_template("{} has a new phone number, {}", "Change the phone number of {} to {}")
def _change_phone(rng: random.Random, world: World) -> Request:
    who, row, _ = _person(rng, world)
    phone = f"+44 20 7946 {rng.randrange(10_000):04}"
    change = _call("contacts.update_contact", contact_id=row["contact_id"], field="phone", new_value=phone)
    return Request((who, phone), [_call("contacts.search_contacts", query=who), change])
