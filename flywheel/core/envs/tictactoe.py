"""Environment kind `tictactoe`: a whole game against an opponent of known skill, a move a turn.

The policy plays X. It is shown the board and the free cells, and answers `<think>…</think><move>n</move>` with a cell
from 0 to 8. After Stefano Fiorucci's environment of that name (llm-rl-environments-lil-course, chapters 3 to 9): a win
is worth 1, a draw 0.5, a loss or a game not finished 0; the right form adds up to 0.2; a move that cannot be made costs
0.1 once a game, however many there are, and is asked for again.

Config: `{"system_prompt": str, "max_turns": int, "token_limit": int}`, all optional. Verifier: `{"kind": "tictactoe"}`.
State: `{"starts": "X" or "O", "random_share": p, "seed": n}`: how often the opponent moves at random, the rest of its
moves being the best there are. With `"begun": [cells]` these moves of X are made already, and the policy is shown the
position that they led to: what a move is worth is told sooner than what a game is. Target: `{"best": "win" or "draw"}`,
the most that can be had of this very opponent from there.

The opponent is a function of the task's seed and of the board: whoever brings about the same board gets the same reply,
in whatever order games are played. Among moves that are equally good it chooses at random; taking the first lets a
policy learn the opponent by heart instead of the game.

Parts of a verdict: `win`, `draw`, `loss` (1 for what it was; a game not finished is a loss), `format` (share of answers
in the right form), `invalid` (1 when some move could not be made). The score is
`(result / best result + 0.2 format - 0.1 invalid + 0.1) / 1.3`, so 1 is the best result in the right form.
"""

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

from flywheel.core.envs.environment import Say, Table, Task, always, token_limit_of
from flywheel.core.traces import Message, Trace
from flywheel.core.verifiers import Verdict, VerifierError, Verify, guarded

LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))
EMPTY = "." * 9
WORTH = {"win": 1.0, "draw": 0.5, "loss": 0.0}
FORMAT, INVALID = 0.2, 0.1
MAX_TURNS = 8
"""Five moves are the most that X makes; the others are for moves that have to be made again."""
SYSTEM_PROMPT = """You play tic-tac-toe as X. The cells are numbered like this:
0 1 2
3 4 5
6 7 8
Think briefly, then name one free cell. Answer in exactly this form:
<think>your reasoning</think>
<move>number of the cell</move>"""

_FORM = re.compile(r"\s*<think>.*?</think>\s*<move>\s*[0-8]\s*</move>\s*", re.DOTALL)
_MOVE = re.compile(r"<move>\s*([0-9]+)\s*</move>")


@dataclass(slots=True)
class Game:
    """The state of a game after the policy's answers; every board in it is the environment's own."""

    board: str
    """Nine cells, each `X`, `O` or `.`."""
    answers: int = 0
    formed: int = 0
    """Answers in the right form."""
    problem: str = ""
    """Why the last move could not be made."""
    is_invalid: bool = False
    """Some move could not be made."""

    @property
    def result(self) -> str:
        """`win`, `draw` or `loss` for X; empty while the game goes on."""
        if winner := winner_of(self.board):
            return "win" if winner == "X" else "loss"
        return "" if "." in self.board else "draw"


class TicTacToe:
    def __init__(self, config: Mapping[str, Any], verifier: Mapping[str, Any]) -> None:
        if unknown := set(verifier) - {"kind"}:
            raise VerifierError(f"{sorted(unknown)[0]}: a game has no such setting; its parts weigh what they weigh")
        turns = config.get("max_turns", MAX_TURNS)
        if isinstance(turns, bool) or not isinstance(turns, int) or not 5 <= turns <= 50:
            raise VerifierError(f"max_turns: {turns!r} is not a whole number from 5 to 50")
        self.max_turns, self.token_limit = turns, token_limit_of(config)
        self.tools: list[dict[str, Any]] = []
        self.system_prompt: str = config.get("system_prompt", "") or SYSTEM_PROMPT

    def reset(self, task: Task, seed: int) -> list[Message]:
        return [Message("system", self.system_prompt), Message("user", shown(Game(_position(task.state))))]

    def respond(self, task: Task, messages: Sequence[Message], seed: int) -> list[Message]:
        game = replay(task, messages)
        return [] if game.result else [Message("user", shown(game))]

    def verifier(self, task: Task) -> Verify:
        def verify(trace: Trace, target: Mapping[str, Any]) -> Verdict:
            return _verdict(replay(task, trace.conversation(), self.max_turns), WORTH[target["best"]])

        return guarded(verify)

    def solve(self, task: Task, messages: Sequence[Message]) -> Message:
        """The best answer of one who knows what this opponent will reply."""
        board = replay(task, messages).board
        _, cell = _best_reply(board, task.state["random_share"], task.state["seed"])
        return move(cell)

    def state(self, task: Task, messages: Sequence[Message]) -> list[Table]:
        """The board; a free cell has its number."""
        board = replay(task, messages, self.max_turns).board
        cells = [str(cell) if mark == "." else mark for cell, mark in enumerate(board)]
        return [Table("board", (), {str(start): tuple(cells[start : start + 3]) for start in (0, 3, 6)})]

    def probes(self, task: Task) -> dict[str, Say]:
        return {
            "empty": always(""),
            "constant": always(move(0).content),
            "echo": lambda messages: Message("assistant", messages[-1].content),
            "every move at once": always("<think></think>" + "".join(f"<move>{cell}</move>" for cell in range(9))),
            "claims to have won": always("<think></think>I have won.\nX X X\n. . .\n. . ."),
        }


