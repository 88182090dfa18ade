"""The terms that a newcomer cannot know, each with what it means here: shown where it stands, and on the help's page.

Definitions are one or two short sentences for a product person; the formulas are in `docs/design/`.
"""

from typing import Final

TERMS: Final[dict[str, str]] = {
    "arm": "The sessions that one version answers in a ramp: the live one or the candidate.",
    "AWR": "Training on recorded attempts: the better one scored, the more it is imitated.",
    "baseline": "The version that a candidate is compared with, usually the live one.",
    "candidate": "A version put forward to go live, with its comparison against the live version.",
    "canary": "An answer whose right judgement is known, given to a judge to see whether it can judge.",
    "category": "The kind of failure, such as wrong tool or broken format. The API calls it bucket.",
    "contamination": "Training data that contains held-out tasks. What learned from it is not compared on them.",
    "detector": "A rule that reads each run and proposes a failure with its evidence. A person decides.",
    "digest": "A fingerprint of the content. Two things with the same digest are the same.",
    "DPO": "Training on pairs: an answer that people prefer, and one that they do not.",
    "effective number": "How many sources of equal size would tell as much. A few large ones tell less.",
    "eligible": "The gate found a real improvement and no harm. An approver may promote it.",
    "eval": "A version's score on a frozen task set: every task, several attempts each.",
    "gate": "The checks that a candidate must pass before an approver can promote it without an override.",
    "GRPO": "Reinforcement learning: several attempts at each task, and the better ones are made more likely.",
    "held-out": "Tasks that are never trained on. They measure whether a version is better.",
    "interval": "The range that holds the true value in 95 of 100 cases. Wider means less certain.",
    "KTO": "Training on single answers, each with a thumb up or down.",
    "margin": "The harm that you tolerate. A guard counts when the harm is shown to be larger.",
    "n": "How many attempts, tasks or runs a number comes from.",
    "never event": "An act that cannot be taken back and that nobody asked for. One is enough to stop a candidate.",
    "opening": "A measurement on held-out or sealed tasks. Each one uses up a little of what they can still show.",
    "pass@k": "The share of tasks that at least one of k attempts solves.",
    "pipeline": "Training in stages, such as prompt, SFT, GRPO, each from the version that the one before made.",
    "power": "How likely a real improvement of some size is shown with these tasks.",
    "proved": "The verifier was tried on this task: it fails what is wrong, cheats too, and passes what is right.",
    "ramp": "A release by steps: the candidate answers a growing share of the sessions, beside the live version.",
    "regression suite": "A set of tasks that every candidate must keep passing.",
    "reward audit": "People judge outputs without seeing the verifier's score, to see how often it is wrong.",
    "rollout": "One attempt of a version at a task.",
    "rubric": "A verifier made of parts with weights, such as the right call and the right words.",
    "sealed": "Tasks that are opened once, after a candidate was chosen, to confirm its gain.",
    "SFT": "Training on examples: people's corrections and answers that passed.",
    "side effect": "A change that nobody asked for.",
    "source": "Where tasks come from, such as one customer. All tasks of a source are in one split.",
    "split": "What a task is used for: training, held-out or sealed.",
    "stage": "A step of a ramp: a share of the sessions, for a least time and number of sessions.",
    "task": "A test made from a failure or a success: a request, what is wanted, and a verifier.",
    "teacher": "A better version, whose judgement of each token another version learns.",
    "unscored": "There is no score, with a reason. It is not zero, and means leave it out.",
    "verifier": "What scores an attempt: code, a rubric, or a judge model.",
    "wealth": "Evidence from bets on each session. It rarely grows by chance: beyond 100 in 1% of ramps at most.",
    "zero-variance group": "Attempts at one task that all score the same. Reinforcement learns nothing from them.",
    "κ": "Agreement of two reviewers beyond chance: 1 is perfect, 0 is what guessing would give.",
}
"""Each term as it stands in a text, and its meaning."""
