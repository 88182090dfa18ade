"""Deterministic detectors: each reads a trace and proposes a bucket, with the step and a sentence that shows why.

No model is asked; the same trace always gives the same proposals. A reviewer reads every proposal, so a detector says
nothing where a careful person could disagree: precision over recall. A score is how often we expect a reviewer to
agree, and puts proposals in order: the cause before its consequence, harm before waste, waste before the end it led to.

What they propose on 280 recorded runs of two real agents, against labels made by reading, stands in
`docs/design/detectors.md`.

Evidence quotes what agents wrote. It is hostile: `said` cuts it and takes out what could deceive a reader, and pages
escape it like all other text.
"""

from flywheel.core.detectors import call_detectors, run_detectors
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
        for step, score, evidence in _found(detector, scene):
            if evidence not in seen and len(seen) < AT_MOST:
                seen.add(evidence)
                proposals.append(Proposal(detector.name, detector.bucket, step, score, evidence))
    return sorted(proposals, key=lambda proposal: -proposal.score)


def _found(detector: Detector, scene: Scene) -> list[Found]:
    try:
        return list(detector.run(scene))
    except RecursionError:  # data nested to Python's limit: nobody reads that
        return []


FALLBACK = "other"
"""Proposed only where nothing better than even odds is."""

DETECTORS: dict[str, Detector] = {
    detector.name: detector
    for detector in (
        Detector("broken_output", "A call that cannot be read as one", "format_error", call_detectors.broken_output),
        Detector(
            "unknown_tool", "A call of a tool that does not exist", "hallucinated_api", call_detectors.unknown_tool
        ),
        Detector("broken_schema", "Arguments that break the tool's schema", "wrong_arguments", call_detectors.schema),
        Detector(
            "invented_value",
            "An id, address or name that occurs nowhere",
            "wrong_arguments",
            call_detectors.invented_value,
        ),
        Detector(
            "contradicted_value",
            "A choice other than the one named",
            "wrong_arguments",
            call_detectors.contradicted_value,
        ),
        Detector("other_tool", "Another tool than the one expected", "wrong_tool", call_detectors.other_tool),
        Detector("other_arguments", "Other arguments than expected", "wrong_arguments", call_detectors.other_arguments),
        Detector("repeated_loop", "Calls that bring nothing new", "bad_planning", run_detectors.repeated_loop),
        Detector(
            "ignored_error",
            "A tool's error passed over in the answer",
            "incomplete_execution",
            run_detectors.ignored_error,
        ),
        Detector("unfinished", "A run that stops before its end", "incomplete_execution", run_detectors.unfinished),
        Detector(
            "unsafe_call", "A call that policy forbids or nobody asked for", "unsafe_action", call_detectors.unsafe
        ),
        Detector("empty_retrieval", "Acting although nothing was found", "retrieval_failure", run_detectors.retrieval),
        Detector(
            "false_claim", "Success against the record", "inconsistent_success", run_detectors.claim_against_record
        ),
        Detector("reported", "Failed, or a person stepped in, and nobody knows why", FALLBACK, run_detectors.reported),
    )
}
