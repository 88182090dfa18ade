"""How often a small model answers in native calls after SFT: `python -m tests.bench_native_form [--rows 2000]`.

A base as small as the reference policy (0.7 million weights) is made of the same log, under the chat template of a
model that calls natively, with the tools' definitions in the prompt and the log's text form in the answers. Our SFT
trainer trains it on rows as datasets hold them: native calls. Then it is asked, by the engine that evals use, what
people with other names ask of production, and each answer is read as it would be served. Beside it stands the same
base before the training. Shares come with their 95 % interval (Wilson).

What it shows is whether what is taught, rendered, generated and parsed is one form; it says nothing of larger models.
The aim is 99%. With these defaults it was 99.7% [98.1, 99.9] of 300 answers at temperature 0, 99.3% [97.6, 99.8] at 0.7
and 92.7% [89.1, 95.1] at 1 (24, 21 and 17% right), after 21 minutes of training on one core, and 0% before. The others
are native calls whose JSON breaks off or runs into itself, as a model of this size writes at random, and none is in
another form.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from workers.reference.build import Corpus

ROOT = Path(__file__).resolve().parent.parent
SEED = 5
POSITIONS = 1024
BASE_STEPS = 400
TEMPERATURES = (1.0, 0.7, 0.0)
SHOWN = 20
"""Of the answers that are not native."""
TEMPLATE = "qwen3_instruct_2507"
"""A chat template of TRL's by its name."""
END, START = "<|im_end|>", "<|im_start|>"


def corpus() -> "Corpus":
    """What the base is made of: the log that the reference policy learnt from, under this template with its tools."""
    import trl
    from transformers import AutoTokenizer

    from workers.engines.tool_calls import templated
    from workers.reference import build, story

    written = (Path(trl.__file__).parent / "chat_templates" / f"{TEMPLATE}.jinja").read_text()
    tokenizer = templated(AutoTokenizer.from_pretrained(build.POLICY))
    tokenizer.chat_template = written

    def talk(request: str, answer: str) -> build.Talk:
        asked = [{"role": "system", "content": story.SYSTEM_PROMPT}, {"role": "user", "content": request}]
        prompt = tokenizer.apply_chat_template(asked, tools=story.TOOLS, tokenize=False, add_generation_prompt=True)
        return [(prompt, False), (answer + END, True)]

    return build.Corpus(
        talks=lambda: (talk(*pair) for pair in build.logged()),
        texts=lambda: (text for pair in build.logged(2000) for text, _ in talk(*pair)),
        pattern=build.STORY.pattern,
        special=("<|endoftext|>", END, START),
        chat_template=written,
        vocabulary=800,
        positions=POSITIONS,
    )


def rows_of(requests: Sequence[Any]) -> list[dict[str, Any]]:
    """Rows of SFT as datasets hold them."""
    from flywheel.core.traces import Message, ToolCall
    from workers.reference import story

    rows = []
    for asked in requests:
        call = ToolCall("call-0", asked.target["tool"], asked.target["arguments"])
        prompt = [Message("system", story.SYSTEM_PROMPT), Message("user", asked.prompt)]
        rows.append(
            {
                "task_id": asked.id,
                "prompt": [message.to_openai() for message in prompt],
                "completion": [Message("assistant", "", (call,)).to_openai()],
            }
        )
    return rows


def trained(start: Path, place: Path, rows: list[dict[str, Any]], steps: int) -> Path:
    """Run our SFT trainer; where its weights are."""
    from flywheel.core.recipes import defaults
    from tests.workers.trainers.cast import Directory
    from workers.reference import story

    agent = {"system_prompt": story.SYSTEM_PROMPT, "tools": story.TOOLS, "form": "native"}
    environment = {"kind": "tool_call", "config": story.environment_config(), "verifier": {}, "agent": agent}
    settings = {**defaults("sft"), "steps": steps, "batch_size": 32, "max_length": POSITIONS}
    run = Directory(
        place, start, train=rows, held_out=False, settings=settings, environment=environment, checkpoint_every=steps
    )
    with (place / "stderr").open("w") as errors:
        command = [sys.executable, "-m", "workers.trainers.sft", str(place)]
        if subprocess.run(command, cwd=ROOT, stderr=errors).returncode:
            raise SystemExit(run.errors())
    return place / "final"


def asked(policy: Path, requests: Sequence[Any], temperature: float = 1.0) -> dict[str, Any]:
    """Ask for each request once, and count what is native, and what is right; a few of the others are shown."""
    from flywheel.core.envs import build
    from flywheel.core.envs.agent_config import AgentConfig
    from flywheel.core.envs.policy_rollouts import Sampling, play
    from flywheel.core.evidence.statistics.estimates import proportion
    from flywheel.core.traces import Trace
    from workers.engines.transformers_engine import TransformersEngine
    from workers.reference import story

    agent = AgentConfig(story.SYSTEM_PROMPT, tuple(story.TOOLS), "native")
    env = build("tool_call", story.environment_config(), {}, agent=agent)
    engine = TransformersEngine(policy, device="cpu", batch_size=32)
    attempts = [(request.to_task(), 0, SEED + place) for place, request in enumerate(requests)]
    native = right = 0
    others = []
    for rollout in play(engine, env, attempts, Sampling(temperature=temperature, max_tokens=160)):
        said = rollout.messages[-1]
        is_native = bool(said.tool_calls) and all(isinstance(call.arguments, dict) for call in said.tool_calls)
        native += is_native
        if not is_native:
            others.append(rollout.error or said.content)
        trace = Trace.from_messages("bench", rollout.messages)
        right += env.verifier(rollout.task)(trace, rollout.task.target).score == 1.0
    shares = {"native": proportion(native, len(requests)), "right": proportion(right, len(requests))}
    counted = {name: [share.mean, share.low, share.high] for name, share in shares.items()}
    return {"n": len(requests), "temperature": temperature} | counted | {"others": others[:SHOWN]}


def measure(rows: int, steps: int, answers: int) -> dict[str, Any]:
    """All of it; the requests that are asked are of sessions, and so of names, that no row has."""
    from workers.reference import build, story

    requests = story.sessions(rows + answers, SEED)
    known = {request.session_id for request in requests[:rows]}
    fresh = [request for request in requests[rows:] if request.session_id not in known][:answers]
    with tempfile.TemporaryDirectory() as scratch:
        start = Path(scratch) / "base"
        build.build(start, BASE_STEPS, corpus=corpus())
        before = asked(start, fresh)
        began = time.perf_counter()
        policy = trained(start, Path(scratch) / "run", rows_of(requests[:rows]), steps)
        seconds = time.perf_counter() - began
        after = [asked(policy, fresh, temperature) for temperature in TEMPERATURES]
        return {"rows": rows, "steps": steps, "before": before, "after": after, "training_s": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--steps", type=int, default=450)
    parser.add_argument("--answers", type=int, default=300)
    given = parser.parse_args()
    print(json.dumps(measure(given.rows, given.steps, given.answers)))


if __name__ == "__main__":
    main()
