"""The red-green proof: before a task may train, its verifier must tell wrong from right on this very task.

It fails the recorded failure, passes the corrected answer, gives low scores to trivial probes, and says the same every
time. A task that guards a success has no recorded failure; its recorded answer must pass. A check without a score is
not passed, and its score stays empty: unscored is not zero.
"""

from collections.abc import Callable
from typing import Any

from flywheel.core import envs
from flywheel.core.envs import Environment as Played
from flywheel.core.traces import Message, Trace
from flywheel.core.verifiers import Verdict, unscored
from flywheel.environments.models import EnvironmentVersion, Task

LOW = 0.5
"""A trivial probe must stay below this, or a model could live on it."""
REPEATS = 20

Passes = Callable[[Verdict], bool]


def prove(
    task: Task, version: EnvironmentVersion, *, recorded: Message | None, is_failure: bool
) -> tuple[dict[str, Any], bool]:
    """The proof as JSON, and whether every check passed. Never raises on a bad target: that is a failed check."""
    env = envs.build(version.environment.kind, version.config, version.verifier)
    pure = envs.Task(id=str(task), prompt=task.prompt, target=task.target, state=task.state)
    answer = recorded or Message("assistant", "")
    gold, problem = _gold(env, pure)
    checks = [
        _check("recorded failure", "low", _judge(env, pure, answer), _fails)
        if is_failure
        else _check("recorded success", "high", _judge(env, pure, answer), _succeeds),
        _check("corrected", "high", _judge(env, pure, gold) if gold else unscored(problem), _succeeds),
    ]
    for name, probe in env.probes(pure).items():
        checks.append(_check(name, "low", _judge(env, pure, probe), _is_low))
    checks.append(_repeated(env, pure, gold or answer))
    proof = {
        "environment_version": str(version),
        "verifier_digest": version.verifier_digest,
        "recorded": answer.to_json(),
        "is_failure": is_failure,
        "checks": checks,
    }
    return proof, all(check["passed"] for check in checks)


def prove_again(task: Task, version: EnvironmentVersion) -> None:
    """Prove the task under another environment version, from what its first proof recorded, and save it."""
    recorded = Message.from_json(task.proof["recorded"])
    task.proof, task.is_proved = prove(task, version, recorded=recorded, is_failure=task.proof["is_failure"])
    task.save(update_fields=["proof", "is_proved"])


def failed_checks(task: Task) -> list[dict[str, Any]]:
    """The checks of its proof that are not green."""
    return [check for check in task.proof.get("checks", []) if not check["passed"]]


def is_stale(task: Task, version: EnvironmentVersion) -> bool:
    """Whether the task's proof was made under another environment version, and can be made again."""
    return "recorded" in task.proof and task.proof.get("environment_version") != str(version)


def _gold(env: Played, task: envs.Task) -> tuple[Message | None, str]:
    try:
        return env.gold(task), ""
    except Exception as error:
        return None, f"the target is none: {type(error).__name__}: {error}"


def _judge(env: Played, task: envs.Task, answer: Message) -> Verdict:
    trace = Trace.from_messages(task.id, [*env.reset(task, 0), answer])
    return env.verifier(task)(trace, task.target)


def _fails(verdict: Verdict) -> bool:
    return verdict.success is False


def _succeeds(verdict: Verdict) -> bool:
    return verdict.success is True


def _is_low(verdict: Verdict) -> bool:
    return verdict.score is not None and verdict.score < LOW


def _check(name: str, wanted: str, verdict: Verdict, passes: Passes) -> dict[str, Any]:
    return {
        "name": name,
        "wanted": wanted,
        "score": verdict.score,
        "passed": passes(verdict),
        "reason": verdict.reason,
    }


def _repeated(env: Played, task: envs.Task, answer: Message) -> dict[str, Any]:
    first = _judge(env, task, answer)
    same = 1 + sum(_judge(env, task, answer) == first for _ in range(REPEATS - 1))
    passed = same == REPEATS and first.score is not None
    reason = "the verifier changed its verdict" if same < REPEATS else first.reason if not passed else "one verdict"
    return {
        "name": "same every time",
        "wanted": f"{REPEATS}/{REPEATS}",
        "score": None,
        "shown": f"{same}/{REPEATS}",
        "passed": passed,
        "reason": reason,
    }
