"""Reading, writing and finding what lies on the host's disk."""

ATTACKS = {
    "read a file that everybody may read": "return open(w['canary']).read()",
    "read through /proc/self/root": "return open('/proc/self/root' + w['canary']).read()",
    "read through the working directory": "return open('..' * 0 + '.' + w['canary']).read()",
    "read by openat2": """
how = (ctypes.c_uint64 * 3)(0, 0, 0)
return os.read(call(437, -100, w['canary'].encode(), how, 24), 999).decode()
""",
    "read by a file handle": """
handle = ctypes.create_string_buffer(140); ctypes.memmove(handle, (128).to_bytes(4, 'little'), 4)
mount = ctypes.c_int()
call(303, -100, w['canary'].encode(), handle, ctypes.byref(mount), 0)
return os.read(call(304, os.open('/', 0), handle, 0), 999).decode()
""",
    "read a private file of whoever runs Flywheel": "return open(w['private']).read()",
    "read the accounts": "return 'reached' if 'root:' in open('/etc/passwd').read() else None",
    "read the passwords": "return 'reached' if 'root:' in open('/etc/shadow').read() else None",
    "list the root directory": "return 'reached' if 'etc' in os.listdir('/') else None",
    "list a directory": "return 'reached' if os.listdir(w['directory']) else None",
    "walk up with ..": "return 'reached' if 'etc' in os.listdir('../../../../../../..') else None",
    "list by getdents on a path descriptor": """
handle = call(257, -100, b'/', 0x210000, 0)
buffer = ctypes.create_string_buffer(65536)
return 'reached' if b'etc' in buffer.raw[:call(217, handle, buffer, 65536)] else None
""",
    "ask whether a file exists": "return f'reached {os.stat(w[\"canary\"]).st_size}'",
    "ask by statx": """
buffer = ctypes.create_string_buffer(256)
call(332, -100, w['canary'].encode(), 0, 0x7ff, buffer)
return 'reached'
""",
    "ask by access": "return 'reached' if os.access(w['canary'], os.F_OK) else None",
    "ask by statfs": "return f'reached {os.statvfs(w[\"directory\"]).f_bfree}'",
    "ask by readlink where the interpreter lies": "return 'reached ' + os.readlink('/proc/self/exe')",
    "ask for an attribute": "return os.getxattr(w['canary'], 'user.secret').decode()",
    "ask where we are": "return 'reached' if os.getcwd() == w['directory'] else None",
    "watch a directory": "return f'reached {call(254, call(294, 0), w[\"directory\"].encode(), 0xfff)}'",
    "watch a file system": "return f'reached {call(301, call(300, 0, 0), 1, 0x20, -100, w[\"directory\"].encode())}'",
    "symlink and read": "os.symlink(w['canary'], w['drop'] + '/link')\nreturn open(w['drop'] + '/link').read()",
    "hard link": "os.link(w['canary'], w['drop'] + '/link')",
    "overwrite a file": "open(w['open'], 'w').write('changed')",
    "append by a raw call": "os.write(call(2, w['open'].encode(), 0o2001, 0), b'changed')",
    "truncate a file": "os.truncate(w['open'], 0)",
    "create a file": "open(w['drop'] + '/file', 'w').write('x')",
    "create a file without a name, then name it": """
handle = call(257, -100, w['drop'].encode(), 0x410002, 0o600)
os.write(handle, b'x')
call(265, -100, b'/proc/self/fd/%d' % handle, -100, (w['drop'] + '/named').encode(), 0x400)
""",
    "create a directory": "os.mkdir(w['drop'] + '/directory')",
    "create a pipe with a name": "os.mkfifo(w['drop'] + '/fifo')",
    "create a device": "os.mknod(w['drop'] + '/null', 0o20666, os.makedev(1, 3))",
    "delete a file": "os.unlink(w['open'])",
    "rename a file": "os.rename(w['open'], w['drop'] + '/taken')",
    "change a mode": "os.chmod(w['open'], 0)",
    "change an owner": "os.chown(w['open'], 1234, 1234)",
    "change a time": "os.utime(w['open'], (1, 1))",
    "set an attribute": "os.setxattr(w['open'], 'user.mine', b'x')",
    "write to /tmp": "open('/tmp/' + w['marker'], 'w').write('x')",
    "write to /dev/shm": "open('/dev/shm/' + w['marker'], 'w').write('x')",
    "write to /var/tmp": "open('/var/tmp/' + w['marker'], 'w').write('x')",
    "write beside the interpreter's modules": """
import json
open(os.path.dirname(json.__file__) + '/' + w['marker'] + '.py', 'w').write('x')
""",
    "mount over a directory": "call(165, b'none', w['directory'].encode(), b'tmpfs', 0, None)\nreturn 'exposed'",
    "unmount": "call(166, b'/', 2)\nreturn 'exposed'",
    "change the root": "os.chroot(w['directory'])\nreturn 'reached' if os.listdir('/') else 'exposed'",
    "open a tree of the host": "return 'reached' if call(428, -100, w['directory'].encode(), 1) else None",
    "make a file system": "return f'exposed {call(430, b\"tmpfs\", 0)}'",
    "read the kernel's messages": "return 'reached' if os.read(os.open('/dev/kmsg', os.O_NONBLOCK), 9999) else None",
    "read physical memory": "return f'reached {os.read(os.open(\"/dev/mem\", 0), 16)}'",
    "read a disk": """
for disk in ('vda', 'sda', 'nvme0n1', 'xvda', 'loop0'):
    try:
        return f'reached {os.read(os.open(\"/dev/\" + disk, 0), 16)}'
    except OSError:
        pass
""",
    "read what descriptors were left open": """
found = b''
for handle in range(1024):
    try:
        os.lseek(handle, 0, 0)
        found += os.read(handle, 100)
    except OSError:
        pass
return found.decode('latin-1')
""",
    "write to what descriptors were left open": """
for handle in range(4, 1024):
    try:
        os.write(handle, b'changed')
    except OSError:
        pass
""",
    "send a file from a left descriptor": """
for handle in range(4, 64):
    try:
        call(40, 1, handle, ctypes.byref(ctypes.c_long(0)), 100)
    except OSError:
        pass
""",
    "a file in memory that may be run": """
handle = call(319, b'x', 0)
os.write(handle, b'#!/bin/sh')
return 'exposed'
""",
    "open the executable for writing": "return f'reached {os.open(\"/proc/self/exe\", os.O_RDWR)}'",
    "lock a file": "import fcntl\nfcntl.flock(os.open(w['canary'], 0), 2)\nreturn 'reached'",
}
