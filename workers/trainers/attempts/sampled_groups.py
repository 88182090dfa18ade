"""Groups of attempts that have ended, in the run directory: a run that is killed goes on with what was sampled.

A group is one file, whole or not at all, signed as checkpoints are. It stays until no checkpoint could want it: one
that was learnt from is still wanted by a checkpoint from before that. What a resumed run takes up is told in
docs/design/rollouts.md.
"""

import hmac
import json
import re
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from typing import Any

from flywheel.core.verifiers import Verdict
from workers.trainers.attempts.live_engine import Episode
from workers.trainers.attempts.step_attempts import Group
from workers.trainers.run import checkpoints, kept_attempts
from workers.trainers.run.run_directory import Run

FOLDER = "sampled"
NAME = re.compile(r"group-(\d{1,9})\.json")


@dataclass(frozen=True, slots=True)
class SampledGroup:
    """All that is wanted to learn from a group's attempts."""

    place: int
    """Of its task, among the run's."""
    begun: int
    """The version of the policy at which it was begun."""
    group: Group
    episodes: list[Episode]
    """The tokens of its attempts, in their order."""
    resampled: int
    """How many groups were tried before, which taught nothing."""

    @property
    def newest(self) -> int:
        """The newest version that wrote a token of it."""
        return max([self.begun, *(version for episode in self.episodes for version in episode.versions)])

    @property
    def is_scored(self) -> bool:
        """Whether any of its attempts has a score."""
        return any(verdict.score is not None for verdict in self.group.verdicts)


class SampledGroups:
    """Those of a run, each by its number. Of several threads only one at a time may use it."""

    def __init__(self, run: Run) -> None:
        self._run, self._folder = run, run.path / FOLDER
        self._newest: dict[int, int] = {}
        """Of each group that has a file, the newest version that wrote a token."""

    def keep(self, number: int, found: SampledGroup) -> None:
        """Write a group down. One without any score is not: what was too slow or away need not be so again. Raises
        OSError, as of a full disk."""
        if not found.is_scored:
            return
        content = json.dumps({"spec": self._run.spec.digest, "number": number, **_row(found)}).encode()
        aside = self._run.work / f"group-{number}"
        for parent in (aside.parent, self._folder):
            parent.mkdir(exist_ok=True)
        aside.write_bytes(checkpoints.signature(self._run.path, content).encode() + b"\n" + content)
        aside.rename(self._folder / f"group-{number}.json")
        self._newest[number] = found.newest

    def read(self) -> tuple[dict[int, SampledGroup], dict[str, str]]:
        """The groups that are whole, and the names of the files that are not, which are removed, with the reason."""
        found, damaged = dict[int, SampledGroup](), dict[str, str]()
        for path in sorted(self._folder.glob("*")):
            try:
                if (name := NAME.fullmatch(path.name)) is None:
                    raise ValueError("no file of a group has such a name")
                number = int(name[1])
                found[number] = self._verified(number, path.read_bytes())
            except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                damaged[path.name] = str(error)
                path.unlink()
        self._newest = {number: each.newest for number, each in found.items()}
        return found, damaged

    def remove(self, numbers: Collection[int]) -> None:
        for number in numbers:
            (self._folder / f"group-{number}.json").unlink(missing_ok=True)
            self._newest.pop(number, None)

    def sweep(self, learnt: Mapping[int, int]) -> None:
        """Remove the groups that no checkpoint wants. `learnt`: those that were learnt from, each with the number of
        updates before that one."""
        kept = checkpoints.steps(self._run.path) or [0]
        wanted = {
            number
            for number, newest in self._newest.items()
            if number not in learnt or any(newest <= step <= learnt[number] for step in kept)
        }
        self.remove(self._newest.keys() - wanted)

    def drop(self) -> None:
        """Remove all of them."""
        shutil.rmtree(self._folder, ignore_errors=True)
        self._newest.clear()

    def _verified(self, number: int, content: bytes) -> SampledGroup:
        """Raises ValueError and others for what this run did not write, or not to its end."""
        signed, _, body = content.partition(b"\n")
        if not hmac.compare_digest(signed, checkpoints.signature(self._run.path, body).encode()):
            raise ValueError("it was not written by this run, or not to its end")
        row = json.loads(body)
        if (row["spec"], row["number"]) != (self._run.spec.digest, number):
            raise ValueError("it is of another group or spec.json")
        return _group(row)


def _row(found: SampledGroup) -> dict[str, Any]:
    group = found.group
    return {
        "place": found.place,
        "begun": found.begun,
        "resampled": found.resampled,
        "attempts": [
            {
                "rollout": kept_attempts.rollout_row(rollout),
                "verdict": _shallow(verdict),
                "earned": _shallow(earned),
                "episode": _shallow(episode),
            }
            for rollout, verdict, earned, episode in zip(
                group.rollouts, group.verdicts, group.earned, found.episodes, strict=True
            )
        ],
    }


def _shallow(value: Verdict | Episode) -> dict[str, Any]:
    """Its fields as they are: to copy each token takes longer than to write it."""
    return {field.name: getattr(value, field.name) for field in fields(value)}


def _group(row: Mapping[str, Any]) -> SampledGroup:
    attempts = row["attempts"]
    group = Group(
        [kept_attempts.rollout_of(each["rollout"]) for each in attempts],
        [Verdict(**each["verdict"]) for each in attempts],
        [Verdict(**each["earned"]) for each in attempts],
    )
    episodes = [Episode(**each["episode"]) for each in attempts]
    return SampledGroup(row["place"], row["begun"], group, episodes, row["resampled"])
