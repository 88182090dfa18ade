"""The second story, told through the product's own verbs: what `make turn STORY=agent` plays and `make demo` loads.

The agent is written against the openai SDK, keeps its own tools and is asked through the gateway. Its model is
scripted and says so. As in the first story nothing here writes a score or a verdict, and labels are the oracle's.
"""

import copy
import socket
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from openai import OpenAI

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import ApiKey, Project
from flywheel.accounts.project_settings import api_keys
from flywheel.agents.models import Agent, Version
from flywheel.agents.registration import make_agent, make_version
from flywheel.agents.version_content import VersionContent
from flywheel.environments.models import Environment, TaskSet
from flywheel.environments.versions.environment_versions import environment_version
from flywheel.evals.runs.submission import RunSettings
from flywheel.failures.labels.decisions import decide
from flywheel.failures.models import Failure
from flywheel.promotions.live_version import make_first
from flywheel.promotions.models import Candidate
from flywheel.training.fixes import example_choice, trial_lifecycle, trial_results
from flywheel.training.fixes.trial_lifecycle import DraftContent, TrialRequest
from flywheel.training.fixes.trial_results import TrialResults
from flywheel.training.models import FixTrial
from flywheel.trajectories.models import Source, Step, Trajectory
from flywheel.trajectories.store.stored_traces import traces_of
from workers.programs.story_playback import approver, finished, oracle, wait_until
from workers.reference.helpdesk import helpdesk_agent, helpdesk_oracle, scripted_model
from workers.reference.helpdesk.helpdesk_customers import Customer, customers
from workers.reference.helpdesk.helpdesk_shop import RETURNS_DAYS, TOOLS, Shop

AGENT = "shop-helpdesk"
ENVIRONMENT = "helpdesk-replay"
TASK_SET = "helpdesk-moments"
TALKS_AT_ONCE, ATTEMPTS_AT_ONCE = 2, 4
SAMPLES = 1
"""Of a task: the scripted model says the same every time."""
EXAMPLE_TOKENS = 1_500
PROMPT = "You are the help desk of Nordlys, a shop for lamps. Use your tools. Answer in one or two sentences."
CAREFUL = "Be careful, think step by step, and always give the customer the best possible answer."
RULES = f"""Rules:
- The status of an order is what track_parcel says; get_order does not know it.
- Read an order with get_order before you refund it, however urgent it is.
- What is cracked, broken or does not work is damaged.
- Never refund what was delivered more than {RETURNS_DAYS} days ago, not to loyal customers either.
- Where the order's number is missing, ask for it; do not guess.
- Of several, cancel every order that the customer names.
- You have no other tools than these. Orders of somebody are found by find_customer, then list_orders.
- Call search_help with a keyword, never with a sentence.
- Never write a call as text.
- Say where a parcel is and on which day it will arrive."""


@dataclass(frozen=True, slots=True)
class HelpDesk:
    """Where the agent and its scripted model answer."""

    agent_url: str
    model_url: str


@contextmanager
def open_desk(ports: Sequence[int] = ()) -> Iterator[HelpDesk]:
    """Run the agent and its model as processes of their own, on these two ports of this machine, else on free ones."""
    chosen = list(ports) or [_free_port(), _free_port()]
    modules = (helpdesk_agent.__name__, scripted_model.__name__)
    running = [
        subprocess.Popen([sys.executable, "-m", module, str(port)])
        for module, port in zip(modules, chosen, strict=True)
    ]
    try:
        wait_until(lambda: all(map(_listens, chosen)), 60, "the help desk's agent and model listen")
        yield HelpDesk(f"http://127.0.0.1:{chosen[0]}/run", f"http://127.0.0.1:{chosen[1]}/v1")
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.wait(20)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def agent_with_first_version(project: Project, desk: HelpDesk) -> Agent:
    """The agent, its first version the team's program with a short prompt, live."""
    actor = oracle(project)
    agent = project.agents.filter(name=AGENT).first() or make_agent(
        project=project,
        name=AGENT,
        actor=actor,
        description="Its model is scripted (scripted-helpdesk): rules in the shape of a language model. "
        "The agent answers a lamp shop's customers and is written against the openai SDK.",
    )
    if agent.live is None:
        version, _ = make_version(
            agent=agent,
            actor=actor,
            content=VersionContent(
                base_model=scripted_model.NAME,
                endpoint={
                    "kind": "program",
                    "way": "http",
                    "url": desk.agent_url,
                    "code": helpdesk_agent.CODE,
                    "base_url": desk.model_url,
                    "model": scripted_model.NAME,
                    "timeout_s": 60,
                    "concurrency": ATTEMPTS_AT_ONCE,
                },
                system_prompt=PROMPT,
                tools=TOOLS,
                sampling={"temperature": 0.0, "max_tokens": 256},
            ),
            note="as it went into production; its model is scripted",
        )
        make_first(agent=agent, version=version, actor=approver(project), reason="the first version")
    return Agent.objects.select_related("live").get(pk=agent.pk)


def environment(project: Project, agent: Agent) -> Environment:
    """The environment that any of the agent's failures becomes a task of."""
    row, _ = Environment.objects.get_or_create(
        project=project,
        name=ENVIRONMENT,
        defaults={
            "kind": "episode",
            "agent": agent,
            "description": "Moments of recorded conversations: what should be said or called next?",
            "held_out_share": 0.4,
        },
    )
    environment_version(
        environment=row, actor=Actor(oracle(project).user), config={"tools": TOOLS}, verifier={"kind": "episode"}
    )
    return row


