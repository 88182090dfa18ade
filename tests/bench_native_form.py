"""How often a small model answers in native calls after SFT: `python -m tests.bench_native_form [--rows 400]`.

The reference policy (0.7 million weights) knows the story's requests and answers in a text form of its own. It gets the
chat template and the markers of a model that calls natively, and is trained by our SFT trainer on rows as datasets hold
them: native calls, with the tools' definitions in the prompt. Then it is asked, by the engine that evals use, what
people with other names ask of production, and each answer is read as it would be served. Beside it stands the same
policy before the training. Shares come with their 95 % interval (Wilson).

What it shows is whether what is taught, rendered, generated and parsed is one form; it says nothing of larger models.
The aim is 99%. With these defaults it was 61% [55, 66] of 300 answers, none of them right, after 12 minutes of training
on two busy cores: the policy was built on prompts of a hundred tokens, and this template with its tools makes nine
hundred of each. A base that has read such prompts is what is missing.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SEED = 5
POSITIONS = 2048
TEMPLATES = {"qwen3_instruct_2507": ("<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>")}
"""A chat template of TRL's by its name, and its markers, which are tokens of a model that has it."""
END = "<|im_end|>"


def base(template: str, out: Path) -> int:
    """Write the reference policy with this template and its markers; return how many weights it has."""
    import trl
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from workers.reference.build import POLICY

    tokenizer = AutoTokenizer.from_pretrained(POLICY)
    model = AutoModelForCausalLM.from_pretrained(POLICY, dtype="float32")
    tokenizer.add_tokens(list(TEMPLATES[template]))
    model.resize_token_embeddings(len(tokenizer))
    tokenizer.eos_token, tokenizer.model_max_length = END, POSITIONS
    tokenizer.chat_template = (Path(trl.__file__).parent / "chat_templates" / f"{template}.jinja").read_text()
    model.config.eos_token_id = model.generation_config.eos_token_id = tokenizer.convert_tokens_to_ids(END)
    model.config.max_position_embeddings = POSITIONS
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    return int(model.num_parameters())


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
    settings = {**defaults("sft"), "steps": steps, "batch_size": 8, "max_length": POSITIONS}
    run = Directory(
        place, start, train=rows, held_out=False, settings=settings, environment=environment, checkpoint_every=steps
    )
    with (place / "stderr").open("w") as errors:
        command = [sys.executable, "-m", "workers.trainers.sft", str(place)]
        if subprocess.run(command, cwd=ROOT, stderr=errors).returncode:
            raise SystemExit(run.errors())
    return place / "final"


def asked(policy: Path, requests: Sequence[Any]) -> dict[str, Any]:
    """Ask for each request once, at temperature 1 as evals do, and count what is native, and what is right."""
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
    for rollout in play(engine, env, attempts, Sampling(temperature=1.0, max_tokens=160)):
        said = rollout.messages[-1]
        native += bool(said.tool_calls) and all(isinstance(call.arguments, dict) for call in said.tool_calls)
        trace = Trace.from_messages("bench", rollout.messages)
        right += env.verifier(rollout.task)(trace, rollout.task.target).score == 1.0
    shares = {"native": proportion(native, len(requests)), "right": proportion(right, len(requests))}
    return {"n": len(requests)} | {name: [share.mean, share.low, share.high] for name, share in shares.items()}


def measure(rows: int, steps: int, answers: int) -> dict[str, Any]:
    """All of it; the requests that are asked are of sessions, and so of names, that no row has."""
    from workers.reference import story

    requests = story.sessions(rows + answers, SEED)
    known = {request.session_id for request in requests[:rows]}
    fresh = [request for request in requests[rows:] if request.session_id not in known][:answers]
    found: dict[str, Any] = {"rows": rows, "steps": steps}
    for template in TEMPLATES:
        with tempfile.TemporaryDirectory() as scratch:
            start = Path(scratch) / "base"
            found["weights"] = base(template, start)
            before = asked(start, fresh)
            began = time.perf_counter()
            policy = trained(start, Path(scratch) / "run", rows_of(requests[:rows]), steps)
            found[template] = {"before": before, "after": asked(policy, fresh), "s": time.perf_counter() - began}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rows", type=int, default=400)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--answers", type=int, default=500)
    given = parser.parse_args()
    print(json.dumps(measure(given.rows, given.steps, given.answers)))


if __name__ == "__main__":
    main()
