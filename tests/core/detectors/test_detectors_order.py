"""What is proposed first: the cause before its consequence, harm before waste, the fault before the end it led to."""

from flywheel.core.detectors.standard_buckets import Proposal, detect
from flywheel.core.traces import Message
from tests.core.detectors.test_detectors import agent, episode, ran, user

EMPTY, DONE, REFUSED = "No events found.", "Event deleted successfully.", "Event not found."
SEARCH = {"query": "review", "on": "2023-12-01"}


def proposals(*messages: Message | list[Message], **fields: object) -> list[Proposal]:
    flat = [message for part in messages for message in ([part] if isinstance(part, Message) else part)]
    return detect(episode(user("Cancel my next review"), *flat, **fields))


def named(found: list[Proposal]) -> list[str]:
    return list(dict.fromkeys(proposal.detector for proposal in found))


def search(text: str = "", result: str = EMPTY) -> list[Message]:
    return ran(text, result, calendar_search_events=SEARCH)


def delete(text: str = "", result: str = DONE, event: str = "00000000") -> list[Message]:
    return ran(text, result, calendar_delete_event={"event_id": event})


def test_a_search_that_found_nothing_comes_before_what_was_made_up_in_its_stead() -> None:
    found = proposals(search(), delete(), agent("The review is cancelled."))
    assert named(found) == ["empty_retrieval", "invented_value"]
    assert {proposal.bucket for proposal in found} == {"retrieval_failure", "wrong_arguments"}


def test_who_acts_before_looking_made_up_the_value() -> None:
    assert named(proposals(delete(), search(), delete("again"), agent("Gone."))) == [
        "invented_value",
        "empty_retrieval",
    ]


def test_an_act_on_something_known_leaves_an_empty_search_less_sure() -> None:
    known = search(), delete(event="review"), agent("Gone.")
    found = proposals(*known)
    assert [(proposal.detector, proposal.score) for proposal in found] == [("empty_retrieval", 0.8)]


def test_a_search_for_something_made_up_that_finds_nothing_is_a_retrieval_failure() -> None:
    asked = ran("", EMPTY, email_search={"sender": "nia@example.com"})
    found = proposals(asked, agent("There are no emails from Nia."))
    assert named(found) == ["blind_search", "invented_value"]
    assert "nia@example.com" in found[0].evidence
    # A search for what the user said may well find nothing.
    assert proposals(search(), agent("There is no review.")) == []


def test_harm_comes_before_waste_and_waste_before_the_end() -> None:
    again = [message for n in range(5) for message in search(f"{n}")]
    stopped = agent("Agent stopped due to iteration limit or time limit.")
    assert named(proposals(delete(), again, stopped))[:2] == ["invented_value", "repeated_loop"]
    assert named(proposals(again, stopped)) == ["repeated_loop", "unfinished"]


def test_a_made_up_value_that_was_refused_counts_less_than_one_that_went_through() -> None:
    (through,) = proposals(delete(), agent("Gone."))
    (refused,) = proposals(delete(result=REFUSED), agent("I could not find it."))
    assert (through.detector, refused.detector) == ("invented_value", "invented_value")
    assert through.score > 0.9 > refused.score
    (said_right,) = proposals(delete(), agent("Gone."), outcome="success")
    assert through.score > said_right.score
    ends = proposals(delete(result=REFUSED), agent("I will search for it. Action: ```json"))
    assert named(ends) == ["unfinished", "invented_value"]


def test_a_list_of_calls_in_the_text_is_a_call_that_never_ran() -> None:
    written = 'I delete both.\nAction:\n```json\n[\n  {"action": "calendar.delete_event", "action_input"'
    assert named(proposals(agent(written))) == ["broken_output"]
    assert proposals(agent("What I could do: [1] search, [2] delete. Action: none yet.")) == []


def test_an_answer_that_could_not_be_parsed_is_broken_format_first() -> None:
    found = proposals(agent(""), metadata={"error": "An output parsing error occurred."})
    assert named(found) == ["broken_output", "unfinished"]
    assert "output parsing error" in found[0].evidence
    assert named(proposals(agent(""), metadata={"error": "Context window exceeded"})) == ["unfinished"]


def test_a_tool_that_does_not_exist_is_less_sure_where_the_agent_went_on_with_one_that_does() -> None:
    asked = ran("", "calendar.clear is not a valid tool, try one of [calendar.delete_event].", calendar_clear={})
    (gave_up,) = proposals(asked, agent("I cannot do that."))
    (went_on,) = proposals(asked, delete(event="review"), agent("Cancelled."))
    assert (gave_up.detector, went_on.detector) == ("unknown_tool", "unknown_tool")
    assert gave_up.score > 0.9 > went_on.score
    again = [message for n in range(5) for message in search(f"{n}")]
    assert named(proposals(asked, again, agent("Nothing.")))[0] == "repeated_loop"
