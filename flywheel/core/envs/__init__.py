"""Environments: what a policy is put into, and how its attempt is judged.

An environment kind is a class over plain data: `config` (tools, system prompt, safety policy), a task's prompt and
initial state, and a verifier spec. It is pure and seeded: the same task and seed always give the same first messages,
and the same messages the same reply, so that two attempts which come to the same point go on alike. What happened is
read out of the messages alone: nothing is kept between two calls, and nothing that the policy wrote in the name of the
environment is believed. Kinds stand in `kinds.KINDS`; the database stores only the kind's name and its data.
"""

from flywheel.core.envs.environment import MOST_TOKENS, Environment, Say, Table, Task, always, episode, token_limit_of
from flywheel.core.envs.kinds import build

__all__ = ["MOST_TOKENS", "Environment", "Say", "Table", "Task", "always", "build", "episode", "token_limit_of"]
