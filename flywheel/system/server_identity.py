"""Who our PostgreSQL server is.

PostgreSQL refuses to run as uid 0, and peer authentication wants a name for the user at the other end. An
ordinary user has that. For root, and for a uid that has no name, it is the first of these that works:
1. a user namespace where our uid bears another number: files stay ours, and nobody else is anybody there;
2. (root only) an unprivileged account: it then owns the data directory, but only root may connect;
3. (root only) that account, let through file permissions: the binaries or data may lie in a private home.
"""

import contextlib
import ctypes
import errno
import os
import pwd
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from flywheel.system.data_directory import Owner, PostgresError

CLONE_NEWUSER = 0x1000_0000
TRIES, PAUSE_S = 20, 0.05


@dataclass(frozen=True)
class Identity:
    what: str
    owner: Owner
    """Of the data directory, as seen by this process."""
    peer: str
    """The name under which the server sees this process."""
    become: Callable[[], None] | None = None
    """Runs in the child, between fork and exec."""


def choose_identity(binaries: Path, home: Path) -> Identity:
    """Return the first identity that can run the binaries and reach the data; changes nothing."""
    # initdb looks for the files of the server before it shows its settings, and asks as PostgreSQL does: by access(2).
    script = '"$0" --show --no-locale -D "$1" && test -x "$1"'
    probe = ["/bin/sh", "-c", script, str(binaries / "initdb"), str(home.parent)]
    refused = []
    for identity in _identities():
        try:
            done = subprocess.run(probe, preexec_fn=identity.become, cwd="/", capture_output=True, text=True)
        except subprocess.SubprocessError:
            refused.append(f"  as {identity.what}: the system does not allow it")
            continue
        if done.returncode == 0:
            return identity
        refused.append(f"  as {identity.what}: it cannot run {probe[3]} or reach {probe[4]} {done.stderr}".rstrip())
    raise PostgresError(
        "PostgreSQL runs neither as root nor as a user without a name, and no other way is open here:\n"
        + "\n".join(refused or ["  no account but root's is known"])
        + "\nRun Flywheel as an ordinary user, set FLYWHEEL_PG_USER to an account that can reach both paths, "
        "or set DATABASE_URL."
    )


def _identities() -> Iterator[Identity]:
    uid, gid = os.geteuid(), os.getegid()
    wanted = os.environ.get("FLYWHEEL_PG_USER")
    if uid != 0:
        with contextlib.suppress(KeyError):  # a container may run under an arbitrary uid
            yield Identity(f"uid {uid}", (uid, gid), pwd.getpwuid(uid).pw_name)
    if uid != 0 or not wanted:
        yield from _namespace(uid, gid)
    if uid == 0:
        for name in [wanted] if wanted else ["postgres", "daemon"]:
            yield from _account(name, required=bool(wanted))


def _namespace(uid: int, gid: int) -> Iterator[Identity]:
    overflow = int(Path("/proc/sys/kernel/overflowuid").read_text())  # what all others bear in there
    named = [entry for entry in pwd.getpwall() if entry.pw_uid not in (0, overflow)]
    if not named:
        return
    inner = min(named, key=lambda entry: entry.pw_uid)
    libc = ctypes.CDLL(None, use_errno=True)

    def become() -> None:
        _unshare_users(libc)
        for file, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{inner.pw_uid} {uid} 1"),
            ("gid_map", f"{inner.pw_gid} {gid} 1"),
        ):
            with open(f"/proc/self/{file}", "w") as handle:
                handle.write(text)

    yield Identity("a user namespace", (uid, gid), inner.pw_name, become)


def _account(name: str, required: bool) -> Iterator[Identity]:
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        entry = None
    if entry is None or entry.pw_uid == 0:
        if required:
            raise PostgresError(f"FLYWHEEL_PG_USER={name!r}: give the name of an unprivileged account.")
        return
    root = pwd.getpwuid(0).pw_name
    libc = ctypes.CDLL(None, use_errno=True)

    def become() -> None:
        os.setgroups([])
        os.setresgid(entry.pw_gid, entry.pw_gid, entry.pw_gid)
        os.setresuid(entry.pw_uid, entry.pw_uid, entry.pw_uid)

    def become_and_pass() -> None:
        # PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP: the change of uid keeps capabilities, and access(2), by which
        # PostgreSQL looks for its own programs, counts them.
        _check(libc.prctl(28, 1 << 2, 0, 0, 0))
        become()
        only = 1 << 1  # CAP_DAC_OVERRIDE
        header, sets = struct.pack("Ii", 0x20080522, 0), struct.pack("6I", only, only, only, 0, 0, 0)
        _check(libc.capset(header, sets))
        _check(libc.prctl(47, 2, 1, 0, 0))  # PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE

    owner = entry.pw_uid, entry.pw_gid
    yield Identity(f"account {name}", owner, root, become)
    yield Identity(f"account {name} with CAP_DAC_OVERRIDE", owner, root, become_and_pass)


def _unshare_users(libc: ctypes.CDLL) -> None:
    """Enter a user namespace. A busy machine says now and then that this child, which has one thread, has several."""
    result = libc.unshare(CLONE_NEWUSER)
    for _ in range(TRIES):
        if not result or ctypes.get_errno() != errno.EINVAL:
            break
        time.sleep(PAUSE_S)
        result = libc.unshare(CLONE_NEWUSER)
    _check(result)


def _check(result: int) -> None:
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
