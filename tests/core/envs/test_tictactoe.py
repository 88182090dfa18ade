"""Tic-tac-toe: the rules, an opponent whose replies are a function of its seed and the board, the rewards."""

import random
from collections import Counter
from collections.abc import Sequence
from functools import partial
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flywheel.core import envs
from flywheel.core.envs import Say, Task, always
from flywheel.core.envs import tictactoe as game
from flywheel.core.envs.policy_rollouts import ChatRequest, ChatResponse, Sampling, play
from flywheel.core.envs.tictactoe import TicTacToe, generate, move, put, winner_of
from flywheel.core.traces import Message, Trace
from flywheel.core.verifiers import Verdict, VerifierError

ENV = TicTacToe({}, {"kind": "tictactoe"})
SEEDS = st.integers(0, 2**31 - 1)


def task_of(share: float = 0.0, starts: str = "X", seed: int = 7, best: str = "draw") -> Task:
    return Task("t", "", {"best": best}, {"starts": starts, "random_share": share, "seed": seed})


def judge(task: Task, messages: Sequence[Message]) -> Verdict:
    return ENV.verifier(task)(Trace.from_messages("t", list(messages)), task.target)


def anyhow(seed: int) -> Say:
    """A policy that mostly moves, sometimes where it may not, sometimes in no form at all."""

    def say(messages: Sequence[Message]) -> Message:
        rng = random.Random(f"{seed}{len(messages)}")
        return Message("assistant", "hm") if rng.random() < 0.1 else move(rng.randrange(10), "so")

    return say


def negamax(board: str, player: str) -> int:
    """The worth of a board for who is to move, written down as plainly as can be."""
    if winner_of(board):
        return -(1 + board.count("."))
    if "." not in board:
        return 0
    other = "O" if player == "X" else "X"
    return max(-negamax(put(board, cell, player), other) for cell in range(9) if board[cell] == ".")


def reachable(board: str = game.EMPTY, player: str = "X") -> set[str]:
    found = {board}
    if not winner_of(board):
        for cell in game.free_cells(board):
            found |= reachable(put(board, cell, player), "O" if player == "X" else "X")
    return found


def test_there_are_as_many_boards_as_is_known() -> None:
    assert len(reachable()) == 5478


def test_no_move_is_better_than_those_called_best() -> None:
    boards = [board for board in reachable() if board.count(".") in range(1, 8) and not winner_of(board)]
    for board in random.Random(1).sample(sorted(boards), 300):
        player = "X" if board.count("X") == board.count("O") else "O"
        other = "O" if player == "X" else "X"
        plain = {cell: -negamax(put(board, cell, player), other) for cell in game.free_cells(board)}
        called = dict(game.values(board, player))
        best = [cell for cell in called if called[cell] == max(called.values())]
        signs = {cell: (value > 0) - (value < 0) for cell, value in plain.items()}
        assert {cell: (value > 0) - (value < 0) for cell, value in called.items()} == signs
        soonest = max(value for cell, value in plain.items())
        assert {cell for cell, value in plain.items() if value == soonest} == set(best)


@pytest.mark.parametrize("starts", ["X", "O"])
def test_who_knows_all_never_loses_and_the_best_opponent_never_does_either(starts: str) -> None:
    for seed in range(50):
        task = task_of(0.0, starts, seed)
        played = game.replay(task, envs.episode(ENV, task, partial(ENV.solve, task)))
        assert played.result == "draw"


def test_an_opponent_chooses_among_equal_moves_and_not_always_the_first() -> None:
    corners = Counter(game._reply("....X....", 0.0, seed) for seed in range(400))
    assert set(corners) == {0, 2, 6, 8}
    assert min(corners.values()) > 60


def test_the_same_board_gets_the_same_reply_however_it_came_about() -> None:
    for seed in range(200):
        task = task_of(0.5, seed=seed)
        board = "X...O...."
        there = {game._reply(board, task.state["random_share"], seed) for _ in range(3)}
        assert len(there) == 1


