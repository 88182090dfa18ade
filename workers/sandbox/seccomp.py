"""The system calls that a guest may make: those of an interpreter that computes, and none that reaches out.

Everything else fails with EPERM, so that Python raises and the author of an honest verifier reads why. A call of
another architecture or of x32 kills the process: its numbers mean something else.
"""

import ctypes
import errno
import platform
import struct

# name: (x86_64, arm64); None where the architecture has no such call
CALLS: dict[str, tuple[int | None, int | None]] = {
    "read": (0, 63),
    "write": (1, 64),
    "close": (3, 57),
    "fstat": (5, 80),
    "poll": (7, None),
    "lseek": (8, 62),
    "munmap": (11, 215),
    "brk": (12, 214),
    "rt_sigaction": (13, 134),
    "rt_sigprocmask": (14, 135),
    "rt_sigreturn": (15, 139),
    "pread64": (17, 67),
    "readv": (19, 65),
    "writev": (20, 66),
    "select": (23, None),
    "sched_yield": (24, 124),
    "mremap": (25, 216),
    "madvise": (28, 233),
    "nanosleep": (35, 101),
    "getpid": (39, 172),
    "exit": (60, 93),
    "gettimeofday": (96, 169),
    "getrusage": (98, 165),
    "times": (100, 153),
    "getuid": (102, 174),
    "getgid": (104, 176),
    "geteuid": (107, 175),
    "getegid": (108, 177),
    "getppid": (110, 173),
    "sigaltstack": (131, 132),
    "gettid": (186, 178),
    "time": (201, None),
    "futex": (202, 98),
    "restart_syscall": (219, 128),
    "clock_gettime": (228, 113),
    "clock_getres": (229, 114),
    "clock_nanosleep": (230, 115),
    "exit_group": (231, 94),
    "pselect6": (270, 72),
    "ppoll": (271, 73),
    "getrandom": (318, 278),
    "rseq": (334, 293),
}
NOT_EXECUTABLE: dict[str, tuple[int, int]] = {"mmap": (9, 222), "mprotect": (10, 226)}
"""Allowed unless the memory is to be executable: no code comes to be that was not there before."""

MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
"""Column of the tables, and the architecture's number as the kernel says it."""

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _REFUSE = 0x7FFF0000, 0x80000000, 0x00050000 | errno.EPERM
_NUMBER, _ARCHITECTURE, _THIRD_ARGUMENT = 0, 4, 32
_PROT_EXEC = 4


class UnknownMachine(OSError):
    """There is no table for this processor."""


def program(machine: str = "") -> bytes:
    """The filter as the kernel's bytecode."""
    machine = machine or platform.machine()
    if machine not in MACHINES:
        raise UnknownMachine(errno.ENOSYS, f"no table of system calls for a processor of the kind {machine!r}")
    column, architecture = MACHINES[machine]
    lines = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, 0, 1, 0x40000000),  # x32
        (_RETURN, 0, 0, _KILL),
    ]
    for numbers in NOT_EXECUTABLE.values():
        lines += [
            (_EQUAL, 0, 4, numbers[column]),
            (_LOAD, 0, 0, _THIRD_ARGUMENT),
            (_ANY_BIT, 0, 1, _PROT_EXEC),
            (_RETURN, 0, 0, _REFUSE),
            (_RETURN, 0, 0, _ALLOW),
        ]
    for call in CALLS.values():
        if (number := call[column]) is not None:
            lines += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ALLOW)]
    lines.append((_RETURN, 0, 0, _REFUSE))
    return b"".join(struct.pack("HBBI", *line) for line in lines)


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("lines", ctypes.c_char_p)]


def as_argument(code: bytes) -> ctypes.Structure:
    """Make the structure that `prctl(PR_SET_SECCOMP, …)` is given a pointer to."""
    return _Program(len(code) // 8, code)
