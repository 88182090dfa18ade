"""The demo's switch: while it is on, the server of the version that is being released answers badly on purpose.

A file in FLYWHEEL_HOME, so that web and demo, which are processes of one machine, see it at once, and a restart keeps
it.
"""

from pathlib import Path

from flywheel.system import env

PROJECT = "releases"
"""Slug of the only project for which it does anything."""


def is_on() -> bool:
    return _place().exists()


def turn(*, on: bool) -> None:
    if on:
        _place().touch()
    else:
        _place().unlink(missing_ok=True)


def _place() -> Path:
    return env.home() / "demo_harm"
