"""The table of the talk, for the reference policy: `python -m tests.tictactoe.table [--home DIR] [--json]`.

Everything goes the way that a trainer goes: games of a teacher behind an endpoint are collected by the eval runner on
train tasks, so many that 200 are left when they are filtered (not lost, in form throughout), written as a dataset, and
the base is fine-tuned on it by the launched trainer. What comes out goes on by reinforcement, on whole games and on
games that begin where the next move matters, in a launched run too. Then all three play 500 seeded games against each
opponent. The table replaces the one in docs/design/data-generation.md. With `--home` what was built before is taken up
again; with `--json` the last line is the result, as `{arm: {opponent: shares, "format", "invalid"}, "seconds"}`.
"""

import argparse
import json
import os
import resource
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from flywheel.core.envs.policy_rollouts import Engine, Sampling, play
from flywheel.core.envs.tictactoe import TicTacToe, generate
from flywheel.core.evidence.statistics.estimates import clustered_rate
from flywheel.core.traces import Trace
from tests.tictactoe.teacher import serving
from workers.programs.turn import flywheel_in
from workers.reference import game

if TYPE_CHECKING:
    from flywheel.agents.models import Version
    from flywheel.environments.models import TaskSet
    from flywheel.training.models import TrainingRun

PAGE = Path(__file__).parents[2] / "docs/design/data-generation.md"
BEGIN, END = "<!-- table: python -m tests.tictactoe.table -->\n", "\n<!-- end of table -->"
GAMES, COLLECTED, WANTED = 500, 270, 200
SEED_OF_TASKS, SEED_OF_TEACHER, SEED_OF_TRAINING, SEED_OF_GAMES = 11, 12, 13, 10**6
OPPONENTS = {"random": 1.0, "optimal": 0.0}
SAMPLING = Sampling(temperature=0.7, max_tokens=48)
CHOICE = {"form": "sft", "reward": "", "parts": "loss <= 0, format >= 1", "alike": "1", "cap": "1"}
STEPS = 60
PRACTISED, SEED_OF_PRACTICE = 2000, 14
"""Tasks that are practised by reinforcement."""
PRACTICE = {"low": 0.0, "high": 0.5, "begun": 0.7}
REINFORCED = {
    "steps": 600,
    "batch_size": 128,
    "num_generations": 8,
    "learning_rate": 3e-4,
    "max_completion_length": 24,
    "entropy_coef": 0.01,
}
"""At a rate of 1e-3 and without a bonus for staying undecided the entropy fell to 0.03 within 100 steps, and draws with
it."""
ARMS = {"base": "base", "sft": "after SFT", "rl": "after RL"}
PARTS = ("win", "draw", "loss", "format", "invalid")


def played(engine: Engine, games: int, random_share: float) -> dict[str, list[float]]:
    """What came of seeded games against an opponent, by part; the same games for whoever plays."""
    env = TicTacToe({}, {})
    tasks = list(generate(games, seed=SEED_OF_GAMES, low=random_share, high=random_share))
    rollouts = play(engine, env, [(task, 0, number) for number, task in enumerate(tasks)], SAMPLING)
    verdicts = [env.verifier(r.task)(Trace.from_messages("", r.messages), r.task.target) for r in rollouts]
    assert not any(verdict.score is None for verdict in verdicts)
    return {part: [float(verdict.parts[part] or 0.0) for verdict in verdicts] for part in PARTS}


def summed(played: dict[str, dict[str, list[float]]]) -> dict[str, Any]:
    """Shares of games by opponent, and of all of them those in form and with a move that cannot be made."""
    ends = {
        opponent: {part: fmean(found[part]) for part in ("win", "draw", "loss")} for opponent, found in played.items()
    }
    both = {
        part: fmean([*(value for found in played.values() for value in found[part])]) for part in ("format", "invalid")
    }
    return {**ends, **both}


def line(who: str, found: dict[str, list[float]]) -> str:
    """A row of the table: counts of games, then shares with 95 % intervals."""
    cells = []
    for part in PARTS:
        values = found[part]
        rate = clustered_rate(values, list(range(len(values))))
        assert rate.mean is not None
        assert rate.low is not None
        assert rate.high is not None
        share = f"{rate.mean:.1%} [{rate.low:.1%}, {rate.high:.1%}]"
        cells.append(share if part == "format" else f"{sum(values):.0f}: {share}")
    return f"| {who} | {' | '.join(cells)} |"


