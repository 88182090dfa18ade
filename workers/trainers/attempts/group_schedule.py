"""Which groups of attempts are begun and learnt from when, where sampling goes on while the trainer learns.

A version of the policy is the number of updates behind it. A group that is begun at version v holds no older token, so
it may be learnt from in the update from version v + `bound` at the latest; with bound 0 sampling and learning take
turns. Nothing that was sampled is thrown away: a group is begun only where there is room for it to be learnt from in
time, so the slow are waited for and never starved. The same rules hold for every bound.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field


@dataclass(slots=True)
class GroupSchedule:
    """Groups 0 to `total` - 1, of which each update learns from `size`; those of `used` were learnt from before."""

    size: int
    bound: int
    total: int
    version: int = 0
    used: set[int] = field(default_factory=set)
    begun: dict[int, int] = field(default_factory=dict)
    """Groups that were begun and not yet learnt from, each with the version at which it was."""
    done: set[int] = field(default_factory=set)
    """Those of them that have ended."""
    _next: int = 0

    def take_up(self, ended: Mapping[int, int]) -> list[int]:
        """Those groups that can still be learnt from in time, of some that ended in an earlier start of the run, each
        with the version at which it was begun."""
        found = []
        for group, version in sorted(ended.items(), key=lambda item: (item[1], item[0])):
            if version <= self.version and self._is_timely([*self.begun.values(), version], self.version):
                self.begun[group] = version
                self.done.add(group)
                found.append(group)
        return found

    def begin(self) -> list[int]:
        """The groups that are to begin now that this version can be asked."""
        found = []
        while self._next < self.total and self._is_timely([*self.begun.values(), self.version], self.version):
            if self._next not in self.used and self._next not in self.begun:
                self.begun[self._next] = self.version
                found.append(self._next)
            self._next += 1
        return found

    def end(self, group: int) -> None:
        """All attempts of the group have ended."""
        self.done.add(group)

    def take(self) -> list[int]:
        """The groups that the update to the next version learns from, in order; empty while it must wait for some to
        end."""
        found = sorted(self.done, key=lambda group: (self.begun[group], group))[: self.size]
        left = [version for group, version in self.begun.items() if group not in found]
        if len(found) < self.size or not self._is_timely(left, self.version + 1):
            return []
        for group in found:
            del self.begun[group]
        self.done -= set(found)
        self.used |= set(found)
        self.version += 1
        return sorted(found)

    def _is_timely(self, versions: Collection[int], now: int) -> bool:
        """Whether groups begun at these versions can all be learnt from in time, in the updates from `now` on."""
        return all(version + self.bound >= now + place // self.size for place, version in enumerate(sorted(versions)))
