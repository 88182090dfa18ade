"""Who our PostgreSQL server is, where the system hesitates; the rest is in `test_postgres`."""

import ctypes
import errno

import pytest

from flywheel.system import server_identity


class Libc:
    """Answers with these errors, and then with success."""

    def __init__(self, *errors: int) -> None:
        self.errors = list(errors)

    def unshare(self, _: int) -> int:
        if not self.errors:
            return 0
        ctypes.set_errno(self.errors.pop(0))
        return -1


def test_a_namespace_that_is_refused_for_a_moment_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_identity, "PAUSE_S", 0.0)
    hesitant = Libc(errno.EINVAL, errno.EINVAL)
    server_identity._unshare_users(hesitant)  # type: ignore[arg-type]
    assert hesitant.errors == []


@pytest.mark.parametrize("errors", [[errno.EPERM, errno.EPERM], [errno.EINVAL] * 100])
def test_one_that_is_not_allowed_is_refused(monkeypatch: pytest.MonkeyPatch, errors: list[int]) -> None:
    monkeypatch.setattr(server_identity, "PAUSE_S", 0.0)
    with pytest.raises(OSError, match=r"Operation not permitted|Invalid argument"):
        server_identity._unshare_users(Libc(*errors))  # type: ignore[arg-type]
