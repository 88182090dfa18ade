"""The reference policy for tic-tac-toe: `python -m workers.reference.game OUT_DIR [--steps N]`.

The same size and the same code as the policy of the story (`build.py`), with a vocabulary of its own, in which a cell
is one token, and another world to learn from: the log of an older player, who sees what is on a board and seldom heeds
it. It plays any free cell as often as a good one, and answers in whatever form came to its mind; now and then it names
a cell that is taken, or none. So what comes out is a base as the talk had one: it can play, mostly loses, and seldom
keeps to the form. It knows the game by the words of `CONFIG`, which are few, as a policy so small reads every one of
them anew in each answer.

`teacher` is the player whom a policy may learn from: it looks before it moves, errs sometimes, and is not always in
form.
"""

import itertools
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TextIO

from flywheel.core.envs import Task
from flywheel.core.envs.tictactoe import TicTacToe, free_cells, generate, move, put, values, winner_of
from flywheel.core.traces import Message
from workers.reference.build import Corpus, Talk, build, main, talk

CONFIG = {"system_prompt": "Play X. Say <think>why</think>\n<move>cell</move>"}
"""Of the environment that the policy plays in."""
STEPS = 600
"""A third of them leaves a base that hardly sees a board, and reinforcement on it stayed at about 80% draws."""
SEED = 5
FORMED, BARE, WORDS = 0.3, 0.55, 0.15
"""Shares of the forms in the log: as wanted, a move without a thought, and in words, which is no move."""
LOOKS = 0.35
"""How often the player of the log looks for the best move; else any cell will do."""
TAKEN = 0.04
"""How often it names a cell that is taken."""
ERRS, FORGETS = 0.1, 0.04
"""How often the teacher moves anywhere, and forgets to think aloud."""


def corpus() -> Corpus:
    return Corpus(
        talks=talks,
        texts=lambda: (text for said, _ in zip(talks(), range(500), strict=False) for text, _ in said),
        # A cell is a token, with the space or the line before it, and with the comma in a list of them.
        pattern=r"</?[a-z]+>\n?|,? [0-9]|[ \n]?[XO.0-9](?![A-Za-z0-9])|[ \n]?[A-Za-z]+[.:]?|\s|.",
    )


def talks() -> Iterator[Talk]:
    """Games of the log, without end."""
    for seed in itertools.count(10**9):
        for task in generate(1000, seed=seed):
            yield _game(task, random.Random(f"log {SEED} {task.id}"))


def _game(task: Task, rng: random.Random) -> Talk:
    env = TicTacToe(CONFIG, {})
    messages = env.reset(task, 0)
    turns = []
    for _ in range(env.max_turns):
        said = _logged(board_of(messages), rng)
        turns.append((messages[-1].content, said.content))
        messages = [*messages, said]
        reply = env.respond(task, messages, 0)
        if not reply:
            break
        messages = [*messages, *reply]
    return talk(env.system_prompt, *turns)


def _logged(board: str, rng: random.Random) -> Message:
    free = free_cells(board)
    cell = rng.choice(free)
    if rng.random() < LOOKS:
        cell = rng.choice(best_cells(board))
    elif rng.random() < TAKEN and len(free) < 9:
        cell = rng.choice([other for other in range(9) if other not in free])
    form = rng.random()
    if form < FORMED:
        return move(cell, _thought(board))
    if form < FORMED + BARE:
        return Message("assistant", f"<move>{cell}</move>")
    return Message("assistant", f"I take cell {cell}.")


def teacher(messages: Sequence[Message], seed: int) -> Message:
    """Return the teacher's next message in a game; always the same for a seed."""
    board = board_of(messages)
    rng = random.Random(f"teacher {seed} {board}")
    cell = rng.choice(free_cells(board)) if rng.random() < ERRS else rng.choice(best_cells(board))
    if rng.random() < FORGETS:
        return Message("assistant", f"<move>{cell}</move>")
    return move(cell, _thought(board))


def _thought(board: str) -> str:
    """The sight on a board: where X wins and where O would. It is true, whatever is played then.

    Both are named in each thought, none of them as well: a policy that says one or the other comes to say the one that
    its practice rewards most, and no longer looks for the other.
    """
    seen = []
    for player, word in (("X", "Win"), ("O", "Block")):
        cells = [cell for cell in free_cells(board) if winner_of(put(board, cell, player))]
        seen.append(f"{word} {cells[0] if cells else 'none'}")
    return " ".join(seen)


def board_of(messages: Sequence[Message]) -> str:
    """The board that a player is shown, as nine cells."""
    lines = [line.split() for line in messages[-1].content.splitlines()]
    return "".join(cell for line in lines if len(line) == 3 and set("".join(line)) <= set("XO.") for cell in line)


def best_cells(board: str) -> list[int]:
    """The moves that are best against one who makes no mistakes."""
    found = values(board, "X")
    best = max(worth for _, worth in found)
    return [cell for cell, worth in found if worth == best]


def make(out: Path, steps: int = STEPS, report: TextIO = sys.stderr) -> None:
    """Make the base and write it into `out`."""
    build(out, steps, report, corpus())


if __name__ == "__main__":
    main(make, STEPS, "workers.reference.game", __doc__)
