"""Faults of a whole run: loops, errors passed over, work left undone, claims that the record does not bear out."""

import re
from collections import defaultdict
from collections.abc import Iterator

from flywheel.core.detectors import request_words
from flywheel.core.detectors.scene import (
    CUT,
    FRUITLESS,
    LONG,
    MAKES,
    MANY,
    REPEATS,
    SEARCHES,
    Found,
    Scene,
    acts,
    called,
    is_put_right,
    made_up,
    quoted,
)
from flywheel.core.traces.episodes import SHORT, Call


def repeated_loop(scene: Scene) -> Iterator[Found]:
    same: dict[tuple[bytes, str], list[Call]] = defaultdict(list)
    for key, call in scene.keyed:
        if call.observation:
            same[key, call.observation.text].append(call)
    for calls in same.values():
        if len(calls) >= REPEATS and not _POLLS.search(calls[0].name):
            call = calls[REPEATS - 1]
            assert call.observation
            score = 0.91 if len(calls) > REPEATS else 0.85
            yield (
                call.step,
                score,
                f"It called {called(call)} {len(calls)} times with the same arguments {quoted(call.arguments, 80)} "
                f"and was told the same each time: {quoted(call.observation.text, 80)}.",
            )
            return
    run: list[Call] = []
    for call in scene.episode.calls[:MANY]:
        follows = bool(run) and run[-1].name == call.name
        run = [*(run if follows else []), call] if _fruitless(call) else []
        if len(run) == FRUITLESS and not _POLLS.search(call.name):
            assert call.observation
            answer = quoted(call.observation.text, 80)
            yield call.step, 0.8, f"{FRUITLESS} calls of {called(call)} in a row brought nothing, the last {answer}."
            return


def _fruitless(call: Call) -> bool:
    return call.observation is not None and (call.observation.failed or call.observation.empty)


_POLLS = re.compile(r"wait|poll|status|sleep|watch|monitor", re.IGNORECASE)


_CLAIM = re.compile(
    r"\bsuccessfully\b|^\s*(all )?done\b|\btask (is )?complete|\b(is|are) now \w+ed\b"
    r"|\b(has|have|had) been (\w+ly )?\w+(ed|ent|one|ut|et|ade)\b"
    r"|\bI('ve| have) (now |also |already )?\w+(ed|ent|one)\b",
    re.IGNORECASE,
)
_ADMITS = re.compile(
    r"\b(unable|cannot|can't|can not|could not|couldn't|was not able|wasn't able|did not|didn't|does not|doesn't"
    r"|not yet|fail(ed|s|ure)?|errors?|issues?|problem|sorry|unfortunately|apologi[sz]e|however|but (i|the|no)|already"
    r"|not found|no \w+( \w+)? found|there (is|are|were) no|please (provide|try|clarify|specify|confirm))\b",
    re.IGNORECASE,
)
_STOPPED = re.compile(
    r"(stopped|terminated|ended) due to (the )?(iteration|time|step|token|max)"
    r"|max(imum)? (iterations|steps|turns) (reached|exceeded)",
    re.IGNORECASE,
)
_BEGUN = re.compile(r"\baction\s*:\s*(```\w*)?\s*$", re.IGNORECASE)


def claims_success(text: str) -> bool:
    """The agent says that it is done, and admits nothing beside."""
    head = text[:LONG]
    return bool(_CLAIM.search(head)) and not _ADMITS.search(head)


def ignored_error(scene: Scene) -> Iterator[Found]:
    closing, calls = scene.episode.closing, scene.episode.calls
    failed = [call for call in calls if call.observation and call.observation.failed]
    if not failed or not claims_success(closing):
        return
    last = failed[-1]
    later = calls[calls.index(last) + 1 :]
    done_before = any(call.worked and (call.name, call.arguments) == (last.name, last.arguments) for call in calls)
    if done_before or any(acts(call) for call in later):
        return
    assert scene.episode.last
    assert last.observation
    yield (
        scene.episode.last.step,
        0.9,
        f"{called(last)} answered {quoted(last.observation.text)}, nothing after it put that right, "
        f"and the agent closed with {quoted(closing)}.",
    )


def unfinished(scene: Scene) -> Iterator[Found]:
    last, trace = scene.episode.last, scene.trace
    if last is None or trace.outcome == "success":
        return
    reported = trace.metadata.get("error")
    ended = f" The run reports {quoted(reported)}." if isinstance(reported, str) and reported.strip() else ""
    if last.finish_reason in CUT:
        yield (
            last.step,
            0.9,
            f"The last answer was cut off at the token limit ({last.finish_reason}): "
            f"it ends {quoted(last.text[-80:])}.",
        )
    elif not last.calls and not last.text.strip():
        yield last.step, 0.92, f"The run ends with an empty answer.{ended}"
    elif not last.calls and len(last.text) < SHORT and _STOPPED.search(last.text):
        yield last.step, 0.9, f"The run was stopped before the agent was done: {quoted(last.text)}."
    elif not last.calls and _BEGUN.search(last.text[-200:]):
        yield last.step, 0.9, f"The run ends where the agent began to write a call: {quoted(last.text[-120:])}."
    elif last.calls and any(call.observation for call in scene.episode.calls) and not _may_go_on(scene):
        open_calls = [call for call in last.calls if call.native and not call.observation]
        if open_calls and scene.episode.messages and scene.episode.messages[-1].role == "assistant":
            yield (
                last.step,
                0.75,
                f"The run ends on the call of {called(open_calls[0])}, which was never answered.{ended}",
            )
    spoke = not last.calls and last.text.strip() and not _STOPPED.search(last.text)
    if ended and spoke and not claims_success(last.text):
        yield last.step, 0.6, f"The run ended in an error.{ended}"


