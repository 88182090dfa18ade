"""The table of the talk, for the reference policy: `python -m tests.tictactoe.table [--seeds N ...] [--home DIR]
[--algorithm cispo] [--json]`.

Everything goes the way that a trainer goes: games of a teacher behind an endpoint are collected by the eval runner on
train tasks, so many that 200 are left when they are filtered (not lost, in form throughout), written as a dataset, and
the base is fine-tuned on it by the launched trainer. What comes out goes on by reinforcement in a launched run too, on
whole games and on games that begin where the next move matters. Then all three play 500 seeded games against each
opponent, and the held-out curve of the run, of other whole games against the optimal opponent, is told beside. The
table replaces the one in docs/design/data-generation.md. With `--home` what was built before is taken up again; with
`--json` each seed's line is the result, as `{arm: {opponent: shares, "format", "invalid"}, "seconds", "curve"}`, where
`seconds` are all those of this seed, the base's too. With `--algorithm ppo` PPO is in the place of CISPO, and the page
stays as it is.
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
from dataclasses import replace
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
    from flywheel.environments.models import Task, TaskSet
    from flywheel.training.models import TrainingRun

PAGE = Path(__file__).parents[2] / "docs/design/data-generation.md"
BEGIN, END = "<!-- table: python -m tests.tictactoe.table -->\n", "\n<!-- end of table -->"
GAMES, COLLECTED, WANTED = 500, 270, 200
SEED_OF_TASKS, SEED_OF_TEACHER, SEED_OF_TRAINING, SEED_OF_GAMES = 11, 12, 13, 10**6
OPPONENTS = {"random": 1.0, "optimal": 0.0}
SAMPLED = 0.7
SAMPLING = Sampling(temperature=0.0, max_tokens=24)
"""Of the table; what each arm does at a temperature of `SAMPLED` is told beside it."""
CHOICE = {"form": "sft", "reward": "", "parts": "loss <= 0, format >= 1", "alike": "1", "cap": "1"}
STEPS = 60
HELD_OUT_SHARE = 0.2
MEASURED = {"low": 0.0, "high": 0.0}
"""Of whole games against the optimal opponent: the held-out ones are the run's curve, the others are practised."""
PRACTICE = (({"low": 0.3, "high": 1.0}, 1200), ({"low": 0.0, "high": 0.0, "begun": 1.0}, 300))
"""Of other games that are practised, and how many are made of each."""
WHOLE = 600
"""Games that the first of these is."""
REINFORCED = {
    "steps": 160,
    "batch_size": 128,
    "micro_batch_size": 32,
    "num_generations": 8,
    "learning_rate": 5e-4,
    "max_completion_length": 24,
    "entropy_coef": 0.01,
    "dynamic_sampling": True,
    "max_resamples": 2,
    "scale_rewards": "batch",
}
"""Scaled by group, attempts that all lost are told apart by a slip in form as loudly as draws from losses. With the
curriculum instead of dynamic sampling four of five tasks rested by step 150, and draws fell from 80 to 73%: what rests
is forgotten meanwhile. At a rate of 1e-3 the entropy fell to 0.08 in 75 steps."""
REINFORCED_BY: dict[str, dict[str, Any]] = {
    "cispo": REINFORCED,
    "ppo": {
        "steps": 100,
        "batch_size": 128,
        "micro_batch_size": 32,
        "learning_rate": 3e-4,
        "max_completion_length": 24,
        "entropy_coef": 0.005,
        "normalize_advantages": True,
    },
}
ARMS = {"base": "base", "sft": "after SFT", "rl": "after RL"}
PARTS = ("win", "draw", "loss", "format", "invalid")


def played(engine: Engine, games: int, random_share: float, sampling: Sampling) -> dict[str, list[float]]:
    """What came of seeded games against an opponent, by part; the same games for whoever plays."""
    env = TicTacToe(game.CONFIG, {})
    tasks = list(generate(games, seed=SEED_OF_GAMES, low=random_share, high=random_share))
    rollouts = play(engine, env, [(task, 0, number) for number, task in enumerate(tasks)], sampling)
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