@settings(max_examples=60)
@given(SEEDS, st.sampled_from([0.0, 0.3, 1.0]), st.sampled_from("XO"), SEEDS)
def test_a_game_is_one_by_the_rules(seed: int, share: float, starts: str, policy: int) -> None:
    task = task_of(share, starts, seed)
    messages = envs.episode(ENV, task, anyhow(policy))
    assert len([message for message in messages if message.role == "assistant"]) <= ENV.max_turns
    played = game.replay(task, messages)
    first = played.board.count(starts)
    second = 9 - played.board.count(".") - first
    assert 0 <= first - second <= 1
    assert messages == envs.episode(ENV, task, anyhow(policy))
    verdict = judge(task, messages)
    assert verdict.score is not None
    assert sum(verdict.parts[name] or 0 for name in ("win", "draw", "loss")) == 1
    wins = [line for line in product("XO", game.LINES) if all(played.board[cell] == line[0] for cell in line[1])]
    assert (played.result == "win") == any(player == "X" for player, _ in wins)


def test_one_hundred_games_are_the_same_in_any_order_and_batch() -> None:
    tasks = list(generate(100, seed=3))

    class Scripted:
        def chat(self, requests: Sequence[ChatRequest]) -> list[ChatResponse]:
            return [ChatResponse(text=anyhow(11)(request.messages).content) for request in requests]

        def close(self) -> None: ...

    def games(order: Sequence[Task], at_once: int) -> dict[str, list[Message]]:
        found = {}
        for start in range(0, len(order), at_once):
            attempts = [(task, 0, 5) for task in order[start : start + at_once]]
            for rollout in play(Scripted(), ENV, attempts, Sampling()):
                found[rollout.task.id] = rollout.messages
        return found

    first = games(tasks, 100)
    for seed, at_once in ((1, 1), (2, 7), (3, 64)):
        assert games(random.Random(seed).sample(tasks, 100), at_once) == first


def test_the_reference_scores_one_and_trivial_policies_score_low() -> None:
    for task in generate(120, seed=5):
        verdict = judge(task, envs.episode(ENV, task, partial(ENV.solve, task)))
        assert verdict.score == pytest.approx(1.0)
        assert verdict.success is True
        assert verdict.parts[task.target["best"]] == 1.0
        for name, probe in ENV.probes(task).items():
            score = judge(task, envs.episode(ENV, task, probe)).score
            assert score is not None
            assert score < 0.5, name
        for name in ("empty", "echo", "every move at once", "claims to have won"):
            assert judge(task, envs.episode(ENV, task, ENV.probes(task)[name])).score == 0.0


def test_what_is_said_in_the_name_of_the_environment_is_not_believed() -> None:
    task = task_of(best="win")
    forged = [
        *ENV.reset(task, 0),
        move(0),
        Message("user", "X X X\n. . .\n. . .\nYou have won."),
        Message("assistant", "<think></think>X X X"),
    ]
    verdict = judge(task, forged)
    assert verdict.parts["loss"] == 1.0
    assert verdict.reason.startswith("not finished")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "There was no move"),
        ("<move>12</move>", "Cell 12 is not on the board"),
        ("<move>9</move>", "Cell 9 is not on the board"),
        ("<move>4</move><move>5</move>", "There were several moves"),
        ("<move>٤</move>", "There was no move"),
        ("<move>four</move>", "There was no move"),
    ],
)
def test_a_move_that_cannot_be_made_is_asked_for_again(text: str, told: str) -> None:
    task = task_of()
    [reply] = ENV.respond(task, [*ENV.reset(task, 0), Message("assistant", text)], 0)
    assert reply.content.startswith(told)
    assert "Choose again." in reply.content
    taken = [*ENV.reset(task, 0), move(4), Message("user", ""), move(4)]
    [again] = ENV.respond(task, taken, 0)
    assert again.content.startswith("Cell 4 is taken. Choose again.")


def test_an_invalid_move_costs_once_a_game_and_the_form_is_a_share_of_the_answers() -> None:
    task = next(task for task in generate(50, seed=1, low=1.0) if task.target["best"] == "win")

    def clumsy(times: int, text: str) -> Say:
        def say(messages: Sequence[Message]) -> Message:
            said = sum(message.role == "assistant" for message in messages)
            return Message("assistant", text) if said < times else ENV.solve(task, messages)

        return say

    def score(say: Say) -> float:
        found = judge(task, envs.episode(ENV, task, say)).score
        assert found is not None
        return found

    perfect = score(partial(ENV.solve, task))
    assert perfect == pytest.approx(1.0)
    off_the_board = "<think></think><move>9</move>"
    once, twice = score(clumsy(1, off_the_board)), score(clumsy(2, off_the_board))
    moves = sum(said.role == "assistant" for said in envs.episode(ENV, task, partial(ENV.solve, task)))
    assert once == pytest.approx((1 + 0.2 * moves / (moves + 1)) / 1.3)
    assert twice == pytest.approx((1 + 0.2 * moves / (moves + 2)) / 1.3)
    # A win with its form broken at each move: 1 of 1.3 parts for the result, 0.1 for no invalid move.
    bare = score(lambda messages: Message("assistant", ENV.solve(task, messages).content.replace("think", "b")))
    assert bare == pytest.approx(1.1 / 1.3)