def generate(
    count: int, *, seed: int, low: float = 0.0, high: float = 1.0, begun: float = 0.0, strata: int = 8
) -> Iterator[Task]:
    """Tasks whose opponents' random share goes round `strata` equal ranges of [low, high], half of them with O first.

    Neighbours differ in skill, so that any run of `strata` tasks has all skills. A task's cluster is its own: no two
    share an opponent. A share `begun` of them begins after some moves, in a position in which not every cell is as good
    as every other.
    """
    if not 0 <= low <= high <= 1:
        raise ValueError(f"the opponent's random share goes from 0 to 1, not from {low} to {high}")
    if not 0 <= begun <= 1:
        raise ValueError(f"begun is a share from 0 to 1, not {begun}")
    for number in range(count):
        rng = random.Random(f"tictactoe {seed} {number}")
        width = (high - low) / strata
        share = round(low + width * (number % strata + rng.random()), 4)
        state = {"starts": rng.choice("XO"), "random_share": share, "seed": rng.randrange(2**31)}
        if rng.random() < begun and (cells := _beginning(state, rng)):
            state["begun"] = cells
        task = Task(f"game-{seed}-{number}", "", {}, state, cluster=f"game-{seed}-{number}", slice=skill(share))
        value, _ = _best_reply(_position(state), share, state["seed"])
        best = {"best": "win" if value > 0 else "draw"}
        yield Task(task.id, _task_text(state, task.slice), best, state, task.cluster, task.slice)


def _beginning(state: Mapping[str, Any], rng: random.Random) -> list[int]:
    """Moves of X after which its next one matters; none where no such position was found."""
    for _ in range(20):
        cells: list[int] = []
        for _ in range(rng.randint(1, 3)):
            board = _position({**state, "begun": cells})
            if winner_of(board) or "." not in board:
                break
            cells.append(rng.choice(free_cells(board)))
        board = _position({**state, "begun": cells})
        ends = {(worth > 0) - (worth < 0) for _, worth in values(board, "X")} if not winner_of(board) else set()
        if len(ends) > 1:
            return cells
    return []


def _task_text(state: Mapping[str, Any], word: str) -> str:
    """Describe the task to people; the policy sees the board."""
    begins = "X" if state["starts"] == "X" else "O, the opponent,"
    begun = f", and X has moved to {', '.join(map(str, state['begun']))}" if "begun" in state else ""
    return (
        f"Play X against a {word} opponent ({state['random_share']:.0%} random, seed {state['seed']}); "
        f"{begins} begins{begun}"
    )


def skill(random_share: float) -> str:
    """The opponent's skill in a word, by which results are reported apart."""
    if random_share == 0:
        return "optimal"
    if random_share == 1:
        return "random"
    return "strong" if random_share < 0.34 else "middling" if random_share < 0.67 else "weak"


def move(cell: int, thought: str = "") -> Message:
    return Message("assistant", f"<think>{thought}</think>\n<move>{cell}</move>")


def shown(game: Game) -> str:
    """Write the message to the policy: what was wrong, the board, and where it may move."""
    rows = "\n".join(" ".join(game.board[start : start + 3]) for start in (0, 3, 6))
    free = ", ".join(str(cell) for cell in free_cells(game.board))
    return (f"{game.problem} Choose again.\n" if game.problem else "") + f"{rows}\nFree cells: {free}"