def train(base: Path, seeds: Sequence[int], algorithm: str) -> dict[str, Any]:
    """The weights of the base after SFT on what is left of the teacher's games, and those after reinforcement, and what
    is to be told of the way: `{"about": lines, "seconds": of what all seeds have in common, "seeds": {seed: {"sft":
    path, "rl": path, "seconds", "curve": [[minute, draws, games]]}}}`, minutes from its beginning. In a Flywheel."""
    began = time.monotonic()
    os.environ["DJANGO_SETTINGS_MODULE"] = "flywheel.settings"
    import django
    from django.utils import timezone

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
    from flywheel.training.models import Dataset, Point
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
        config=game.CONFIG,
        verifier={"kind": "tictactoe"},
        terms=Terms("tictactoe", held_out_share=HELD_OUT_SHARE),
    )

    def generated(count: int, seed: int, options: dict[str, float]) -> "list[Task]":
        job = tasks.submit(
            environment=place, actor=Actor(trainer), count=count, seed=seed, key=uuid.uuid4(), options=options
        )
        story_playback.finished(job, timeout_s=1800)
        return list(place.tasks.filter(is_proved=True, generation=job).order_by("number"))

    proved = generated(360, SEED_OF_TASKS, {})
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
        algorithm: str, start: "Version", on: "TaskSet", settings: dict[str, Any], seed: int, **fields: Any
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
            seed=seed,
            override_reason="the table is about this algorithm",
            **fields,
        )
        made, _ = launch(request, Actor(trainer))
        story_playback.finished(made, timeout_s=7200)
        made.refresh_from_db()
        return made

    whole = generated(WHOLE, SEED_OF_TASKS + 1, MEASURED)
    others = [
        task
        for number, (options, count) in enumerate(PRACTICE)
        for task in generated(count, SEED_OF_TASKS + 2 + number, options)
        if task.split == Split.TRAIN
    ]
    practice = freeze(environment=place, name="practice", actor=Actor(trainer), tasks=[*whole, *others])
    say(f"{practice}: {len(whole) + len(others)} tasks")
    reinforced_by = REINFORCED_BY[algorithm]
    about = [
        f"{kept} of {len(learnt)} games of the teacher were kept ({CHOICE['parts']}), {dataset.rows} moves; dataset "
        f"`{dataset.digest[:12]}`, SFT of all weights in {STEPS} steps",
        f"seeds: base {game.SEED}, tasks from {SEED_OF_TASKS}, teacher {SEED_OF_TEACHER}, games {SEED_OF_GAMES}",
        f"from there on {algorithm.upper()} of all weights, {reinforced_by['steps']} steps of "
        f"{reinforced_by['batch_size']} episodes at a rate of {reinforced_by['learning_rate']:g}, on "
        f"{len(whole) + len(others)} games, most of them begun where the next move matters",
    ]
    found: dict[str, Any] = {"about": about, "seconds": time.monotonic() - began, "seeds": {}}
    for seed in seeds:
        began = time.monotonic()
        tuned = learnt_by("sft", version, task_set, {"steps": STEPS}, seed, dataset=dataset)
        assert tuned.produced is not None
        assert tuned.produced.weights is not None
        say(f"{tuned.produced} is after SFT")
        reinforced = learnt_by(algorithm, tuned.produced, practice, reinforced_by, seed)
        assert reinforced.produced is not None
        assert reinforced.produced.weights is not None
        seconds = time.monotonic() - began
        say(f"{reinforced.produced} is after RL")
        points = reinforced.points.filter(kind=Point.Kind.EVAL).order_by("step")
        ended = timezone.now()
        found["seeds"][str(seed)] = {
            "sft": str(artifacts.local(tuned.produced.weights)),
            "rl": str(artifacts.local(reinforced.produced.weights)),
            "seconds": seconds,
            "curve": [
                [
                    (found["seconds"] + seconds - (ended - point.at).total_seconds()) / 60,
                    point.values["parts"]["draw"],
                    point.values["n"],
                ]
                for point in points
            ],
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.tictactoe.table", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[SEED_OF_TRAINING])
    parser.add_argument("--home", type=Path, default=None)
    parser.add_argument("--algorithm", choices=REINFORCED_BY, default="cispo")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    home = given.home or Path(tempfile.mkdtemp(prefix="games-"))
    home.mkdir(parents=True, exist_ok=True)
    base, result, took = home / "base", home / "result.json", home / "base.seconds"
    if not took.exists():
        began = time.monotonic()
        game.make(base)
        took.write_text(str(time.monotonic() - began))
    if not result.exists():
        with flywheel_in(home / "flywheel"):
            made = train(base, given.seeds, given.algorithm)
            result.write_text(json.dumps(made))
    found = json.loads(result.read_text())
    before = float(took.read_text())
    began = time.monotonic()
    arms = {"base": asked(base)}
    lines = []
    for seed, one in found["seeds"].items():
        of = {"base": arms["base"]} | {arm: asked(Path(one[arm])) for arm in ("sft", "rl")}
        arms |= {f"{ARMS[arm]}, seed {seed}": of[arm] for arm in ("sft", "rl")}
        seconds = before + found["seconds"] + one["seconds"]
        curve = [[before / 60 + minute, draws, games] for minute, draws, games in one["curve"]]
        lines.append(told(seed, seconds, curve, of))
        if given.json:
            shares = {arm: summed(of[arm]["greedy"]) | {"sampled": summed(of[arm]["sampled"])} for arm in ARMS}
            print(json.dumps({**shares, "seconds": round(seconds, 1), "seed": int(seed), "curve": curve}), flush=True)
    text = table({name: arm["greedy"] for name, arm in arms.items()}, [*found["about"], *lines])
    print(text, file=sys.stderr)
    if given.algorithm == "cispo":
        page = PAGE.read_text()
        start, end = page.index(BEGIN) + len(BEGIN), page.index(END)
        PAGE.write_text(f"{page[:start]}\n{text}\n{page[end:]}")
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    processor = sum(each.ru_utime + each.ru_stime for each in used)
    say(f"{processor:.0f} s of processor time, of it {time.monotonic() - began:.0f} s for all games of the table")


def told(seed: str, seconds: float, curve: Sequence[Sequence[float]], arms: dict[str, Any]) -> str:
    """What there is to say of a seed beside its rows: time, the curve, and what sampling makes of it."""
    draws = ", ".join(f"{minute:.0f} min {share:.0%}" for minute, share, _ in curve)
    games = max((int(games) for *_, games in curve), default=0)
    sampled = "; ".join(
        f"{ARMS[arm]} {fmean(found['optimal']['draw']):.1%} draws against the optimal opponent and "
        f"{1 - fmean(found['random']['loss']):.1%} not lost against the random one"
        for arm, found in ((arm, arms[arm]["sampled"]) for arm in ARMS)
    )
    return (
        f"seed {seed}: {seconds / 60:.0f} min from nothing to the end of training; draws in {games} held-out games "
        f"against the optimal opponent on the way, counted from the beginning: {draws}. At temperature {SAMPLED:g}: "
        f"{sampled}"
    )


def asked(path: Path) -> dict[str, dict[str, dict[str, list[float]]]]:
    from workers.engines.engine_endpoints import open_engine

    engine = open_engine({"kind": "transformers", "path": str(path), "batch_size": 128})
    ways = {"greedy": SAMPLING, "sampled": replace(SAMPLING, temperature=SAMPLED)}
    try:
        found = {
            way: {name: played(engine, GAMES, share, sampling) for name, share in OPPONENTS.items()}
            for way, sampling in ways.items()
        }
    finally:
        engine.close()
    say(f"{path.name} has played")
    return found


def say(text: str) -> None:
    print(f"{time.process_time():6.1f} s  {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