def _may_go_on(scene: Scene) -> bool:
    """Whether all that is known of a run is one model call with nothing above it: its call of a tool is answered in the
    next one, which may be on its way, and nobody has said that the run is over."""
    steps = [step for step in scene.trace.steps if step.kind != "other"]
    return len(steps) == 1 and steps[0].kind == "assistant" and not steps[0].parent_id and not scene.trace.outcome


def _searched_in_vain(scene: Scene) -> tuple[list[Call], str]:
    """All searches of a run, where all of them brought nothing, and a beginning that says so; else none."""
    searches = [call for call in scene.episode.calls if call.observation and SEARCHES.search(call.name)]
    searches += scene.episode.retrievals
    if not searches or not all(_fruitless(call) for call in searches):
        return [], ""
    first = min(searches, key=lambda call: call.at)
    assert first.observation
    found = quoted(first.observation.text, 60) if first.observation.text.strip() else "nothing"
    return (
        searches,
        f"{'Its only search' if len(searches) == 1 else f'All its {len(searches)} searches'} brought {found}",
    )


def retrieval(scene: Scene) -> Iterator[Found]:
    searches, began = _searched_in_vain(scene)
    if not searches:
        return
    first = min(call.at for call in searches)
    acted = [call for call in scene.episode.calls if acts(call)]
    # Making something new is what one does after finding that it is not there.
    instead = next((call for call in acted if call.at > first and not MAKES.search(call.name)), None)
    closing, last = scene.episode.closing, scene.episode.last
    asked = next((each.content for each in scene.episode.messages if each.role == "user"), "")
    if instead:
        # Who makes a value up after looking was led there by what was not found; who acts before looking was not.
        led = acted[0].at > first and any(made_up(scene, instead))
        went_on = f"{began}, and it went on to call {called(instead)} with {quoted(instead.arguments, 80)}."
        yield instead.step, 0.93 if led else 0.8, went_on
    elif last and claims_success(closing):
        yield last.step, 0.85, f"{began}, and it closed with {quoted(closing)}."
    elif last and closing.strip() and not acted and request_words.presumes(asked):
        closed = f"{began}, and it closed with {quoted(closing)}."
        yield last.step, 0.8, f"{closed} The user had spoken of one that there is: {quoted(asked)}."


def blind_search(scene: Scene) -> Iterator[Found]:
    searches, began = _searched_in_vain(scene)
    closing = scene.episode.closing
    if not closing.strip() or any(acts(call) for call in scene.episode.calls):
        return
    for search in searches[:REPEATS]:
        for name, value, _ in made_up(scene, search) if not is_put_right(scene, search) else ():
            asked = f"{quoted(name, 40)} of {called(search)} was {quoted(value, 80)}, which occurs nowhere"
            yield search.step, 0.82, f"{began}; {asked}. It closed with {quoted(closing)}."
            return


def claim_against_record(scene: Scene) -> Iterator[Found]:
    """Reported or claimed success that the record does not bear out.

    A run reported as failed whose agent says it is done; a run reported as a success that ends on an error; a claim to
    have changed something where no call that changes anything went through.
    """
    closing, last, calls = scene.episode.closing, scene.episode.last, scene.episode.calls
    if last is None:
        return
    if scene.trace.outcome == "failed" and claims_success(closing):
        yield last.step, 0.85, f"The run was reported as failed, and the agent closed with {quoted(closing)}."
        return
    answered = [call for call in calls if call.observation]
    if scene.trace.outcome == "success" and answered and not answered[-1].worked and answered[-1].observation:
        text = answered[-1].observation.text
        yield (
            answered[-1].step,
            0.6,
            f"The run was reported as a success, and its last call {called(answered[-1])} answered {quoted(text)}.",
        )
        return
    changed = any(acts(call) for call in calls)
    has_error = any(not call.worked for call in answered)
    if answered and not changed and not has_error and _CHANGED.search(closing[:LONG]) and claims_success(closing):
        yield last.step, 0.8, f"It only looked things up ({len(answered)} calls), and closed with {quoted(closing)}."


_CHANGED = re.compile(
    r"\b(moved|updated|changed|deleted|removed|cancelled|canceled|sent|forwarded|created|added|assigned|reassigned"
    r"|scheduled|rescheduled|booked|renamed|replied|postponed|delayed|refunded|paid|ordered)\b",
    re.IGNORECASE,
)


def reported(scene: Scene) -> Iterator[Found]:
    for intervention in scene.trace.interventions:
        note = f": {quoted(intervention.note)}" if intervention.note else ""
        yield intervention.step, 0.5, f"A person stepped in ({quoted(intervention.kind, 30)}){note}."
    if scene.trace.outcome == "failed":
        yield "", 0.3, "The run was reported as failed; no detector can say why."
