"""Using up what others need. What the watcher measures is compared with the limits: time, peak memory, output."""

_FOR = "import time\nend = time.monotonic() + 5\n"

ATTACKS = {
    "a loop": _FOR + "while time.monotonic() < end: pass\nreturn 'forged'",
    "a loop that ignores every signal": """
import signal, time
for number in range(1, 65):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
end = time.monotonic() + 5
while time.monotonic() < end: pass
return 'forged'
""",
    "a loop that catches everything": _FOR
    + """
while time.monotonic() < end:
    try:
        while time.monotonic() < end: pass
    except BaseException:
        pass
return 'forged'
""",
    "a loop in C": "return sum(range(10 ** 9)) and 'forged'",
    "a regular expression": "import re\nre.match('(a+)+$', 'a' * 28 + 'b')\nreturn 'forged'",
    "a number that is too long": "return len(str(7 ** (10 ** 6) % 10 ** 400000).__class__.__name__) * 0 or 7 ** (3 * 10 ** 6) % 3 or 'forged'",
    "sleep": "import time\ntime.sleep(5)\nreturn 'forged'",
    "sleep in small pieces": _FOR + "while time.monotonic() < end: time.sleep(.001)\nreturn 'forged'",
    "wait for input": "import sys, time\nwhile not os.read(0, 10):\n    time.sleep(.01)\nreturn 'forged'",
    "wait for oneself": "import _thread\nlock = _thread.allocate_lock()\nlock.acquire()\nlock.acquire(timeout=5)\nreturn 'forged'",
    "stop oneself": "os.kill(os.getpid(), 19)",
    "close everything and go on": _FOR + "os.closerange(0, 100)\nwhile time.monotonic() < end: pass\nreturn 'forged'",
    "threads": """
import _thread, time
for _ in range(8):
    _thread.start_new_thread(lambda: time.sleep(5), ())
return 'exposed'
""",
    "one great block": "return len(bytearray(400 << 20)) and 'forged'",
    "a growing list": "kept = []\nfor _ in range(400):\n    kept.append(bytearray(1 << 20))\nreturn 'forged'",
    "a growing text": "text = 'x' * (1 << 20)\nfor _ in range(8):\n    text += text\nreturn len(text) and 'forged'",
    "maps": """
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
at = libc.mmap(None, 400 << 20, 3, 0x22, -1, 0)
ctypes.memset(at, 1, 400 << 20)
return 'forged'
""",
    "shared maps": """
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
at = libc.mmap(None, 400 << 20, 3, 0x21, -1, 0)
ctypes.memset(at, 1, 400 << 20)
return 'forged'
""",
    "a file in memory": """
handle = call(319, b'x', 0)
for _ in range(200):
    os.write(handle, bytes(1 << 20))
return 'reached'
""",
    "a file in memory made long": "call(285, call(319, b'x', 0), 0, 0, 200 << 20)\nreturn 'reached'",
    "shared memory": "number = call(29, 0, 200 << 20, 0o1600)\nat = call(30, number, 0, 0)\ncall(31, number, 0, None)\nctypes.memset(ctypes.c_void_p(at), 1, 200 << 20)\nreturn 'reached'",
    "locked memory": "call(149, ctypes.create_string_buffer(32 << 20), 32 << 20)\nreturn 'exposed'",
    "the stack": "def deep(n): return deep(n + 1)\nimport sys\nsys.setrecursionlimit(10 ** 9)\nreturn deep(0)",
    "the stack in C": "import json, sys\nsys.setrecursionlimit(10 ** 9)\nx = []\nfor _ in range(10 ** 6): x = [x]\nreturn repr(x) and 'forged'",
    "print": "for _ in range(4000): print('x' * 1000)\nreturn 'forged'",
    "print to the other": "import sys\nfor _ in range(4000): sys.stderr.write('x' * 1000)\nreturn 'forged'",
    "print past Python": "for _ in range(4000): os.write(1, b'x' * 1000)\nreturn 'forged'",
    "print without end": _FOR + "while time.monotonic() < end: os.write(2, b'x' * 60000)\nreturn 'forged'",
    "a great result": "return 'x' * (20 << 20)",
    "a great result past Python": "for _ in range(20000): os.write(3, b'x' * 1000)\nreturn 'forged'",
    "a result of many small things": "return list(range(10 ** 6))",
    "descriptors": "kept = [os.dup(0) for _ in range(5000)]\nreturn 'reached'",
    "pipes full of bytes": """
for _ in range(400):
    ends = os.pipe()
    os.set_blocking(ends[1], False)
    os.write(ends[1], bytes(65536))
return 'reached'
""",
    "many files": "for n in range(2000): open(f'{w[\"drop\"]}/{n}', 'w')",
    "a long file": "with open(w['drop'] + '/long', 'wb') as file:\n    for _ in range(32): file.write(bytes(1 << 20))",
    "a file with a hole": "with open(w['drop'] + '/hole', 'wb') as file: file.truncate(1 << 40)",
    "directories in directories": """
for n in range(200):
    os.mkdir(w['drop'] + '/d' * (n + 1)) if n else os.mkdir(w['drop'] + '/d')
""",
    "bytes that swell": "import zlib\nreturn len(zlib.decompress(zlib.compress(bytes(30 << 20)) * 1)) * 8 and len(zlib.decompress(zlib.compress(bytes(30 << 20))) * 14) and 'forged'",
    "XML that swells": """
from xml.etree import ElementTree
entities = ''.join(f'<!ENTITY e{n} "{f"&e{n - 1};" * 10 if n else "x" * 100}">' for n in range(9))
ElementTree.fromstring(f'<!DOCTYPE a [{entities}]><a>&e8;</a>')
return 'forged'
""",
    "a great width": "return len('{:>999999999}'.format('x')) and 'forged'",
    "a hash that collides": """
class Same(int):
    def __hash__(self): return 1
return len({Same(n): n for n in range(40000)}) and 'forged'
""",
}
