"""Variants of a task: everything that belongs together is swapped together, and nothing else."""

import time
from itertools import islice
from typing import Any

import pytest

from flywheel.core.envs import Task
from flywheel.core.envs.task_variants import MOST, READ, CannotVary, Spec, entities, make

MEETING = Task(
    "t-4",
    "Book a meeting with Bako Lund on November 13 at 10:30 about ticket AB-1204, for 45 minutes, not 3.",
    {
        "tool": "calendar.create",
        "arguments": {
            "person": "Bako Lund",
            "start": "2026-11-13 10:30",
            "about": "AB-1204",
            "minutes": 45,
            "room": 3,
        },
    },
    state={"tickets": [{"id": "AB-1204", "owner": "Bako Lund", "opened": "2026-11-13"}], "rooms": [3]},
    cluster="session-9",
    slice="formal",
)
ALL = ("Bako Lund", "November 13", "10:30", "AB-1204", "45")


def test_what_request_and_target_both_say_can_be_swapped() -> None:
    kinds = {
        "Bako Lund": "name",
        "November 13": "date",
        "10:30": "time",
        "AB-1204": "id",
        "45": "number",
    }  # and not 3, which may be two things: target and state have one each
    assert {entity.text: entity.kind for entity in entities(MEETING)} == kinds


def test_request_target_and_state_change_together() -> None:
    values = {"Bako Lund": ("Ida Moe",), "November 13": ("2027-02-01",), "AB-1204": ("ZZ-9",), "45": ("20",)}
    spec = Spec(("Bako Lund", "November 13", "AB-1204", "45"), {name: tuple(v) for name, v in values.items()})
    (made,) = islice(make(MEETING, spec, seed=1), 1)
    assert made.prompt == "Book a meeting with Ida Moe on February 1 at 10:30 about ticket ZZ-9, for 20 minutes, not 3."
    assert made.target["arguments"] == {
        "person": "Ida Moe",
        "start": "2027-02-01 10:30",
        "about": "ZZ-9",
        "minutes": 20,
        "room": 3,
    }
    assert made.state == {"tickets": [{"id": "ZZ-9", "owner": "Ida Moe", "opened": "2027-02-01"}], "rooms": [3]}
    assert (made.cluster, made.slice) == ("session-9", "formal")


def test_values_that_are_drawn_are_of_the_kind_and_the_same_for_a_seed() -> None:
    first = list(islice(make(MEETING, Spec(ALL), seed=3), 20))
    assert first == list(islice(make(MEETING, Spec(ALL), seed=3), 20))
    assert len({task.prompt for task in first}) == 20
    for task in first:
        said = task.target["arguments"]
        assert said["person"] in task.prompt
        assert said["person"] != "Bako Lund"
        assert f"for {said['minutes']} minutes" in task.prompt
        assert said["start"][11:] in task.prompt
        assert {each.text for each in entities(task)} >= {said["person"], said["about"]}


def test_another_wording_keeps_what_is_asked() -> None:
    spec = Spec(("Bako Lund",), wordings=("{Bako Lund}, {November 13}, {10:30}: {AB-1204}, {45} min, {3}",))
    made = list(islice(make(MEETING, spec, seed=1), 12))
    terse = [task for task in made if not task.prompt.startswith("Book")]
    assert 0 < len(terse) < 12
    for task in terse:
        assert task.prompt.endswith(", November 13, 10:30: AB-1204, 45 min, 3")
        assert task.prompt.startswith(task.target["arguments"]["person"])


def test_nothing_that_is_there_or_forbidden_is_made() -> None:
    spec = Spec(("Bako Lund",), {"Bako Lund": ("Ida Moe", "Ola Berg", "Eva Lie")})
    there = ["book a meeting with ida moe on november 13 at 10:30 about ticket ab-1204, for 45 minutes, not 3"]
    made = list(make(MEETING, spec, seed=1, taken=there, forbidden=lambda _, value: value == "Ola Berg"))
    assert [task.target["arguments"]["person"] for task in made] == ["Eva Lie"]


def test_what_stands_twice_is_ambiguous_and_not_offered() -> None:
    task = Task("t-1", "Move 3 of the 3 meetings of Bako", {"tool": "x", "arguments": {"count": 3, "person": "Bako"}})
    assert [entity.text for entity in entities(task)] == ["Bako"]


