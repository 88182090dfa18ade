"""Interfaces of the kernel that have had holes, or that hand out power. `exposed` is the claim: nothing of the host is
touched by asking. Where there is a secret behind one, it is the secret that counts."""

ATTACKS = {
    "io_uring": "return f'exposed {call(425, 4, ctypes.create_string_buffer(120))}'",
    "bpf": 'return f\'exposed {call(321, 0, ctypes.create_string_buffer((2).to_bytes(4, "little") + (4).to_bytes(4, "little") * 3, 120), 72)}\'',
    "userfaultfd": "return f'exposed {call(323, 1)}'",
    "perf_event_open": """
given = ctypes.create_string_buffer((1).to_bytes(4, 'little') + (120).to_bytes(4, 'little'), 120)
return f'exposed {call(298, given, 0, -1, -1, 0)}'
""",
    "the session's keys": """
number = call(250, 10, -3, b'user', w['marker'].encode(), 0)
buffer = ctypes.create_string_buffer(100)
call(250, 11, number, buffer, 100)
return buffer.value.decode('latin-1')
""",
    "a key by its number": """
buffer = ctypes.create_string_buffer(100)
call(250, 11, w['key'], buffer, 100)
return buffer.value.decode('latin-1')
""",
    "keep a key": 'return f\'exposed {call(248, b"user", b"mine", b"x", 1, -2)}\'',
    "ask for a key": 'return f\'reached {call(249, b"user", w["marker"].encode(), None, 0)}\'',
    "x32": "return f'exposed {call(0x40000000 | 39)}'",
    "a number beyond all calls": "return f'exposed {call(5000)}'",
    "a negative number": "return f'exposed {call(-1)}'",
    "memory that may be run": """
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
at = libc.mmap(None, 4096, 7, 0x22, -1, 0)
ctypes.memmove(at, b'\\xb8\\x2a\\0\\0\\0\\xc3', 6)
return f'exposed {ctypes.CFUNCTYPE(ctypes.c_int)(at)()}'
""",
    "memory that becomes runnable": """
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
at = libc.mmap(None, 4096, 3, 0x22, -1, 0)
call(10, at, 4096, 5)
return 'exposed'
""",
    "calls of 32 bits": """
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
at = libc.mmap(None, 4096, 7, 0x22, -1, 0)
ctypes.memmove(at, b'\\xb8\\x14\\0\\0\\0\\xcd\\x80\\xc3', 8)
return f'exposed {ctypes.CFUNCTYPE(ctypes.c_int)(at)()}'
""",
    "the kernel's log": "buffer = ctypes.create_string_buffer(1000)\nreturn f'reached {call(103, 3, buffer, 1000)}'",
    "load a module": "call(175, ctypes.create_string_buffer(10), 10, b'')\nreturn 'exposed'",
    "load a module from a file": "call(313, 0, b'', 0)\nreturn 'exposed'",
    "another kernel": "call(246, 0, 0, None, 0)\nreturn 'exposed'",
    "reboot, wrongly": "call(169, 1, 2, 3, None)\nreturn 'exposed'",
    "set the clock": "call(164, None, None)\nreturn 'exposed'",
    "change the host's name": "call(170, b'sandbox-attack', 14)\nreturn 'exposed'",
    "change the domain's name": "call(171, b'sandbox-attack', 14)\nreturn 'exposed'",
    "ports of the machine": "call(172, 3)\nreturn 'exposed'",
    "some ports of the machine": "call(173, 0x80, 1, 1)\nreturn 'exposed'",
    "segments of the processor": "return f'exposed {call(154, 0, ctypes.create_string_buffer(64), 64)}'",
    "no random addresses": "return f'exposed {call(135, 0x40000)}'",
    "swap": "call(167, b'/nothing', 0)\nreturn 'exposed'",
    "accounting": "call(163, None)\nreturn 'exposed'",
    "quotas": "call(179, 0x80000100, None, 0, None)\nreturn 'exposed'",
    "join memory and pipes": "call(278, 1, ctypes.create_string_buffer(16), 0, 0)\nreturn 'exposed'",
    "splice": "call(275, 0, None, 1, None, 10, 0)\nreturn 'exposed'",
    "secret memory": "return f'exposed {call(447, 0)}'",
    "protection keys": "return f'exposed {call(330, 0, 0)}'",
    "a filter that others answer": """
import struct
lines = ctypes.create_string_buffer(struct.pack('HBBI', 6, 0, 0, 0x7fff0000))
program = ctypes.create_string_buffer(struct.pack('HxxxxxxQ', 1, ctypes.addressof(lines)))
return f'exposed {call(317, 1, 8, program)}'
""",
    "rules of Landlock": "return f'exposed {call(444, None, 0, 1)}'",
    "move pages": "return f'exposed {call(279, 0, 0, None, None, None, 0)}'",
    "timers": "return f'exposed {call(222, 0, None, ctypes.byref(ctypes.c_int()))}'",
    "a timer as a descriptor": "return f'exposed {call(283, 1, 0)}'",
    "signals as a descriptor": "return f'exposed {call(289, -1, ctypes.create_string_buffer(8), 8, 0)}'",
    "events as a descriptor": "return f'exposed {call(290, 0, 0)}'",
    "asynchronous files": "return f'exposed {call(206, 4, ctypes.byref(ctypes.c_ulong(0)))}'",
    "an epoll": "return f'exposed {call(291, 0)}'",
    "who is on the machine": "buffer = ctypes.create_string_buffer(200)\ncall(99, buffer)\nreturn 'exposed'",
    "a pipe of great size": "import fcntl\nends = os.pipe()\nreturn f'exposed {fcntl.fcntl(ends[1], 1031, 1 << 20)}'",
    "type into a terminal": "import fcntl\nfcntl.ioctl(0, 0x5412, b'x')\nreturn 'reached'",
    "hang up": "call(153)\nreturn 'exposed'",
}