def replay(task: Task, messages: Sequence[Message], max_turns: int = 10**6) -> Game:
    """The game that the policy's answers make, from the position that it begins in. Nothing else in the conversation is
    looked at."""
    game = Game(_position(task.state))
    for text in [message.content for message in messages if message.role == "assistant"][:max_turns]:
        if game.result:
            break
        game.answers += 1
        game.formed += _FORM.fullmatch(text) is not None
        named = _MOVE.findall(text)
        free = free_cells(game.board)
        if len(named) == 1 and len(named[0]) == 1 and int(named[0]) in free:
            game.problem = ""
            game.board = put(game.board, int(named[0]), "X")
            if not game.result:
                game.board = put(game.board, _opponent(game.board, task.state), "O")
            continue
        game.is_invalid = True
        if len(named) != 1:
            game.problem = f"There {'was no move' if not named else 'were several moves'} in the answer."
        else:
            game.problem = f"Cell {named[0][:3]} is {'taken' if named[0] in set('012345678') else 'not on the board'}."
    return game


def winner_of(board: str) -> str:
    """`X`, `O`, or empty."""
    return next((board[a] for a, b, c in LINES if board[a] != "." and board[a] == board[b] == board[c]), "")


def free_cells(board: str) -> list[int]:
    return [cell for cell in range(9) if board[cell] == "."]


def put(board: str, cell: int, player: str) -> str:
    return board[:cell] + player + board[cell + 1 :]


@cache
def values(board: str, player: str) -> tuple[tuple[int, int], ...]:
    """(cell, worth) of each move of a player to whom nobody makes mistakes: a win soon and a loss late are best.

    A win is worth 10 less the moves that it takes, a loss the negative of that, a draw 0. There are 5,478 boards.
    """
    found = []
    for cell in free_cells(board):
        after = put(board, cell, player)
        if winner_of(after):
            worth = 9
        elif "." not in after:
            worth = 0
        else:
            theirs = max(value for _, value in values(after, "O" if player == "X" else "X"))
            worth = -(theirs - 1) if theirs > 0 else -(theirs + 1) if theirs < 0 else 0
        found.append((cell, worth))
    return tuple(found)


def _opponent(board: str, state: Mapping[str, Any]) -> int:
    return _reply(board, state["random_share"], state["seed"])


def _reply(board: str, random_share: float, seed: int) -> int:
    """O's move on this board: the same whenever this opponent meets it."""
    rng = random.Random(f"{seed}_{board}")
    if rng.random() < random_share:
        return rng.choice(free_cells(board))
    moves = values(board, "O")
    best = max(value for _, value in moves)
    return rng.choice([cell for cell, value in moves if value == best])


def _opening(state: Mapping[str, Any]) -> str:
    return EMPTY if state["starts"] == "X" else put(EMPTY, _opponent(EMPTY, state), "O")


def _position(state: Mapping[str, Any]) -> str:
    """The board after the moves that were made for the policy."""
    board = _opening(state)
    for cell in state.get("begun", ()):
        board = put(board, cell, "X")
        if not winner_of(board) and "." in board:
            board = put(board, _opponent(board, state), "O")
    return board


@lru_cache(maxsize=65_536)
def _best_reply(board: str, random_share: float, seed: int) -> tuple[int, int]:
    """The most that X can have of this opponent (1 win, 0 draw, -1 loss), and the cell that leads there."""
    best: tuple[int, int] | None = None
    for cell in free_cells(board):
        after = put(board, cell, "X")
        if winner_of(after):
            return 1, cell
        if "." not in after:
            value = 0
        else:
            replied = put(after, _reply(after, random_share, seed), "O")
            if winner_of(replied):
                value = -1
            elif "." not in replied:
                value = 0
            else:
                value, _ = _best_reply(replied, random_share, seed)
        if best is None or value > best[0]:
            best = (value, cell)
    assert best is not None, "nobody asks about a full board"
    return best


def _verdict(game: Game, best: float) -> Verdict:
    result = game.result or "loss"
    form = game.formed / game.answers if game.answers else 0.0
    parts: dict[str, float | None] = {name: float(name == result) for name in WORTH}
    parts |= {"format": form, "invalid": float(game.is_invalid)}
    if not game.answers:
        return Verdict(0.0, "nothing was answered", parts)
    score = (WORTH[result] / best + FORMAT * form - INVALID * game.is_invalid + INVALID) / (1 + FORMAT + INVALID)
    return Verdict(min(score, 1.0), _reason(game, result), parts)


def _reason(game: Game, result: str) -> str:
    told = [{"win": "won", "draw": "a draw", "loss": "lost"}[result] if game.result else "not finished"]
    if game.is_invalid:
        told.append("with a move that could not be made")
    if game.formed < game.answers:
        told.append(f"{game.formed} of {game.answers} answers in the right form")
    return "; ".join(told)