def table(arms: dict[str, dict[str, dict[str, list[float]]]], about: Sequence[str]) -> str:
    head = "| | wins | draws | losses | format | games with an invalid move |\n|---|---|---|---|---|---|"
    parts = []
    for opponent in OPPONENTS:
        rows = "\n".join(line(who, found[opponent]) for who, found in arms.items())
        parts.append(f"Against the {opponent} opponent, {GAMES} games:\n\n{head}\n{rows}")
    return "\n\n".join([*parts, "\n".join(f"- {text}" for text in about)])


def train(base: Path) -> dict[str, Any]:
    """The weights of the base after SFT on what is left of the teacher's games, and those after reinforcement, and what
    is to be told of the way: `{"after SFT": path, "after RL": path, "about": lines}`. In a Flywheel."""
    os.environ["DJANGO_SETTINGS_MODULE"] = "flywheel.settings"
    import django

    django.setup()
    from flywheel.accounts.actors import Actor
    from flywheel.accounts.models import Project
    from flywheel.agents import artifacts
    from flywheel.agents.registration import make_agent, make_version
    from flywheel.agents.version_content import VersionContent
    from flywheel.environments.models import Split
    from flywheel.environments.task_sets.frozen_sets import freeze
    from flywheel.environments.tasks import seeded_tasks as tasks
    from flywheel.environments.versions.environment_terms import Terms
    from flywheel.environments.versions.environment_versions import environment
    from flywheel.evals.reward_audits.audit_lifecycle import override
    from flywheel.evals.runs import submission
    from flywheel.training.launch import reward_lock
    from flywheel.training.launch.run_control import LaunchRequest, launch
    from flywheel.training.models import Dataset
    from flywheel.training.rollouts import rollout_datasets
    from flywheel.training.rollouts.rollout_choice import read
    from flywheel.training.rollouts.teachers import teacher
    from workers.programs import story_playback

    project = Project.objects.get(slug="default")
    trainer, approver = story_playback.oracle(project).user, story_playback.approver(project).user
    place = environment(
        project=project,
        name="games",
        actor=Actor(trainer),
        config={},
        verifier={"kind": "tictactoe"},
        terms=Terms("tictactoe", held_out_share=0.1),
    )
    job = tasks.submit(environment=place, actor=Actor(trainer), count=320, seed=SEED_OF_TASKS, key=uuid.uuid4())
    story_playback.finished(job)
    proved = list(place.tasks.filter(is_proved=True).order_by("number"))
    learnt = [task for task in proved if task.split == Split.TRAIN][:COLLECTED]
    chosen = [*learnt, *(task for task in proved if task.split == Split.HELD_OUT)]
    task_set = freeze(environment=place, name="games", actor=Actor(trainer), tasks=chosen)
    say(f"{task_set}: {len(learnt)} train tasks, {len(chosen) - len(learnt)} held out")
    with serving() as address:
        shown = teacher(task_set=task_set, base_url=address, model="scripted", actor=Actor(trainer))
        run, _ = submission.submit(
            key=uuid.uuid4(),
            version=shown,
            task_set=task_set,
            actor=Actor(trainer),
            split=Split.TRAIN,
            settings=submission.RunSettings(samples=1, seed=SEED_OF_TEACHER),
        )
        story_playback.finished(run)
    player = make_agent(project=project, name="player", actor=Actor(trainer))
    content = VersionContent(
        base_model="flywheel-reference-game",
        endpoint={"kind": "transformers"},
        weights=artifacts.store(base, "model"),
        sampling=SAMPLING.to_json(),
    )
    version, _ = make_version(agent=player, actor=Actor(trainer), content=content)
    dataset = rollout_datasets.write(
        name="teacher-games", run=run, choice=read(CHOICE), actor=Actor(trainer), version=version
    )
    kept = dataset.recipe["steps"][-1]["after"]
    assert kept >= WANTED
    say(f"{dataset}: {kept} of {len(learnt)} games, {dataset.rows} rows")

    def learnt_by(
        algorithm: str, start: "Version", on: "TaskSet", settings: dict[str, Any], **fields: Any
    ) -> "TrainingRun":
        story_playback.evaluate(start, on, samples=1)
        rows = fields.get("dataset") or Dataset(task_set=on, recipe={})
        for judged in reward_lock.judged(algorithm, start, rows):
            override(judged=judged, actor=Actor(approver), reason="the rules of the game are the reward")
        request = LaunchRequest(
            key=uuid.uuid4(),
            base=start,
            algorithm=algorithm,
            task_set=on,
            settings=settings,
            seed=SEED_OF_TRAINING,
            override_reason="the table is about this algorithm",
            **fields,
        )
        made, _ = launch(request, Actor(trainer))
        story_playback.finished(made, timeout_s=7200)
        made.refresh_from_db()
        return made

    training = learnt_by("sft", version, task_set, {"steps": STEPS}, dataset=dataset)
    assert training.produced is not None
    assert training.produced.weights is not None
    say(f"{training.produced} is after SFT")
    job = tasks.submit(
        environment=place,
        actor=Actor(trainer),
        count=PRACTISED,
        seed=SEED_OF_PRACTICE,
        key=uuid.uuid4(),
        options=PRACTICE,
    )
    story_playback.finished(job, timeout_s=1800)
    practice = freeze(
        environment=place,
        name="practice",
        actor=Actor(trainer),
        tasks=list(place.tasks.filter(is_proved=True, generation=job).order_by("number")),
    )
    reinforced = learnt_by("cispo", training.produced, practice, REINFORCED)
    assert reinforced.produced is not None
    assert reinforced.elapsed is not None
    assert reinforced.produced.weights is not None
    say(f"{reinforced.produced} is after RL")
    about = [
        f"{kept} of {len(learnt)} games of the teacher were kept ({CHOICE['parts']}), {dataset.rows} moves; dataset "
        f"`{dataset.digest[:12]}`, SFT of all weights, {training.settings['steps']} steps of "
        f"{training.settings['batch_size']}, rate {training.settings['learning_rate']:g}",
        f"seeds: base {game.SEED}, tasks {SEED_OF_TASKS}, teacher {SEED_OF_TEACHER}, training {SEED_OF_TRAINING}, "
        f"games {SEED_OF_GAMES}; temperature {SAMPLING.temperature:g}",
    ]
    about.append(
        f"CISPO of all weights from there on {PRACTISED} games, {PRACTICE['begun']:.0%} of them begun where the next "
        f"move matters, opponents up to {PRACTICE['high']:.0%} random: {reinforced.settings['steps']} steps of "
        f"{reinforced.settings['batch_size']} episodes, {reinforced.elapsed.total_seconds() / 60:.0f} min"
    )
    return {
        "after SFT": str(artifacts.local(training.produced.weights)),
        "after RL": str(artifacts.local(reinforced.produced.weights)),
        "about": about,
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.tictactoe.table", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--home", type=Path, default=None)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    began = time.monotonic()
    home = given.home or Path(tempfile.mkdtemp(prefix="games-"))
    home.mkdir(parents=True, exist_ok=True)
    base, result = home / "base", home / "result.json"
    if not (base / "model.safetensors").exists():
        game.make(base)
    if not result.exists():
        with flywheel_in(home / "flywheel"):
            made = train(base)
            result.write_text(json.dumps(made))
    found = json.loads(result.read_text())
    arms = {"base": asked(base), **{arm: asked(Path(found[arm])) for arm in ("after SFT", "after RL")}}
    text = table(arms, found["about"])
    print(text)
    page = PAGE.read_text()
    start, end = page.index(BEGIN) + len(BEGIN), page.index(END)
    PAGE.write_text(f"{page[:start]}\n{text}\n{page[end:]}")
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    say(f"{sum(each.ru_utime + each.ru_stime for each in used):.0f} s of processor time")
    if given.json:
        shares = {name: summed(arms[arm]) for name, arm in ARMS.items()}
        print(json.dumps({**shares, "seconds": round(time.monotonic() - began, 1)}), flush=True)


def asked(path: Path) -> dict[str, dict[str, list[float]]]:
    from workers.engines.engine_endpoints import open_engine

    engine = open_engine({"kind": "transformers", "path": str(path), "batch_size": 128})
    try:
        found: dict[str, Any] = {name: played(engine, GAMES, share) for name, share in OPPONENTS.items()}
    finally:
        engine.close()
    say(f"{path.name} has played")
    return found


def say(text: str) -> None:
    print(f"{time.process_time():6.1f} s  {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
