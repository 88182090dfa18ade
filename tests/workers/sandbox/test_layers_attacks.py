"""No attack wins with all layers on, as whoever runs the tests and as an ordinary user.

`make attacks` also runs them with each layer off, and writes the table of docs/design/sandbox.md.
"""

import os
import platform
from collections.abc import Iterator

import pytest

from tests.workers.sandbox import matrix
from tests.workers.sandbox.attacks import EVERY, FAMILIES, Attack
from tests.workers.sandbox.world import World

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="the attacks' system calls are x86-64's")


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()


def test_there_are_enough_attacks_and_no_two_of_a_name() -> None:
    assert len(EVERY) >= 120
    assert len({attack.name for attack in EVERY}) == len(EVERY)
    assert min(len(attacks) for attacks in FAMILIES.values()) >= 12


@pytest.mark.parametrize("attack", EVERY, ids=str)
def test_no_attack_wins(world: World, attack: Attack) -> None:
    result = matrix.play(world, attack, off="none")
    assert (result.harm, result.exposed) == ("", "")
    assert result.status != "refused"


@pytest.mark.skipif(os.geteuid() != 0, reason="the test above ran as an ordinary user")
def test_no_attack_wins_as_an_ordinary_user() -> None:
    try:
        results = matrix.attack_all_as_user(["none"])
    except OSError as error:
        pytest.skip(str(error))
    assert len(results) == len(EVERY)
    assert [result for result in results if result.harm or result.exposed or result.status == "refused"] == []


def test_the_eyes_see_harm_where_there_is_no_layer(world: World) -> None:
    """Attacks that fail even without layers would prove nothing."""
    names = ("read a file that everybody may read", "TCP over IPv4", "create a file", "end another", "one great block")
    attacks = [attack for attack in EVERY if attack.name in names]
    assert len(attacks) == len(names)
    assert [attack.name for attack in attacks if not matrix.play(world, attack, off="all").harm] == []