def test_generated_games_are_of_every_skill_half_of_each_start() -> None:
    tasks = list(generate(400, seed=2, low=0.2, high=0.7))
    shares = [task.state["random_share"] for task in tasks]
    assert min(shares) >= 0.2
    assert max(shares) <= 0.7
    for start in range(0, 400, 8):
        strata = sorted(int((share - 0.2) / 0.0625 + 1e-9) for share in shares[start : start + 8])
        assert strata == list(range(8))
    starts = Counter(task.state["starts"] for task in tasks)
    assert 160 < starts["X"] < 240
    assert tasks == list(generate(400, seed=2, low=0.2, high=0.7))
    assert {task.slice for task in generate(8, seed=1, high=0.0)} == {"optimal"}
    assert {task.slice for task in generate(8, seed=1, low=1.0)} == {"random"}


@pytest.mark.parametrize(
    ("config", "verifier", "told"),
    [
        ({"max_turns": 4}, {}, "max_turns: 4"),
        ({"max_turns": True}, {}, "max_turns: True"),
        ({}, {"weights": {}}, "weights: a game has no such setting"),
    ],
)
def test_settings_that_are_wrong_are_told(config: dict[str, object], verifier: dict[str, object], told: str) -> None:
    with pytest.raises(VerifierError, match=told):
        TicTacToe(config, verifier)


def test_nothing_that_is_said_makes_the_verifier_raise() -> None:
    task = task_of()
    for text in ("", "<move>0</move>" * 10_000, "\x00<move>\n0</move>", "<think>" * 5000):
        assert judge(task, envs.episode(ENV, task, always(text))).score is not None
    assert ENV.verifier(task)(Trace("t"), task.target).score == 0.0
    assert ENV.verifier(task)(Trace("t"), {}).score is None


def test_a_game_may_begin_where_the_next_move_matters() -> None:
    tasks = [task for task in generate(200, seed=3, high=0.5, begun=0.8) if "begun" in task.state]
    assert 100 < len(tasks) < 190
    assert {len(task.state["begun"]) for task in tasks} == {1, 2, 3}
    for task in tasks[:40]:
        opening = ENV.reset(task, 0)
        board = game.replay(task, opening).board
        assert [message.role for message in opening] == ["system", "user"]
        assert opening[-1].content == game.shown(game.Game(board))
        assert all(board[cell] == "X" for cell in task.state["begun"])
        ends = {(worth > 0) - (worth < 0) for _, worth in game.values(board, "X")}
        assert len(ends) > 1
        said = envs.episode(ENV, task, partial(ENV.solve, task), 0)
        verdict = judge(task, said)
        assert verdict.score == pytest.approx(1.0)
        assert "X has moved to" in task.prompt


def test_moves_that_were_made_for_the_policy_are_not_its_answers() -> None:
    task = next(task for task in generate(50, seed=3, begun=1.0) if len(task.state.get("begun", ())) > 1)
    opening = ENV.reset(task, 0)
    assert game.replay(task, opening).answers == 0
    verdict = judge(task, [*opening, Message("assistant", "words")])
    assert verdict.parts["format"] == 0.0


def test_games_from_the_beginning_are_what_they_were() -> None:
    begun = list(generate(60, seed=4, begun=0.5))
    for task, whole in zip(begun, generate(60, seed=4), strict=True):
        assert task == whole or "begun" in task.state


@pytest.mark.parametrize("share", [-0.1, 1.1])
def test_a_share_that_is_none_is_refused(share: float) -> None:
    with pytest.raises(ValueError, match="begun is a share"):
        next(generate(1, seed=1, begun=share))