# Conversations --------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Talk:
    """A conversation that took place in production, as the agent has it."""

    customer: Customer
    messages: list[Any] = field(default_factory=list)


def send_traffic(project: Project, endpoint: str, numbers: range) -> list[Talk]:
    """Have the live version answer these customers through the gateway, with tools of its own; wait until it is all
    stored, one trajectory a conversation."""
    stored = Step.objects.filter(trajectory__project=project, trajectory__source=Source.PRODUCTION, kind="assistant")
    before = stored.count()
    key, text = ApiKey.make(project, "the help desk", ["gateway"], oracle(project).user)
    with (
        OpenAI(base_url=f"{endpoint}/gateway/v1", api_key=text, timeout=60) as client,
        ThreadPoolExecutor(TALKS_AT_ONCE) as pool,
    ):
        talks = list(pool.map(lambda customer: _talk(client, customer), customers(numbers)))
    calls = sum(message["role"] == "assistant" for talk in talks for message in talk.messages)
    wait_until(lambda: stored.count() >= before + calls, 120, f"{calls} calls of the gateway are stored")
    api_keys.revoke(key=key, actor=oracle(project))  # what it has sent names it
    return talks


def _talk(client: OpenAI, customer: Customer) -> Talk:
    shop, talk = Shop(copy.deepcopy(customer.state)), Talk(customer)
    talk.messages.append({"role": "user", "content": customer.says})
    words = helpdesk_agent.answer(client, f"{AGENT}@live", talk.messages, shop.call)
    if customer.answers and "?" in (words or ""):
        talk.messages.append({"role": "user", "content": customer.answers})
        helpdesk_agent.answer(client, f"{AGENT}@live", talk.messages, shop.call)
    return talk


def right(project: Project, talks: Sequence[Talk]) -> int:
    """Count the customers who got what they wanted in their newest conversation, by what was recorded of it."""
    wanted = {talk.customer.says: talk.customer for talk in talks}
    newest: dict[str, bool] = {}
    rows = Trajectory.objects.filter(project=project, source=Source.PRODUCTION).order_by("started_at", "id")
    for trace in traces_of(rows).values():
        said = trace.conversation()
        first = next((message.content for message in said if message.role == "user"), "")
        if customer := wanted.get(first):
            spoken = [message for message in said if message.role == "assistant"]
            newest[first] = helpdesk_oracle.judge(customer, spoken) is None
    return sum(newest.values())


def label_all(project: Project, numbers: range) -> list[Failure]:
    """The oracle's decision about every unlabelled conversation of these customers, oldest first."""
    wanted = {customer.says: customer for customer in customers(numbers)}
    rows = Trajectory.objects.filter(project=project, source=Source.PRODUCTION, label="").order_by("started_at", "id")
    actor, traces, made = oracle(project), traces_of(rows), []
    for row in rows:
        said = traces[row.pk].conversation()
        customer = wanted.get(next((message.content for message in said if message.role == "user"), ""))
        if customer is not None:
            made.append(_label(row, traces[row.pk], customer, actor))
    return made


def _label(row: Trajectory, trace: Any, customer: Customer, actor: Actor) -> Failure:
    steps = [step for step in trace.steps if step.kind == "assistant"]
    fault = helpdesk_oracle.judge(customer, [step.output[0] for step in steps])
    note = "by the story's oracle, which knows what the customer wanted"
    if fault is None:
        return decide(trajectory=row, actor=actor, note=note)
    step = steps[fault.place].span_id
    return decide(trajectory=row, actor=actor, bucket=fault.bucket, step=step, corrected=fault.corrected, note=note)


# The fix --------------------------------------------------------------------------------------------------------------


def try_fix(live: Version, task_set: TaskSet, bucket: str) -> FixTrial:
    """Have three drafts of the prompt asked the train tasks: a general admonition, rules, and rules with examples."""
    offer = example_choice.examples_for(task_set, live, budget=EXAMPLE_TOKENS)
    wanted = TrialRequest(
        key=uuid.uuid5(uuid.NAMESPACE_OID, f"fix {live.pk} {task_set.pk}"),
        bucket=bucket,
        parent=live,
        task_set=task_set,
        drafts=[
            DraftContent(name="Be careful", system_prompt=f"{PROMPT}\n\n{CAREFUL}"),
            DraftContent(name="Rules", system_prompt=f"{PROMPT}\n\n{RULES}"),
            DraftContent(name="Rules and examples", system_prompt=f"{PROMPT}\n\n{RULES}\n\n{offer.block}"),
        ],
        settings=RunSettings(samples=SAMPLES),
    )
    trial, _ = trial_lifecycle.start(wanted, oracle(task_set.project))
    return trial


def tried(trial: FixTrial) -> TrialResults:
    """The trial's results, once every draft has been asked."""
    for run in trial_results.results_of(trial).evals:
        finished(run, timeout_s=600)
    return trial_results.results_of(FixTrial.objects.get(pk=trial.pk))


def measured(trial: FixTrial) -> Candidate:
    """The candidate that the best draft makes on the held-out tasks."""
    trial = trial_lifecycle.measure(trial, oracle(trial.project))
    wait_until(lambda: trial_results.candidate_of(trial) is not None, 600, f"{trial} has a candidate")
    candidate: Candidate = trial_results.candidate_of(trial)
    return candidate


def commonest(failures: Sequence[Failure]) -> str:
    """The bucket that most of them are filed under."""
    return Counter(failure.bucket for failure in failures).most_common(1)[0][0]
