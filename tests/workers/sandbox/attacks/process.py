"""Other processes: seeing, signalling, reading and changing them; making new ones; becoming somebody else."""

_LEFT = "os.setsid()\nimport time\ntime.sleep(6)\nos._exit(0)"

ATTACKS = {
    "list processes": "return 'reached' if str(w['pid']) in os.listdir('/proc') else None",
    "read another's environment": "return open(f'/proc/{w[\"pid\"]}/environ').read()",
    "read the first process's environment": "return 'reached' if open('/proc/1/environ').read() else None",
    "read one's parent's environment": "return open(f'/proc/{os.getppid()}/environ').read()",
    "read one's own environment": "return repr(dict(os.environ))",
    "read one's own environment in memory": """
environ = ctypes.POINTER(ctypes.c_char_p).in_dll(libc, 'environ')
found = []
while environ and environ[len(found)]:
    found.append(environ[len(found)])
return repr(found)
""",
    "read another's command": "return 'reached' if open(f'/proc/{w[\"host\"]}/cmdline').read() else None",
    "read another's memory by /proc": """
handle = os.open(f'/proc/{w["host"]}/mem', 0)
return os.pread(handle, 40, w['address']).decode('latin-1')
""",
    "read another's memory by a call": """
import struct
into = ctypes.create_string_buffer(40)
ours, theirs = struct.pack('QQ', ctypes.addressof(into), 40), struct.pack('QQ', w['address'], 40)
call(310, w['host'], ours, 1, theirs, 1, 0)
return into.raw.decode('latin-1')
""",
    "write another's memory": """
import struct
data = ctypes.create_string_buffer(b'changed', 7)
ours, theirs = struct.pack('QQ', ctypes.addressof(data), 7), struct.pack('QQ', w['address'], 7)
call(311, w['host'], ours, 1, theirs, 1, 0)
""",
    "see another's descriptors": "return 'reached' if os.listdir(f'/proc/{w[\"host\"]}/fd') else None",
    "take another's descriptor": "return f'reached {call(438, call(434, w[\"host\"], 0), 0, 0)}'",
    "attach to another": "call(101, 16, w['pid'], 0, 0)\nreturn 'reached'",
    "seize the host": "call(101, 0x4206, w['host'], 0, 0)\nreturn 'reached'",
    "be traced": "call(101, 0, 0, 0, 0)\nreturn 'exposed'",
    "end another": """
import select
os.kill(w['pid'], 9)
select.select([os.pidfd_open(w['pid'])], [], [], 1)  # on a busy machine it takes a while to end
""",
    "stop another": "os.kill(w['pid'], 19)",
    "end another by its thread": "call(234, w['pid'], w['pid'], 9)",
    "end another by a queued signal": "call(129, w['pid'], 9, ctypes.create_string_buffer(128))",
    "end another by a descriptor": "call(424, call(434, w['pid'], 0), 9, None, 0)",
    "end the host": "os.kill(w['host'], 15)",
    "end the keeper": "os.kill(w['keeper'], 9)",
    "end one's parent": "os.kill(os.getppid(), 9)",
    "end one's group": "os.killpg(0, 9)",
    "may everything be signalled": "os.kill(-1, 0)\nreturn 'exposed'",
    "the first process": "os.kill(1, 0)\nreturn 'reached' if os.getpid() != 1 else None",
    "slow another down": "os.setpriority(0, w['pid'], 19)",
    "bind another to a processor": "os.sched_setaffinity(w['pid'], {0})\nreturn 'reached'",
    "limit another": """
call(302, w['pid'], 7, (ctypes.c_uint64 * 2)(5, 5), None)
""",
    "slow another's disk": "call(251, 1, w['pid'], 3 << 13)\nreturn 'reached'",
    "compare with another": 'return f\'reached {call(312, w["pid"], w["host"], 1, 0, 0)}\'',
    "which group is another's": "return f'reached {os.getpgid(w[\"pid\"])}'",
    "enter another's namespaces": """
call(308, call(434, w['host'], 0), 0x40000000)
return 'reached'
""",
    "enter the first process's namespace": "call(308, os.open('/proc/1/ns/net', 0), 0)\nreturn 'reached'",
    "leave a child behind": "if os.fork() == 0:\n" + "\n".join(f"    {line}" for line in _LEFT.splitlines()),
    "leave a grandchild behind": """
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        import time
        time.sleep(6)
    os._exit(0)
""",
    "leave a child behind by clone": "if call(56, 17, 0, 0, 0, 0) == 0:\n    import time\n    time.sleep(6)\n    os._exit(0)",
    "leave a child behind by clone3": """
arguments = (ctypes.c_uint64 * 11)(0, 0, 0, 0, 17)
if call(435, arguments, 88) == 0:
    import time
    time.sleep(6)
    os._exit(0)
""",
    "leave a child behind that ignores signals": """
import signal, time
if os.fork() == 0:
    for number in range(1, 32):
        if number not in (9, 19):
            signal.signal(number, signal.SIG_IGN)
    call(157, 1, 0)
    os.setsid()
    time.sleep(6)
    os._exit(0)
""",
    "outlive the parent": "call(157, 1, 0)\nimport time\ntime.sleep(6)\nreturn 'reached'",
    "a thousandfold fork": """
import time
for _ in range(20):
    if os.fork() == 0:
        time.sleep(6)
        os._exit(0)
""",
    "run a program": "os.execv('/bin/sh', ['sh', '-c', 'echo x > ' + w['drop'] + '/ran'])",
    "run a program in a child": """
if os.fork() == 0:
    os.execv('/bin/sh', ['sh', '-c', 'echo x > ' + w['drop'] + '/ran; sleep 6'])
os.wait()
""",
    "run a program by posix_spawn": "os.posix_spawn('/bin/sh', ['sh', '-c', 'echo x > ' + w['drop'] + '/ran'], {})\nimport time\ntime.sleep(.3)",
    "run a program by system": 'return f\'status {os.system("echo x > " + w["drop"] + "/ran")}\'',
    "run a program from memory": """
handle = call(319, b'x', 0)
os.write(handle, b'#!/bin/sh\\necho x > ' + w['drop'].encode() + b'/ran\\n')
call(322, handle, b'', (ctypes.c_char_p * 2)(b'x', None), (ctypes.c_char_p * 1)(None), 0x1000)
""",
    "become root": "os.setuid(0)\nreturn 'reached' if open(w['private']).read() else None",
    "become root by setresuid": "os.setresuid(0, 0, 0)\nreturn 'exposed'",
    "join a group": "os.setgroups([0, 42])\nreturn 'exposed'",
    "take capabilities": """
import struct
call(126, struct.pack('Ii', 0x20080522, 0), struct.pack('6I', *[0xffffffff] * 6))
return 'exposed'
""",
    "a user namespace, then mounts": """
call(272, 0x10000000 | 0x20000)
call(165, b'/', b'/', b'tmpfs', 4096 | 16384, None)
return open(w['canary']).read()
""",
    "a user namespace, then root's number in it": """
uid = os.getuid()
call(272, 0x10000000)
open('/proc/self/setgroups', 'w').write('deny')
open('/proc/self/uid_map', 'w').write(f'0 {uid} 1')
os.setuid(0)
return open(w['private']).read()
""",
    "run in real time": "os.sched_setscheduler(0, 1, os.sched_param(10))\nreturn 'exposed'",
    "run before others": "os.nice(-5)\nreturn 'exposed'",
    "raise one's own limits": "call(302, 0, 7, (ctypes.c_uint64 * 2)(4096, 1 << 20), None)\nreturn 'exposed'",
    "leave one's control group": """
for path in ('/sys/fs/cgroup/cgroup.procs', '/sys/fs/cgroup/unified/cgroup.procs', '/sys/fs/cgroup/memory/cgroup.procs'):
    try:
        return f'reached {os.open(path, os.O_WRONLY)}'
    except OSError:
        pass
""",
    "be spared when memory ends": "open('/proc/self/oom_score_adj', 'w').write('-900')\nreturn 'reached'",
    "shared memory of others": """
at = ctypes.c_long(call(30, w['shared'], 0, 0o10000)).value
return ctypes.string_at(at, 40).decode('latin-1')
""",
    "make shared memory": "return f'exposed {call(31, call(29, 0, 4096, 0o1600), 0, None)}'",
    "semaphores": "return f'exposed {call(66, call(64, 0, 1, 0o1600), 0, 0)}'",
    "message queues": "return f'exposed {call(71, call(68, 0, 0o1600), 0, None)}'",
    "message queues with names": """
name = w['marker'].encode()
call(240, name, 0o102, 0o600, None)
call(241, name)
return 'exposed'
""",
}
