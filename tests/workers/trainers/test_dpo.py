"""DPO learns from corrections and stays near its start."""

from flywheel.core import recipes
from flywheel.core.traces.tooling import call_text
from tests.workers.trainers.cast import Make, Start
from workers.reference import story
from workers.reference.build import POLICY


def test_the_reference_policy_learns_from_corrections_at_its_defaults_and_stays_near_its_start(
    make: Make, start: Start
) -> None:
    rows = []
    for request in story.sessions(8, seed=1)[:8]:  # one batch, the same at each step
        prompt = [{"role": "system", "content": story.SYSTEM_PROMPT}, {"role": "user", "content": request.prompt}]
        wrong = call_text("reminders.set", {"about": request.wording})
        chosen, rejected = ([{"role": "assistant", "content": said}] for said in (request.answer, wrong))
        rows.append({"task_id": request.id, "prompt": prompt, "chosen": chosen, "rejected": rejected})
    settings = {name: recipes.defaults("dpo")[name] for name in ("batch_size", "learning_rate", "beta")}
    run = make("dpo", on=POLICY, train=rows, steps=24, settings=settings, held_out=False)
    assert start(run).wait() == 0, run.errors()
    first, last = run.metrics()[1], run.metrics()[24]
    assert last["margin"] > 1, "with a beta of 0 it is 0"
    assert last["chosen_logp"] > first["chosen_logp"], "a rate ten times as high takes it from -16 to -28"
    moved = last["margin"] / settings["beta"]
    assert moved < 33, "nats between good and bad answers: 26, and 40 with TRL's beta of 0.1, which after SFT collapses"
