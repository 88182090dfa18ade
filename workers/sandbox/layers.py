"""The layers between a guest and the machine, in the order in which they must be put on.

The order matters. The account comes first: a user namespace entered as root would let the guest write root's files.
Namespaces come before the limits and before Landlock, which forbid the mounts that empty the file system. seccomp is
last, since it forbids all that puts on the others. Each function raises OSError when the kernel does not give it.

Two halves: `outer` is done by the guest's parent, since a new process-id namespace holds only its children; `inner`
by the guest itself.
"""

import ctypes
import errno
import os
import resource
import struct
from collections.abc import Callable, Collection
from typing import NamedTuple

from workers.sandbox import seccomp

ACCOUNT, NAMESPACES, LIMITS, LANDLOCK, SECCOMP = ALL = ("account", "namespaces", "limits", "landlock", "seccomp")
"""In the order in which they are put on. For an ordinary user `account` is empty: they have no other to give."""

UIDS = range(60_600, 61_100)
"""Numbers that distributions leave to nobody. As root each guest gets one; it need not stand in any file."""

_libc = ctypes.CDLL(None, use_errno=True)
_SET_PDEATHSIG, _SET_DUMPABLE, _SET_SECCOMP, _SUBREAPER, _NO_NEW_PRIVS = 1, 4, 22, 36, 38
_NEWNS, _NEWCGROUP, _NEWUTS, _NEWIPC, _NEWUSER, _NEWPID, _NEWNET = (
    0x00020000,
    0x02000000,
    0x04000000,
    0x08000000,
    0x10000000,
    0x20000000,
    0x40000000,
)
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REMOUNT, _MS_REC, _MS_PRIVATE = 1, 2, 4, 8, 32, 0x4000, 1 << 18
_MNT_DETACH = 2
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_KEYCTL = {"x86_64": 250, "aarch64": 219}
_CAPSET = {"x86_64": 126, "aarch64": 91}
_CLOSE_RANGE, _LANDLOCK_CREATE, _LANDLOCK_RESTRICT = 436, 444, 446
_MOUNT_POINTS = ("/tmp", "/proc", "/usr", "/var")  # noqa: S108 the first that exists is covered, in a namespace of our own


class Granted(NamedTuple):
    """Limits of one call, as the guest's own process sees them."""

    cpu_seconds: int
    address_space: int


def prctl(option: int, *arguments: int) -> None:
    _check(_libc.prctl(option, *[ctypes.c_ulong(a) for a in (*arguments, *[0] * (4 - len(arguments)))]), "prctl")


def die_with_parent() -> None:
    """Get SIGKILL when the parent ends. A change of account clears it, so it is asked for after that."""
    prctl(_SET_PDEATHSIG, 9)


def adopt_orphans() -> None:
    """Make what a dead child leaves behind a child of this process, so that it can be found and ended."""
    prctl(_SUBREAPER, 1)


def forget_keys() -> None:
    """Leave the session's keyring, which may hold secrets of whoever started us. A kernel without keys has none."""
    number = _KEYCTL.get(os.uname().machine)
    if number is not None:
        _libc.syscall(ctypes.c_long(number), ctypes.c_long(1), None)


def close_from(first: int) -> None:
    """Close every descriptor from this number on. `os.closerange` may count up to a limit of a thousand million."""
    _check(
        _libc.syscall(ctypes.c_long(_CLOSE_RANGE), ctypes.c_uint(first), ctypes.c_uint(0xFFFFFFFF), 0), "close_range"
    )


def put_on_outer(wanted: Collection[str], number: int) -> str | None:
    """In the guest's parent. Returns the layer that could not be had with its reason, or None."""
    return _put_on(wanted, {ACCOUNT: lambda: take_account(number), NAMESPACES: enter_namespaces})


def put_on_inner(wanted: Collection[str], granted: Granted) -> str | None:
    """In the guest itself, after `no_new_privileges`, which Landlock and seccomp both stand on."""
    return _put_on(wanted, {LIMITS: lambda: limit(granted), LANDLOCK: landlock, SECCOMP: filter_calls})


def _put_on(wanted: Collection[str], steps: dict[str, Callable[[], None]]) -> str | None:
    for layer, step in steps.items():
        if layer in wanted:
            try:
                step()
            except (OSError, ValueError) as error:
                return f"{layer}: {error}"
    return None


