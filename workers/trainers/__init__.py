"""Trainers: `python -m workers.trainers.<sft|dpo|grpo|kto|reward_model> RUNDIR`, each on a TRL trainer behind a run
directory.

They see no Django, no database and no network: everything comes from `spec.json` and goes to files beside it
(`docs/design/run-directory.md`).
"""
