"""What finds no place is told to come back, and nobody keeps a thread waiting for ever."""

import gc
import gzip
import io
import socket
import threading
import tracemalloc
import weakref
from contextlib import nullcontext
from typing import Any

import pytest
from django.core.handlers.wsgi import WSGIRequest

from flywheel.trajectories.ingest import admission
from flywheel.trajectories.ingest.admission import Busy, Door, Watch
from flywheel.trajectories.ingest.otlp_http import GROWTH, read_body
from tests.waiting import PATIENCE_S


def test_who_finds_no_place_in_time_is_sent_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "PATIENCE_S", 0.01)
    door = Door(at_work=1, waiting=1)
    with door.admit(), pytest.raises(Busy), door.admit():
        pytest.fail("there is one place only")
    with door.admit():
        pass


def test_more_than_may_wait_are_sent_away_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "PATIENCE_S", 600)
    door = Door(at_work=1, waiting=0)
    with door.admit(), pytest.raises(Busy), door.admit():
        pytest.fail("nobody may wait")


def test_one_who_waits_gets_the_place_that_gets_free() -> None:
    door = Door(at_work=1, waiting=1)
    got = threading.Event()

    def wait() -> None:
        with door.admit():
            got.set()

    with door.admit():
        waiting = threading.Thread(target=wait)
        waiting.start()
    waiting.join(PATIENCE_S)
    assert got.is_set()


def test_bodies_are_bounded_together_but_a_single_one_always_comes_in() -> None:
    door = Door(budget=100)
    with door.room() as first, door.room() as second:
        first.take(60)
        first.take(1000)
        with pytest.raises(Busy):
            second.take(1)
    with door.room() as first, door.room() as second:
        first.take(60)
        second.take(40)
        with pytest.raises(Busy):
            second.take(1)


def test_thirty_two_senders_of_large_bodies_do_not_fill_the_memory() -> None:
    size, budget, door = 8 * 2**20, 16 * 2**20, Door(budget=16 * 2**20)
    bomb = gzip.compress(bytes(size))
    told: list[str] = []
    together, is_full = threading.Barrier(32), threading.Event()

    def send() -> None:
        request = WSGIRequest(
            {
                "REQUEST_METHOD": "POST",
                "CONTENT_TYPE": "application/x-protobuf",
                "HTTP_CONTENT_ENCODING": "gzip",
                "CONTENT_LENGTH": str(len(bomb)),
                "wsgi.input": io.BytesIO(bomb),
            }
        )
        together.wait(PATIENCE_S)
        try:
            with door.room() as room:
                _, body = read_body(request, room)
                is_full.wait(PATIENCE_S)
                told.append("read" if len(body) == size else "cut")
        except Busy:
            is_full.set()
            told.append("busy")

    senders = [threading.Thread(target=send) for _ in range(32)]
    tracemalloc.start()
    try:
        for sender in senders:
            sender.start()
        for sender in senders:
            sender.join(PATIENCE_S)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(told) == 32
    assert set(told) == {"read", "busy"}
    assert peak < budget + size + 32 * GROWTH + 8 * 2**20, "and one body that is being copied, and a piece of each"


def test_an_error_inside_gives_the_place_back() -> None:
    door = Door(at_work=1, waiting=0)
    for _ in range(3):
        with pytest.raises(ValueError, match="boom"), door.room(), door.admit():
            raise ValueError("boom")


def test_a_sender_that_takes_too_long_is_cut_off() -> None:
    ours, theirs = socket.socketpair()
    ours.settimeout(PATIENCE_S)
    with ours, theirs, Watch().over(ours, seconds=0.1):
        assert ours.recv(10) == b""


def test_a_sender_in_time_is_left_alone() -> None:
    ours, theirs = socket.socketpair()
    watch = Watch()
    with ours, theirs:
        with watch.over(ours, seconds=60):
            theirs.send(b"x")
            assert ours.recv(10) == b"x"
        assert not watch._due


def test_the_one_who_took_longest_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "GRACE_S", 0.0)
    watch = Watch(at_once=1)
    (first, its_sender), (second, other_sender) = socket.socketpair(), socket.socketpair()
    with first, its_sender, second, other_sender, watch.over(first):
        with watch.over(second):
            assert first.recv(10) == b""
            other_sender.send(b"x")
            assert second.recv(10) == b"x"
        assert (watch.has_cut(first), watch.has_cut(second), watch.has_cut(None)) == (True, False, False)


def test_room_is_made_also_when_nobody_comes_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "GRACE_S", 0.5)
    watch = Watch(at_once=1)
    (first, its_sender), (second, other_sender) = socket.socketpair(), socket.socketpair()
    with first, its_sender, second, other_sender, watch.over(first), watch.over(second):
        assert first.recv(10) == b""
        assert not watch.has_cut(second)


def test_nobody_makes_room_at_once() -> None:
    watch = Watch(at_once=1)
    (first, its_sender), (second, other_sender) = socket.socketpair(), socket.socketpair()
    with first, its_sender, second, other_sender, watch.over(first), watch.over(second):
        assert not watch.has_cut(first)
        assert not watch.has_cut(second)


def test_a_body_is_waited_for_by_its_rate_from_its_first_byte_on(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[float, float | None]] = []

    class Noted(Watch):
        def over(self, sender: socket.socket | None, seconds: float = 0, since: float | None = None) -> Any:
            seen.append((seconds, since))
            return nullcontext()

    monkeypatch.setattr(admission, "watch", Noted())
    ours, theirs = socket.socketpair()
    with ours, theirs:
        patient = admission.Patient(io.BytesIO(b"x" * 3 * admission.BYTES_A_SECOND), ours)
        while patient.read(admission.BYTES_A_SECOND):
            pass
    assert [seconds - admission.BODY_S for seconds, _ in seen] == [0, 1, 2, 3]
    assert len({since for _, since in seen}) == 1


@pytest.mark.parametrize(("size", "is_gone"), [(admission.LARGE, True), (1, False)])
def test_what_a_large_request_leaves_behind_is_let_go(size: int, is_gone: bool) -> None:
    class Knot:
        itself: "Knot"

    gc.disable()
    try:
        with Door().room() as room:
            room.take(size)
            knot = Knot()
            knot.itself = knot  # as an error and the frames of its traceback hold each other
            left = weakref.ref(knot)
            del knot
        assert (left() is None) == is_gone
    finally:
        gc.enable()
