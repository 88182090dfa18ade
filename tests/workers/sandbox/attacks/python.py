"""The interpreter itself: imports from the host, what earlier calls left in memory, crashes, odd text."""

ATTACKS = {
    "import from the host's directory": "import sys\nsys.path.insert(0, w['directory'])\nimport planted\nreturn planted.SECRET",
    "import from a zip of the host": "import sys\nsys.path.insert(0, w['zip'])\nimport zipped\nreturn zipped.SECRET",
    "import what site would": """
import sys
sys.path.insert(0, w['directory'])
import sitecustomize
return sitecustomize.SECRET
""",
    "import by the path": """
from importlib.machinery import SourceFileLoader
return SourceFileLoader('planted', w['directory'] + '/planted.py').load_module().SECRET
""",
    "load a library of the host": "return f'reached {ctypes.CDLL(w[\"library\"])}'",
    "import what is installed": """
import sys
sys.path[:] = w['packages']
import django
return 'reached ' + django.__file__
""",
    "import what talks to networks": "import sys\nsys.path[:] = w['path']\nimport socket, asyncio, http.client\nreturn 'exposed'",
    "where is the interpreter's source": "import json, inspect\nreturn 'reached' if inspect.getsource(json) else None",
    "spoil a module for the next": 'import json\njson.dumps = lambda *a, **k: \'{"value": "spoilt"}\'\nreturn 1',
    "spoil what all use for the next": "import builtins\nbuiltins.compile = builtins.exec = lambda *a, **k: None\nreturn 1",
    "spoil random for the next": "import random\nrandom.seed = lambda *a: None\nrandom.random = lambda: 4\nreturn 1",
    "what the call before left, by the collector": """
import gc, re
found = set()
for o in gc.get_objects():
    if isinstance(o, (dict, list)):
        found |= set(re.findall(w['half'] + '[0-9a-f]+', repr(o)[:100000]))
return sorted(found)
""",
    "what the call before left, in memory": """
import re
pattern = re.compile(w['half'].encode() + b'[0-9a-f]+')
start = id(object()) & ~0xfff
found = set()
for page in range(start - (4 << 20), start + (4 << 20), 4096):
    if libc.mincore(ctypes.c_void_p(page), ctypes.c_size_t(4096), ctypes.create_string_buffer(1)) == 0:
        found |= set(pattern.findall(ctypes.string_at(page, 4096)))
return [text.decode() for text in found]
""",
    "what the call before left, in memory, unasked": """
import re
pattern = re.compile(w['half'].encode() + b'[0-9a-f]+')
start = id(w) & ~0xfffff
found = set(pattern.findall(ctypes.string_at(start, 1 << 20)))
return [text.decode() for text in found]
""",
    "frames above": """
import sys
frame, found = sys._getframe(), []
while frame:
    found.append(repr(frame.f_locals)[:2000])
    frame = frame.f_back
return found
""",
    "jump to nowhere": "ctypes.string_at(0)",
    "write to nowhere": "ctypes.memset(64, 0, 10)",
    "free what is not ours": "libc.free(ctypes.c_void_p(id(None)))\nreturn 1",
    "broken bytecode": """
import types
code = (lambda: 0).__code__
return types.FunctionType(code.replace(co_code=bytes([100, 255] * 20), co_consts=()), {})()
""",
    "rubbish for marshal": "import marshal\nreturn marshal.loads(b'c' + bytes(range(200)) * 10)",
    "change a constant": "ctypes.memset(id(True) + 24, 0, 4)\nreturn int(True)",
    "call abort": "os.abort()",
    "leave without a word": "os._exit(0)",
    "leave with an error": "os._exit(99)",
    "leave by an exception": "raise SystemExit('forged')",
    "an exception that cannot be shown": """
class Odd(Exception):
    def __str__(self): raise Odd
    __repr__ = __str__
raise Odd
""",
    "an exception without end": """
error = None
for _ in range(100000):
    new = ValueError('x' * 100); new.__cause__ = error; error = new
raise error
""",
    "an exception with a long name": "raise type('E' * 10 ** 6, (Exception,), {})('forged')",
    "nested source": "return eval('(' * 10000 + ')' * 10000)",
    "nested operators": "return eval('-' * 300000 + '1')",
    "nested comparisons": "return eval('1' + '<2' * 100000)",
    "source with NUL": "return eval('1\\0 + 1')",
    "source in another coding": "exec(b'# coding: utf-7\\n+AF8-x = 1')\nreturn 1",
    "a name that looks like another": "exec('ⅴerify = 1')\nreturn 1",
    "half a character": "return '\\ud800' + chr(0) + '\\u202e'",
    "half a character as a key": "return {'\\udfff\\0': 1}",
    "print half a character": "print('\\ud800\\0\\x1b[2J')\nreturn 1",
    "an exception with half a character": "raise ValueError('\\ud800\\0')",
    "unpickle": "import pickle\nreturn pickle.loads(b\"cos\\nsystem\\n(S'echo x > \" + w['drop'].encode() + b\"/ran'\\ntR.\")",
    "a codec of our own": "import codecs\ncodecs.register(lambda n: None)\nreturn 'x'.encode('nothing')",
    "an end that runs late": 'import atexit\natexit.register(lambda: os.write(3, b\'{"value": "forged"}\'))\nreturn 1',
    "trace the end": """
import sys
def look(frame, event, argument):
    if 'sent' in frame.f_locals:
        frame.f_locals['sent'] = '{"value": "forged"}'
    return look
sys.settrace(look)
return 1
""",
}
