"""The red-green proof: before a task may train, its verifier must tell wrong from right on this very task.

It fails the recorded failure, passes the corrected answer, gives low scores to trivial probes, and says the same every
time. A task that guards a success has no recorded failure; its recorded answer must pass.
"""

from typing import Any

from flywheel.core import envs
from flywheel.core.envs import Environment as Played
from flywheel.core.traces import Message, Trace
from flywheel.core.verifiers import PASS, Verdict
from flywheel.environments.models import EnvironmentVersion, Task

LOW = 0.5
"""A trivial probe must stay below this, or a model could live on it."""
REPEATS = 20


def prove(
    task: Task, version: EnvironmentVersion, *, recorded: Message | None, is_failure: bool
) -> tuple[dict[str, Any], bool]:
    """The proof as JSON, and whether every check passed. Never raises on a bad target: that is a failed check."""
    env = envs.build(version.environment.kind, version.config, version.verifier)
    pure = envs.Task(id=str(task), prompt=task.prompt, target=task.target, state=task.state)
    answer = recorded or Message("assistant", "")
    checks = []
    if is_failure:
        checks.append(_check("recorded failure", "low", _judge(env, pure, answer), lambda score: score < PASS))
    else:
        checks.append(_check("recorded success", "high", _judge(env, pure, answer), lambda score: score >= PASS))
    gold = env.gold(pure)
    checks.append(_check("corrected", "high", _judge(env, pure, gold), lambda score: score >= PASS))
    for name, probe in env.probes(pure).items():
        checks.append(_check(name, "low", _judge(env, pure, probe), lambda score: score < LOW))
    verdicts = {_judge(env, pure, gold) == _judge(env, pure, gold) for _ in range(REPEATS)}
    checks.append(
        {
            "name": "same every time",
            "wanted": f"{REPEATS}/{REPEATS}",
            "score": None,
            "passed": verdicts == {True},
            "reason": "the verifier gave one verdict" if verdicts == {True} else "the verifier changed its verdict",
        }
    )
    proof = {"environment_version": str(version), "verifier_digest": version.verifier_digest, "checks": checks}
    return proof, all(check["passed"] for check in checks)


def _judge(env: Played, task: envs.Task, answer: Message) -> Verdict:
    trace = Trace.from_messages(task.id, [*env.reset(task, 0), answer])
    return env.verifier(task)(trace, task.target)


def _check(name: str, wanted: str, verdict: Verdict, passes: Any) -> dict[str, Any]:
    return {
        "name": name,
        "wanted": wanted,
        "score": verdict.score,
        "passed": verdict.score is not None and bool(passes(verdict.score)),
        "reason": verdict.reason,
    }
