"""Deterministic detectors: each reads a trace and proposes a bucket, with the step and a sentence that shows why.

No model is asked; the same trace always gives the same proposals. A reviewer reads every proposal, so a detector says
nothing where a careful person could disagree: precision over recall. A score is how often we expect a reviewer to
agree, and puts proposals in order: the cause before its consequence, harm before waste, waste before the end it led to.

What they propose on 280 recorded runs of two real agents, against labels made by reading, and on 1,400 runs of agents
that they were not made by looking at, stands in `docs/design/detectors.md`. Those that did not hold there are off by
default.

Evidence quotes what agents wrote. It is hostile: `said` cuts it and takes out what could deceive a reader, and pages
escape it like all other text.
"""

from flywheel.core.detectors import call_detectors, object_detectors, run_detectors
from flywheel.core.detectors.scene import AT_MOST, Context, Detector, Found, Proposal, Scene
from flywheel.core.traces import Trace
from flywheel.core.traces.episodes import read

__all__ = ["DETECTORS", "Context", "Detector", "Proposal", "detect"]


def detect(trace: Trace, context: Context | None = None) -> list[Proposal]:
    """Every detector's proposals, the most certain first. Pure; never raises, whatever the trace holds."""
    context = context or Context()
    tools = [tool for tool in (context.tools or trace.tools) if isinstance(tool.get("name"), str)]
    scene = Scene(trace, read(trace), Context(tools, context.policy, context.state, context.expected))
    proposals: list[Proposal] = []
    for detector in DETECTORS.values():
        if detector.name in context.without:
            continue
        if detector.bucket == FALLBACK and any(proposal.score >= 0.5 for proposal in proposals):
            continue
        seen: set[str] = set()
        for step, score, evidence in _findings(detector, scene):
            if evidence not in seen and len(seen) < AT_MOST:
                seen.add(evidence)
                proposals.append(Proposal(detector.name, detector.bucket, step, score, evidence))
    return sorted(proposals, key=lambda proposal: -proposal.score)


def _findings(detector: Detector, scene: Scene) -> list[Found]:
    try:
        return list(detector.run(scene))
    except RecursionError:  # data nested to Python's limit: nobody reads that
        return []


FALLBACK = "other"
"""Proposed only where nothing better than even odds is."""

DETECTORS: dict[str, Detector] = {
    detector.name: detector
    for detector in (
        Detector(
            "broken_output",
            "A call that cannot be read as one",
            "format_error",
            call_detectors.broken_output,
            about="Calls whose arguments are no JSON object, calls without the name of a tool, messages that begin as "
            "JSON and cannot be read as it, and calls that were written as text so that nothing ran.",
        ),
        Detector(
            "unknown_tool",
            "A call of a tool that does not exist",
            "hallucinated_api",
            call_detectors.unknown_tool,
            about="Calls of a tool that is not among those the agent had, or that the other side answered with “no "
            "such tool”.",
        ),
        Detector(
            "broken_schema",
            "Arguments that break the tool's schema",
            "wrong_arguments",
            call_detectors.schema,
            about="Calls whose arguments break the JSON schema of their tool: a field that is missing, of the wrong "
            "type, or not one of the choices. A call that went through in a run that succeeded is left alone.",
        ),
        Detector(
            "invented_value",
            "An id, address or name that occurs nowhere",
            "wrong_arguments",
            call_detectors.invented_value,
            about="Arguments that must come from somewhere (ids, addresses, names of things that the agent's world "
            "refers to) and that occur nowhere in what the agent had been told, nor in the state.",
        ),
        Detector(
            "contradicted_value",
            "A choice other than the one named",
            "wrong_arguments",
            call_detectors.contradicted_value,
            about="An argument with a fixed choice of values where the user had named one of them and the agent chose "
            "another.",
        ),
        Detector(
            "wrong_object",
            "Another thing than the one that was meant",
            "wrong_arguments",
            object_detectors.wrong_object,
            about="A change of a thing that is real and not the one meant: what the agent had been shown fits the "
            "request less than another one shown, lies on another day, is past where what comes next was meant, is not "
            "the first or last, or is one of several where one was meant.",
        ),
        Detector(
            "nothing_done",
            "Found, and nothing done",
            "incomplete_execution",
            object_detectors.nothing_done,
            about="The agent was shown a thing that the request means (the one on that day, the next one, what lies "
            "ahead), tried to change nothing, and closed with words that ask nothing.",
        ),
        Detector(
            "blind_search",
            "A search for something made up",
            "retrieval_failure",
            run_detectors.blind_search,
            about="All searches brought nothing, one of them looked for an id or address that occurs nowhere, and the "
            "agent closed without changing anything. It may be right by luck, where there is nothing to find.",
            is_on=False,
        ),
        Detector(
            "other_tool",
            "Another tool than the one expected",
            "wrong_tool",
            call_detectors.other_tool,
            about="Where it is known what should have been called: the agent called other tools and never that one. "
            "It needs an expected call and proposes nothing in ordinary traffic.",
        ),
        Detector(
            "other_arguments",
            "Other arguments than expected",
            "wrong_arguments",
            call_detectors.other_arguments,
            about="Where it is known what should have been called: the right tool, with other arguments. It needs an "
            "expected call and proposes nothing in ordinary traffic.",
        ),
        Detector(
            "repeated_loop",
            "Calls that bring nothing new",
            "bad_planning",
            run_detectors.repeated_loop,
            about="The same call with the same arguments and the same answer three times or more, or five calls of "
            "one tool in a row that brought nothing. Tools that wait or poll are left alone.",
        ),
        Detector(
            "ignored_error",
            "A tool's error passed over in the answer",
            "incomplete_execution",
            run_detectors.ignored_error,
            about="A tool answered with an error, nothing after it put that right, and the agent closed as if all had "
            "gone well.",
        ),
        Detector(
            "unfinished",
            "A run that stops before its end",
            "incomplete_execution",
            run_detectors.unfinished,
            about="Runs that end before they are over: cut off at the token limit, stopped at a limit of steps or "
            "time, with an empty answer, in the middle of a call, or on a call that was never answered.",
        ),
        Detector(
            "unsafe_call",
            "A call that policy forbids or nobody asked for",
            "unsafe_action",
            call_detectors.unsafe,
            about="Calls of a tool that policy forbids, or of one that is marked unsafe where the user had asked for "
            "nothing of the kind.",
        ),
        Detector(
            "empty_retrieval",
            "Acting although nothing was found",
            "retrieval_failure",
            run_detectors.retrieval,
            about="All searches brought nothing or failed, and the agent went on to change something, or closed as if "
            "it had found what it needed.",
        ),
        Detector(
            "false_claim",
            "Success against the record",
            "inconsistent_success",
            run_detectors.claim_against_record,
            about="A run that was reported as failed and whose agent says that it is done; one reported as a success "
            "whose last call failed; a claim to have changed something where only lookups went through.",
        ),
        Detector(
            "reported",
            "Failed, or a person stepped in, and nobody knows why",
            FALLBACK,
            run_detectors.reported,
            about="The last resort: the run was reported as failed, or a person stepped in, and no other detector can "
            "say why. It proposes only where nothing better is proposed.",
        ),
    )
}