def take_account(number: int) -> None:
    """As root, become an account of the guest's own: no group, no capability, and nobody else's processes."""
    if os.geteuid() != 0:
        return
    uid = UIDS[number % len(UIDS)]
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def enter_namespaces() -> None:
    """An empty file system that cannot be written, no network but a loopback that is down, no other process, no IPC."""
    uid, gid = os.geteuid(), os.getegid()
    prctl(_SET_DUMPABLE, 1)  # else /proc/self belongs to root after the change of account
    spaces = _NEWUSER | _NEWNS | _NEWPID | _NEWNET | _NEWIPC | _NEWUTS | _NEWCGROUP
    _check(_libc.unshare(spaces), "unshare")
    for name, text in (("setgroups", "deny"), ("uid_map", f"65534 {uid} 1"), ("gid_map", f"65534 {gid} 1")):
        _write(f"/proc/self/{name}", text)
    _libc.sethostname(b"sandbox", 7)
    _check(_libc.mount(b"none", b"/", None, ctypes.c_ulong(_MS_REC | _MS_PRIVATE), None), "mount")
    place = next((path for path in _MOUNT_POINTS if os.path.isdir(path)), "/").encode()
    flags = _MS_NOSUID | _MS_NODEV | _MS_NOEXEC
    options = b"size=4096,nr_inodes=2,mode=0555"
    _check(_libc.mount(b"none", place, b"tmpfs", ctypes.c_ulong(flags), options), "mount an empty file system")
    os.chdir(place)
    _check(_libc.syscall(ctypes.c_long(_PIVOT_ROOT[os.uname().machine]), b".", b"."), "pivot_root")
    _check(_libc.umount2(b".", _MNT_DETACH), "umount")
    os.chdir("/")
    flags |= _MS_REMOUNT | _MS_RDONLY
    _check(_libc.mount(b"none", b"/", None, ctypes.c_ulong(flags), None), "remount")
    header, none = struct.pack("Ii", 0x20080522, 0), bytes(24)  # what the user namespace gave is needed no more
    _check(_libc.syscall(ctypes.c_long(_CAPSET[os.uname().machine]), header, none), "capset")
    prctl(_SET_DUMPABLE, 0)


def no_new_privileges() -> None:
    prctl(_SET_DUMPABLE, 0)
    prctl(_NO_NEW_PRIVS, 1)


def limit(granted: Granted) -> None:
    """Processor time, memory, no file to write, no further process, few descriptors, no core, no queues, no locks."""
    cpu = granted.cpu_seconds
    for kind, soft, hard in (
        (resource.RLIMIT_CPU, cpu, cpu + 1),
        (resource.RLIMIT_AS, granted.address_space, granted.address_space),
        (resource.RLIMIT_FSIZE, 0, 0),
        (resource.RLIMIT_NPROC, 0, 0),
        (resource.RLIMIT_NOFILE, 16, 16),
        (resource.RLIMIT_CORE, 0, 0),
        (resource.RLIMIT_MEMLOCK, 0, 0),
        (resource.RLIMIT_MSGQUEUE, 0, 0),
        (resource.RLIMIT_SIGPENDING, 64, 64),
    ):
        resource.setrlimit(kind, (soft, hard))


def landlock_abi() -> int:
    """The version of Landlock that this kernel speaks; raises OSError where it has none or has it switched off."""
    return _check(
        _libc.syscall(ctypes.c_long(_LANDLOCK_CREATE), None, ctypes.c_size_t(0), ctypes.c_uint(1)), "Landlock"
    )


def landlock() -> None:
    """No file may be opened, made, moved or run; where the kernel can: no TCP, no signal and no socket to outside."""
    abi = landlock_abi()
    files = (1 << 13) - 1
    for since, bit in ((2, 13), (3, 14), (5, 15)):
        files |= (1 << bit) if abi >= since else 0
    rules = struct.pack("QQQ", files, 3, 3)[: 8 if abi < 4 else 16 if abi < 6 else 24]
    call = (ctypes.c_long(_LANDLOCK_CREATE), rules, ctypes.c_size_t(len(rules)), ctypes.c_uint(0))
    handle = _check(_libc.syscall(*call), "landlock_create_ruleset")
    _check(
        _libc.syscall(ctypes.c_long(_LANDLOCK_RESTRICT), ctypes.c_int(handle), ctypes.c_uint(0)),
        "landlock_restrict_self",
    )
    os.close(handle)


def filter_calls() -> None:
    argument = seccomp.as_argument(seccomp.program())
    _check(_libc.prctl(_SET_SECCOMP, ctypes.c_ulong(2), ctypes.byref(argument)), "seccomp")


def _write(path: str, text: str) -> None:
    handle = os.open(path, os.O_WRONLY)
    try:
        os.write(handle, text.encode())
    finally:
        os.close(handle)


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)} ({errno.errorcode.get(number, number)})")
    return result
