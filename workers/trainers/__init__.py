"""Trainers: `python -m workers.trainers.<sft|dpo|grpo|rloo> RUNDIR`, each one TRL trainer behind a run directory.

They see no Django, no database and no network: everything comes from `spec.json` and goes to files beside it
(`docs/design/run-directory.md`). Importing this package silences the libraries' telemetry and hub look-ups, which
they read when they are imported.
"""

import os

os.environ |= {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "DO_NOT_TRACK": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "WANDB_DISABLED": "true",
}
# One process drives one device: TRL refuses several visible GPUs in one process.
os.environ["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