def test_keys_and_moments_change_too() -> None:
    task = Task(
        "t-2",
        "Meet Bako on November 13 at 10:30",
        {"arguments": {"person": "Bako", "start": "2026-11-13T10:30:00"}},
        state={"contacts": {"Bako": {"free": {"2026-11-13": ["10:30Z"]}}}, "note": "Bako: 13 November"},
    )
    spec = Spec(
        ("Bako", "November 13", "10:30"), {"Bako": ("Ida",), "November 13": ("2027-02-01",), "10:30": ("9:15",)}
    )
    (made,) = islice(make(task, spec, seed=1), 1)
    assert made.prompt == "Meet Ida on February 1 at 9:15"
    assert made.target == {"arguments": {"person": "Ida", "start": "2027-02-01T9:15:00"}}
    assert made.state == {
        "contacts": {"Ida": {"free": {"2027-02-01": ["9:15Z"]}}},
        "note": "Ida: 1 February",
    }


def test_two_keys_never_become_one() -> None:
    task = Task("t-3", "Ask Bako", {"person": "Bako"}, state={"contacts": {"Bako": 1, "Ida": 2}})
    assert not list(make(task, Spec(("Bako",), {"Bako": ("Ida",)}), seed=1))


@pytest.mark.parametrize("state", [{"mail": "see Bako_Lund"}, {"Bako2": []}])
def test_what_would_stay_within_another_word_is_refused(state: dict[str, Any]) -> None:
    task = Task("t-3", "Ask Bako", {"person": "Bako"}, state=state)
    with pytest.raises(CannotVary, match="'Bako' stands in the state"):
        next(make(task, Spec(("Bako",)), seed=1))


@pytest.mark.parametrize(
    ("target", "state"), [({"count": 3, "retries": 3}, {}), ({"count": 3}, {"retries": 3}), ({"count": 3}, {"3": 1})]
)
def test_a_number_at_two_places_is_not_offered(target: dict[str, Any], state: dict[str, Any]) -> None:
    assert entities(Task("t-1", "Move 3 meetings", target, state=state)) == []


@pytest.mark.parametrize("number", [12.5, 15, 10000019, 123456789, 7])
def test_what_is_drawn_for_a_number_is_one_of_its_type(number: float) -> None:
    task = Task("t-1", f"Pay {number} now", {"amount": number})
    made = list(islice(make(task, Spec((f"{number}",)), seed=2), 40))
    assert len(made) > 5
    for each in made:
        assert type(each.target["amount"]) is type(number)
        assert each.prompt == f"Pay {each.target['amount']} now"


@pytest.mark.parametrize(
    ("number", "value"), [(15, "007"), (15, "2.5"), (12.5, "13"), (10000019, "AB-1"), (15, "１２")]
)
def test_a_value_that_is_no_number_of_the_type_is_refused(number: float, value: str) -> None:
    task = Task("t-1", f"Pay {number} now", {"amount": number})
    with pytest.raises(CannotVary) as refused:
        next(make(task, Spec((f"{number}",), {f"{number}": (value,)}), seed=1))
    assert refused.value.field == "values"


def test_a_long_request_costs_little_and_offers_some() -> None:
    names = [f"{chr(65 + a)}{chr(97 + b)}{chr(97 + c)}" for a in range(10) for b in range(10) for c in range(10)]
    task = Task("t-1", ", ".join(names), {"people": names})
    began = time.process_time()
    assert [entity.text for entity in entities(task)] == names[:MOST]
    assert time.process_time() - began < 1.0
    assert entities(Task("t-1", "x " * READ + "Bako", {"person": "Bako"})) == []


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        (Spec(), "swap"),
        (Spec(("Nobody",)), "swap"),
        (Spec(("45",), {"45": ("many",)}), "values"),
        (Spec(("not 3",), {"not 3": ("x",)}), "swap"),
        (Spec(("November 13",), {"November 13": ("tomorrow",)}), "values"),
        (Spec(("45",), wordings=("Book it for {45} minutes",)), "wordings"),
    ],
)
def test_what_makes_no_variant_is_refused(spec: Spec, field: str) -> None:
    with pytest.raises(CannotVary) as refused:
        next(make(MEETING, spec, seed=1))
    assert refused.value.field == field
    assert Spec.from_json(Spec(("a",), {"a": ("b",)}, ("c",)).to_json()) == Spec(("a",), {"a": ("b",)}, ("c",))
