"""What a guest might try. Each attack is the body of a function that gets `w`, the world it would like to reach.

An attack wins when the world outside sees harm (`world.World.damage`). Inside it may only claim: a value that begins
with `reached` says that it touched the host, one that begins with `exposed` that the kernel let it into an interface
which a guest has no business with. All are bounded by themselves (in count, size and seconds), so that one that gets
through does no real harm to the machine of whoever runs the tests. Numbers of system calls are x86-64's.
"""

from dataclasses import dataclass

from tests.workers.sandbox.attacks import files, forging, kernel, network, process, python, resources

PRELUDE = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
def call(number, *arguments):
    given = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result = libc.syscall(ctypes.c_long(number), *given)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
def address(kind, text):
    import struct
    return struct.pack("H", kind) + text
"""

FAMILIES = {
    "files": files.ATTACKS,
    "processes": process.ATTACKS,
    "network": network.ATTACKS,
    "kernel": kernel.ATTACKS,
    "resources": resources.ATTACKS,
    "the interpreter": python.ATTACKS,
    "forging": forging.VERIFIERS,
    "forging by the model's program": forging.PROGRAMS,
}

NEVER_BARE = {
    "mount over a directory",
    "unmount",
    "run before others",
    "change the host's name",
    "change the domain's name",
    "set the clock",
    "reboot, wrongly",
    "hang up",
    "accounting",
    "another kernel",
}


@dataclass(frozen=True, slots=True)
class Attack:
    family: str
    name: str
    body: str

    def __str__(self) -> str:
        return f"{self.family}: {self.name}"

    @property
    def is_program(self) -> bool:
        """Whether it is a program that a model wrote, which a verifier has run."""
        return self.body in forging.PROGRAMS.values()

    @property
    def is_for_layers_only(self) -> bool:
        """Whether it may not be run without any layer: it could hurt the machine."""
        return self.name in NEVER_BARE

    @property
    def code(self) -> str:
        lines = [f"    {line}" for line in self.body.strip("\n").splitlines()]
        return PRELUDE + "def verify(w):\n" + "\n".join(lines) + "\n"


EVERY = [Attack(family, name, body) for family, attacks in FAMILIES.items() for name, body in attacks.items()]
