"""A training run whose attempts a real vLLM server samples, and what its proof sees."""

import subprocess
import threading
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from flywheel.agents import artifacts
from flywheel.agents.models import Version
from flywheel.core.envs.tictactoe import generate
from flywheel.evals.serving import loaded_adapters
from tests.serving.test_vllm import engine, names, requests
from tests.waiting import wait_for
from tests.workers.trainers.attempts.test_step_attempts import GAMES
from tests.workers.trainers.cast import Directory, owned
from workers.jobs.training import trainer_process
from workers.reference.build import POLICY
from workers.trainers.attempts.remote_policy import EXACT_NATS, RemotePolicy
from workers.trainers.run.run_failures import TrainingError

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.filterwarnings("ignore:.*gradient_checkpointing` is deprecated:FutureWarning"),
]

NOISE = 1e-4
"""A hundred times what was seen of single tokens in 32 bits; a lost update is a thousand times that."""


def directory(path: Path, **fields: Any) -> Directory:
    # Who cannot play loses every game alike, and learns from entropy alone.
    settings = {
        "rollouts": "vllm",
        "learning_rate": 1e-3,
        "max_completion_length": 16,
        "temperature": 0.8,
        "entropy_coef": 0.5,
    } | fields.pop("settings", {})
    base = loaded_adapters.base_name(artifacts.digest_of(POLICY))
    whole: dict[str, Any] = {"tuning": {"mode": "lora", "rank": 4, "alpha": 8}, "steps": 2, **fields}
    games = [game.to_json() for game in generate(8, seed=3)]
    return Directory(
        path, POLICY, "grpo", environment=GAMES, train=games, held_out=False, settings=settings, served_base=base,
        **whole,
    )  # fmt: skip


def test_episodes_of_several_turns_are_sampled_as_the_trainer_would_beside_another_adapter(
    server: str, version: Callable[..., Version], tmp_path: Path
) -> None:
    run = directory(tmp_path / "run")
    other = loaded_adapters.load(version(1))
    alone = [answer.text for answer in engine(server, other).chat(requests(4))]
    said: list[list[str]] = []
    trainer = trainer_process.start("workers.trainers.grpo", run.path, *trainer_process.SERVER)

    def ask() -> None:
        while trainer.is_alive():
            said.append([answer.text for answer in engine(server, other).chat(requests(4))])

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        assert ended(trainer, 300.0) == 0, words(run)
    finally:
        trainer.leave()
        asking.join()
    proofs = run.events("proof")
    assert [row["step"] for row in proofs] == [0, 1]
    assert all(row["worst"] < NOISE for row in proofs), proofs
    assert proofs[1]["moved"] > EXACT_NATS, "a lost update would have been seen"
    for metrics in run.metrics().values():
        assert metrics["turns_mean"] > 1
        assert metrics["sampler_mismatch_max"] < NOISE, metrics
    assert not {row["name"] for row in proofs} & set(names())
    assert said
    assert all(texts == alone for texts in said), "and the other adapter's answers are its own"


@pytest.mark.parametrize(
    ("mode", "bound"),
    [
        ({"execution": "one_step_off_async"}, 1),
        ({"execution": "fully_async", "max_staleness": 2}, 2),
    ],
    ids=["one_step_off_async", "fully_async"],
)
def test_vllm_samples_on_while_the_trainer_learns_and_no_token_is_older_than_the_bound(
    server: str, tmp_path: Path, mode: dict[str, Any], bound: int
) -> None:
    run = directory(tmp_path / "run", steps=5, settings=mode)
    trainer = trainer_process.start("workers.trainers.grpo", run.path, *trainer_process.SERVER)
    try:
        assert ended(trainer, 300.0) == 0, words(run)
    finally:
        trainer.leave()
    proofs = run.events("proof")
    assert proofs[0]["step"] == 0
    assert len({row["step"] for row in proofs}) > 1, "the weights were handed over while it learnt"
    assert all(row["worst"] < NOISE for row in proofs), proofs
    assert all(row["moved"] > EXACT_NATS for row in proofs if row["moved"] is not None), "a lost update would be seen"
    steps = run.metrics()
    assert sorted(steps) == [1, 2, 3, 4, 5]
    assert all(metrics["staleness_max"] <= bound for metrics in steps.values()), steps
    assert any(metrics["staleness_max"] >= 1 for metrics in steps.values()), "it did sample ahead"
    ages = [{name: share for name, share in step.items() if name.startswith("staleness/")} for step in steps.values()]
    assert all(sum(shares.values()) == pytest.approx(1) for shares in ages), ages
    waits = [{"sampler_idle", "learner_idle"} <= set(metrics) for metrics in steps.values()]
    assert waits == [False, True, True, True, True], "before the first step nobody waited"
    assert not {row["name"] for row in proofs} & set(names())


