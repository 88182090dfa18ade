"""Carry out a search for a better prompt: gepa chooses, here it is played.

1. Open the server of the model that proposes and the version's engine. Judges meet their canaries first.
2. Play what gepa asks for, a chunk at a time, and ask for proposals. Attempts and proposals are stored as soon as they
   are there, under the lease. Each task is attempted once with each prompt, whatever gepa looks at twice.
3. A search that goes on takes its course from the beginning and finds everything stored. Where the model is to be asked
   something else than it was asked, another gepa took the course: that fails the search (PlayedOtherwise).
4. It ends when a budget is spent, the one of proposals or the one of attempts, of which those of a trial are kept back.
   A server that answers nothing fails it, and so does a judge or a world that is away for a whole chunk; it can be
   resumed. Single attempts of which one was away are unscored.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace

from flywheel.core import envs, verifiers
from flywheel.core.envs.policy_rollouts import ChatRequest, ChatResponse, Engine, EngineError, Rollout, Sampling, play
from flywheel.core.traces import Message, worked_examples
from flywheel.core.verifiers import Verdict, WorldError
from flywheel.edge.jobs import Lease, LeaseLost
from flywheel.environments.models import Split, Task
from flywheel.environments.tasks.task_rows import core_task
from flywheel.evals.runs.result_rows import total
from flywheel.evals.runs.void_scores import unscore
from flywheel.training.datasets.measured_tasks import Measured
from flywheel.training.fixes.draft_search import FIRST, problem_of, to_play
from flywheel.training.models import PromptAttempt, PromptProposal, PromptSearch, ProposalState
from flywheel.trajectories.formats.values.hostile_json import count, text
from workers.engines.engine_endpoints import open_engine
from workers.jobs.eval_runs import VerifierChanged, open_version, refuse_silence
from workers.jobs.training.prompt_course import Attempt, BudgetEnd, drive, text_in
from workers.judging import attempt_verdicts, project_judges
from workers.policies.answer_prices import with_price
from workers.policies.endpoint_keys import with_key
from workers.worlds import gym_sessions

CHUNK = 16
"""Attempts asked at once."""
TRANSCRIPT, TARGET = 6_000, 2_000
"""Characters of an attempt, and of what was right, that the proposing model is shown."""
LOST = ("broken", "environment", "judge")
"""Causes of attempts that have no score because what is around the version was away."""
ANSWER = Sampling(temperature=1.0, top_p=1.0, max_tokens=8_192)
"""How the proposing model is asked."""


class PlayedOtherwise(RuntimeError):
    """A search that goes on would take another course than the one that is stored."""

    kind = "played_otherwise"


def search_prompts(lease: Lease) -> None:
    """Carry out the search that the lease holds."""
    rows = PromptSearch.objects.select_related(
        "parent__agent__project",
        "parent__weights",
        "parent__adapter",
        "task_set__environment_version__environment",
        "project",
    )
    search = rows.get(pk=lease.job.pk)
    if verifiers.digest(search.task_set.environment_version.verifier) != search.verifier_digest:
        raise VerifierChanged("the verifier's code changed since the search was submitted; submit it anew")
    with ExitStack() as opened:
        writer = open_engine(with_key(with_price(search.endpoint, search.project_id), search.project_id))
        opened.callback(writer.close)
        engine = open_version(search.parent)
        opened.callback(engine.close)
        course = Course(lease, search, engine, writer)
        drive(
            search.parent.system_prompt,
            search.tasks,
            course,
            seed=search.seed,
            first=FIRST,
            proposals=search.most_proposals,
        )
        course.end()


class Course:
    """The search as gepa plays it: what is stored is given again, the rest is asked for and stored."""

    def __init__(self, lease: Lease, search: PromptSearch, engine: Engine, writer: Engine) -> None:
        self._lease, self._search, self._engine, self._writer = lease, search, engine, writer
        self._tasks = Task.objects.filter(split=Split.TRAIN).in_bulk(search.tasks)
        if missing := sorted(set(search.tasks) - set(self._tasks)):
            raise PlayedOtherwise(f"{len(missing)} of its {len(search.tasks)} tasks are no training tasks any more")
        self._proposals = list(search.proposals.order_by("place"))
        self._attempts = {
            (attempt.proposal_id, attempt.task_id): attempt
            for attempt in PromptAttempt.objects.filter(proposal__search=search)
        }
        self._environment = search.task_set.environment_version
        self._runners = project_judges.runners(search.project, self._environment.verifier, search.judges, lease=lease)
        self._has_met, self._written = False, 0
        self._broken_off: PromptProposal | None = None
        self._seen: set[tuple[int, int]] = set()

    def play(self, prompt: str, tasks: Sequence[int]) -> list[Attempt]:
        """Attempt the tasks that were not attempted with this prompt. Raises BudgetEnd where too few are left."""
        proposal = self._with(prompt)
        wanted = {(proposal.pk, task) for task in tasks}
        if len(self._seen | wanted) > to_play(self._search):
            self._broken_off = proposal
            raise BudgetEnd
        self._seen |= wanted
        waiting = [task for task in dict.fromkeys(tasks) if (proposal.pk, task) not in self._attempts]
        env = self._env(prompt) if waiting else None
        for start in range(0, len(waiting), CHUNK):
            assert env is not None
            self._play(env, proposal, [self._tasks[task] for task in waiting[start : start + CHUNK]])
        return [self._as_shown(self._attempts[proposal.pk, task]) for task in tasks]

    def write(self, parent: str, question: str) -> str | None:
        """Ask for the next proposal, or give the one that is stored."""
        place, asked = self._written + 1, hashlib.sha256(question.encode()).hexdigest()
        if place > self._search.most_proposals:
            raise BudgetEnd
        if place >= len(self._proposals):
            self._ask(parent, question, asked)
        proposal, self._written = self._proposals[place], place
        if proposal.question_digest != asked:
            raise PlayedOtherwise(
                f"{proposal} was made in answer to another question than the one that comes up now; "
                "the search cannot go on with what is stored. Submit it anew"
            )
        return None if proposal.state == ProposalState.REFUSED else proposal.text

    def end(self) -> None:
        """Write down that the last proposal was no better, unless it was broken off. Raises PlayedOtherwise."""
        if self._written + 1 < len(self._proposals):
            raise PlayedOtherwise(
                f"{self._proposals[-1]} is stored, and the search ended with {self._written} this time"
            )
        self._settle()
        self._lease.update(message="")

    def _ask(self, parent: str, question: str, asked: str) -> None:
        self._go_on()
        measured, place, made_from = self._measured_now(), len(self._proposals), self._with(parent)
        request = ChatRequest((Message("user", question),), ANSWER, self._search.seed + place)
        response = self._writer.chat([request])[0]
        if response.error:
            raise EngineError(f"the model that proposes did not answer: {response.error}")
        proposed, problem = text(text_in(response.text)), ""
        if response.finish_reason == "length":
            problem = f"the answer was cut off after {ANSWER.max_tokens} tokens"
        problem = problem or problem_of(self._search, proposed, self._proposals, measured)
        proposal = PromptProposal(
            search=self._search,
            place=place,
            text=proposed,
            parent=made_from,
            state=ProposalState.REFUSED if problem else ProposalState.OPEN,
            problem=problem,
            question_digest=asked,
            **_taken([response]),
        )
        with self._lease.guard():
            self._settle()
            proposal.save(force_insert=True)
            self._lease.progress(place, message=f"{proposal} of at most {self._search.most_proposals}")
        self._proposals.append(proposal)

    def _measured_now(self) -> Measured:
        """All that is measured by now. Raises PlayedOtherwise where a task of the search is: the model that proposes is
        shown none."""
        measured, kind = Measured(self._search.project), self._environment.environment.kind
        if shared := [task for task in self._tasks.values() if measured.has(task, kind)]:
            raise PlayedOtherwise(
                f"{len(shared)} of its {len(self._tasks)} tasks share something with held-out or sealed ones since it "
                "was submitted; submit it anew"
            )
        return measured

    def _settle(self) -> None:
        """Drop proposals that were tried on their first tasks, and not on all: gepa has gone on without them."""
        tried = Counter(proposal for proposal, _ in self._attempts)
        for proposal in self._proposals:
            is_open = proposal.state == ProposalState.OPEN and proposal is not self._broken_off
            if is_open and 0 < tried[proposal.pk] <= FIRST:
                self._mark(proposal, ProposalState.DROPPED)

    def _mark(self, proposal: PromptProposal, state: ProposalState) -> None:
        proposal.state = state
        with self._lease.guard():
            proposal.save(update_fields=["state"])

    def _with(self, prompt: str) -> PromptProposal:
        """The proposal of this text."""
        usable = (each for each in self._proposals if each.state != ProposalState.REFUSED)
        return next(each for each in usable if each.text == prompt)

    def _go_on(self) -> None:
        self._lease.go_on()
        if self._lease.lost:
            raise LeaseLost(f"{self._search} has another owner")

    def _env(self, prompt: str) -> envs.Environment:
        config = replace(self._search.parent.config(), system_prompt=prompt)
        kind, settings = self._environment.environment.kind, self._environment.config
        env = envs.build(kind, settings, self._environment.verifier, self._runners, config)
        if not self._has_met:
            task = core_task(self._tasks[self._search.tasks[0]])
            project_judges.meet(self._lease, env, task, PromptAttempt.objects.filter(proposal__search=self._search))
            gym_sessions.meet(env, task)
            self._has_met = True
        return env

    def _play(self, env: envs.Environment, proposal: PromptProposal, tasks: Sequence[Task]) -> None:
        self._go_on()
        asked = [(core_task(task), 0, _seed(self._search, task)) for task in tasks]
        rollouts = play(self._engine, env, asked, Sampling(**self._search.sampling))
        refuse_silence(rollouts, is_first=not self._attempts, least=1)
        verdicts = project_judges.settled(env, attempt_verdicts.of_rollouts(env, rollouts))
        self._refuse_lost(tasks, verdicts)
        judged = zip(tasks, rollouts, verdicts, strict=True)
        rows = [_row(proposal, task, rollout, verdict) for task, rollout, verdict in judged]
        with self._lease.guard():
            PromptAttempt.objects.bulk_create(rows)
            self._attempts |= {(proposal.pk, row.task_id): row for row in rows}
            if all((proposal.pk, task) in self._attempts for task in self._search.tasks):
                self._mark(proposal, ProposalState.KEPT)
            self._search.judges = project_judges.note(self._lease, env)
            unscore(PromptAttempt.objects.filter(proposal__search=self._search), self._search.judges)
            of = f"{sum(key == proposal.pk for key, _ in self._attempts)} of {len(self._search.tasks)} tasks"
            self._lease.update(message=f"{proposal if proposal.place else 'the prompt as it is'}: {of}")
        project_judges.refuse_void(env)

    def _refuse_lost(self, tasks: Sequence[Task], verdicts: Sequence[Verdict]) -> None:
        """Raise WorldError where all of these are lost, at tasks of which others had a score, or as the very first:
        gepa would take them for failures of the prompt."""
        scored = {task for (_, task), attempt in self._attempts.items() if attempt.score is not None}
        is_usual = len(tasks) == 1 or not scored.issuperset(task.pk for task in tasks)
        if (self._attempts and is_usual) or not all(verdict.cause in LOST for verdict in verdicts):
            return
        reason, times = Counter(verdict.reason for verdict in verdicts).most_common(1)[0]
        raise WorldError(f"not one of {len(tasks)} attempts could be scored; {times} times: {text(reason)}")

    def _as_shown(self, attempt: PromptAttempt) -> Attempt:
        """An attempt as the proposing model is shown it, the same from a row just written and from one read again."""
        wanted = json.dumps(self._tasks[attempt.task_id].target, ensure_ascii=False, sort_keys=True)
        told = {
            "Attempt": attempt.transcript,
            "Score": "not scored" if attempt.score is None else f"{attempt.score:g} of 1",
            "Verdict": attempt.reason,
            "What was wanted": wanted[:TARGET],
        }
        return Attempt(attempt.score, told)


def _seed(search: PromptSearch, task: Task) -> int:
    """The seed of an attempt, the same with every prompt; not the one that the trial afterwards has."""
    return int.from_bytes(hashlib.sha256(f"search/{search.seed}/{task.digest}".encode()).digest()[:6])


def _row(proposal: PromptProposal, task: Task, rollout: Rollout, verdict: Verdict) -> PromptAttempt:
    return PromptAttempt(
        proposal=proposal,
        task=task,
        transcript=text(worked_examples.example(rollout.messages))[:TRANSCRIPT],
        score=verdict.score,
        success=verdict.success,
        parts=dict(verdict.parts),
        reason=text(verdict.reason),
        cause=verdict.cause,
        **_taken(rollout.responses),
    )


def _taken(responses: Sequence[ChatResponse]) -> dict[str, float | None]:
    return {
        "tokens_in": count(total(responses, "tokens_in")),
        "tokens_out": count(total(responses, "tokens_out")),
        "cost_usd": total(responses, "cost_usd"),
    }
