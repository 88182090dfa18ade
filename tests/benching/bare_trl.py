"""`python -m tests.benching.bare_trl RUNDIR`: the script that one would write with TRL alone for a directory's run.

It takes rows and settings from the directory, and nothing of ours: TRL's trainer, its generation, its checkpoints as
often, a reward in a few lines; for episodes a loop of turns by `generate`.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl.trainer.dpo_config import DPOConfig
from trl.trainer.dpo_trainer import DPOTrainer
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.sft_config import SFTConfig
from trl.trainer.sft_trainer import SFTTrainer

SYSTEM = "You are a workplace assistant. Answer with one tool call."


def main() -> None:
    place = Path(sys.argv[1])
    spec = json.loads((place / "spec.json").read_text())
    settings = spec["settings"]
    rows = [json.loads(line) for line in (place / "data/train.jsonl").read_text().splitlines()]
    tokenizer = AutoTokenizer.from_pretrained(spec["base"]["path"])
    model = AutoModelForCausalLM.from_pretrained(spec["base"]["path"], dtype=torch.float32)
    shared: dict[str, Any] = {
        "output_dir": str(place / "bare"),
        "max_steps": settings["steps"],
        "per_device_train_batch_size": settings["batch_size"],
        "learning_rate": settings["learning_rate"],
        "lr_scheduler_type": "linear",
        "gradient_checkpointing": False,
        "seed": spec["seed"],
        "logging_steps": 1,
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
        "bf16": False,
        "dataloader_pin_memory": False,
        "save_strategy": "steps",
        "save_steps": spec["checkpoint_every"],
        "save_total_limit": 2,
    }
    if spec["algorithm"] == "sft":
        data = Dataset.from_list([{name: row[name] for name in ("prompt", "completion")} for row in rows])
        trainer: Any = SFTTrainer(model, SFTConfig(**shared), train_dataset=data, processing_class=tokenizer)
    elif spec["algorithm"] == "dpo":
        data = Dataset.from_list([{name: row[name] for name in ("prompt", "chosen", "rejected")} for row in rows])
        start = AutoModelForCausalLM.from_pretrained(spec["base"]["path"], dtype=torch.float32)
        arguments: Any = DPOConfig(**shared, beta=0.5)
        trainer = DPOTrainer(model, start, args=arguments, train_dataset=data, processing_class=tokenizer)
    else:
        arguments = GRPOConfig(
            **shared,
            num_generations=settings["num_generations"],
            max_completion_length=settings["max_completion_length"],
            loss_type="grpo",
            beta=0.0,
        )
        is_episode = spec["environment"]["kind"] == "episode"
        reward: Any = taken if is_episode else exact
        trainer = GRPOTrainer(
            model,
            reward_funcs=reward,
            args=arguments,
            train_dataset=Dataset.from_list([prompt_row(row, is_episode=is_episode) for row in rows]),
            processing_class=tokenizer,
            rollout_func=Loop(rows, spec["environment"]["config"]["max_turns"]) if is_episode else None,
        )
    trainer.train()


def prompt_row(row: dict[str, Any], *, is_episode: bool) -> dict[str, Any]:
    if is_episode:
        return {"prompt": row["id"]}
    prompt = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": row["prompt"]}]
    return {"prompt": prompt, "target": json.dumps(row["target"])}


def exact(completions: list[Any], target: list[str], **_: Any) -> list[float]:
    """1 for the wanted call, a share of it for parts."""
    return [
        graded(call_in(said[0]["content"]), json.loads(wanted))
        for said, wanted in zip(completions, target, strict=True)
    ]


def taken(score: list[float], **_: Any) -> list[float]:
    return score


def call_in(text: str) -> dict[str, Any] | None:
    try:
        call = json.loads(text)
    except ValueError:
        return None
    return call if isinstance(call, dict) and "tool" in call else None


def graded(call: dict[str, Any] | None, target: dict[str, Any]) -> float:
    if call is None:
        return -1.0
    return 0.3 * bool(call["tool"] == target["tool"]) + 0.7 * bool(call == target)


class Loop:
    """Whole episodes by `generate`, a batch a turn, tokens kept as they were sampled."""

    def __init__(self, rows: list[dict[str, Any]], turns: int) -> None:
        self.rows, self.turns = {row["id"]: row for row in rows}, turns

    def __call__(self, prompts: list[str], trainer: Any) -> dict[str, Any]:
        tokenizer, args = trainer.processing_class, trainer.args
        wanted = [self.rows[prompt]["target"]["wanted"][0]["calls"][0] for prompt in prompts]
        said = [list(self.rows[prompt]["state"]["messages"]) for prompt in prompts]
        opened = [tokenizer.apply_chat_template(each, add_generation_prompt=True, return_dict=False) for each in said]
        ids, masks = [list(each) for each in opened], [[0] * len(each) for each in opened]
        scores, alive = [-1.0] * len(prompts), list(range(len(prompts)))
        for turn in range(self.turns):
            answers = self._sampled(trainer, [ids[place] for place in alive], args)
            going = []
            for place, answer in zip(alive, answers, strict=True):
                ids[place] += answer
                masks[place] += [1] * len(answer)
                text = tokenizer.decode(answer, skip_special_tokens=True)
                call = call_in(text)
                scores[place] = max(scores[place], graded(call, wanted[place]))
                if call is not None and turn + 1 < self.turns:
                    said[place] += [{"role": "assistant", "content": text}, {"role": "tool", "content": "done"}]
                    whole = tokenizer.apply_chat_template(said[place], add_generation_prompt=True, tokenize=False)
                    before = tokenizer.apply_chat_template(said[place][:-1], tokenize=False)
                    between = tokenizer.encode(whole[len(before) :], add_special_tokens=False)
                    ids[place] += between
                    masks[place] += [0] * len(between)
                    going.append(place)
            alive = going
            if not alive:
                break
        starts = [len(each) for each in opened]
        return {
            "prompt_ids": [list(each) for each in opened],
            "completion_ids": [each[start:] for each, start in zip(ids, starts, strict=True)],
            "env_mask": [each[start:] for each, start in zip(masks, starts, strict=True)],
            "logprobs": None,
            "score": scores,
        }

    @staticmethod
    @torch.no_grad()
    def _sampled(trainer: Any, prompts: list[list[int]], args: Any) -> list[list[int]]:
        tokenizer, width = trainer.processing_class, max(map(len, prompts))
        padded = torch.tensor([[tokenizer.pad_token_id] * (width - len(each)) + each for each in prompts])
        mask = torch.tensor([[0] * (width - len(each)) + [1] * len(each) for each in prompts])
        trainer.model.eval()
        found = trainer.model.generate(
            input_ids=padded,
            attention_mask=mask,
            do_sample=True,
            temperature=args.temperature,
            max_new_tokens=args.max_completion_length,
            pad_token_id=tokenizer.pad_token_id,
            eos_token_id=tokenizer.eos_token_id,
        )
        trainer.model.train()
        answers = []
        for row in found[:, width:].tolist():
            end = row.index(tokenizer.eos_token_id) + 1 if tokenizer.eos_token_id in row else len(row)
            answers.append(row[:end])
        return answers


if __name__ == "__main__":
    main()