def test_a_run_starts_a_server_of_its_own_which_ends_with_it_and_is_proved(tmp_path: Path) -> None:
    run = directory(tmp_path / "run", steps=3, checkpoint_every=1, settings={"rollouts": "colocate"})
    trainer = trainer_process.start("workers.trainers.grpo", run.path)
    try:
        run.until(lambda it: bool(it.events("checkpoint")))
        (server,) = children(trainer.process.pid, "vllm.entrypoints")
        members = session(server)
        assert len(members) > 1, "vLLM has processes of its own"
        environment = Path(f"/proc/{server}/environ").read_bytes().split(b"\0")
        (key,) = [each.partition(b"=")[2] for each in environment if each.startswith(b"VLLM_API_KEY=")]
        trainer.process.kill()
        wait_for(lambda: not session(server), "all of vLLM ends with its trainer")
    finally:
        trainer.leave()
    trainer = trainer_process.start("workers.trainers.grpo", run.path)
    try:
        assert ended(trainer, 400.0) == 0, words(run)
    finally:
        trainer.leave()
    proofs = run.events("proof")
    assert sorted({row["step"] for row in proofs}) == [0, 1, 2]
    assert proofs[-1]["name"].endswith("-a2-s2")
    assert all(row["worst"] < NOISE for row in proofs), proofs
    assert all(row["moved"] > EXACT_NATS for row in proofs if row["moved"] is not None), "a lost update would be seen"
    assert all(metrics["sampler_mismatch_max"] < NOISE for metrics in run.metrics().values())
    assert not [path for path in run.path.rglob("*") if path.is_file() and key in path.read_bytes()]


def ended(trainer: trainer_process.LocalTrainer, within_s: float) -> int | None:
    """How the trainer has ended; None where it has not."""
    with suppress(subprocess.TimeoutExpired):
        return trainer.process.wait(within_s)
    return None


def words(run: Directory) -> str:
    """What the run said last."""
    told = [str(row["message"]) for row in run.events("warning")]
    return "\n".join([*told, (run.path / "trainer.log").read_text()[-3000:]])


def children(process: int, words: str) -> list[int]:
    """The processes that this one has started with such words."""
    told = [path.read_text().split() for path in Path(f"/proc/{process}/task").glob("*/children")]
    return [int(pid) for pids in told for pid in pids if words in Path(f"/proc/{pid}/cmdline").read_text()]


def session(leader: int) -> list[int]:
    """The processes of a session that live."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, _, of = path.read_text().rpartition(")")[2].split()[:4]
            found += [int(path.parent.name)] if int(of) == leader and state != "Z" else []
    return found


def test_a_lost_update_and_a_rank_that_the_server_does_not_take_are_seen(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = met(tmp_path / "lost", rank=4)
    policy.sync_weights()
    place = policy._place(policy.name)
    for weight in policy.trainer.model.parameters():
        if weight.requires_grad:
            weight.data += 0.02
    monkeypatch.setattr(policy, "_write", lambda _: place)  # the new weights do not arrive
    policy.trainer.state.global_step = 1
    with pytest.raises(TrainingError, match=r"is not the policy that is trained: .* off by") as lost:
        policy.sync_weights()
    assert lost.value.kind == "sampler"
    run: Any = policy.run
    before, after = (event["mean"] for event in run.events if event["event"] == "proof")
    assert before < NOISE < EXACT_NATS < after
    policy.close()

    wide = met(tmp_path / "wide", rank=96)
    with pytest.raises(TrainingError, match=r"cannot be used: .*rank"):
        wide.sync_weights()
    wide.close()
    assert not [name for name in names() if name.startswith("rollouts-")]


def met(path: Path, rank: int) -> RemotePolicy:
    """A policy with a fresh adapter of this rank, as a trainer would have it."""
    run = owned(directory(path, tuning={"mode": "lora", "rank": rank, "alpha": 8}))
    (path / "events.jsonl").touch()
    run.warn = lambda _: None
    model = AutoModelForCausalLM.from_pretrained(POLICY)
    policy = RemotePolicy(run, [1], [[2, 3, 4], [5, 6]])
    trained = get_peft_model(model, LoraConfig(r=rank, target_modules="all-linear", task_type="CAUSAL_LM"))
    state = SimpleNamespace(global_step=0)
    policy.trainer = SimpleNamespace(model=trained, state=state, _metrics={"train": defaultdict(list)})
    policy.limit = EXACT_NATS
    return policy
