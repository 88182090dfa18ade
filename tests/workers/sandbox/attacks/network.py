"""Reaching a listener: those of the world note every connection and every datagram, so the harm is seen outside."""

_CONNECT = """
s = call(41, {family}, {kind}, {protocol})
a = {address}
call(42, s, a, len(a))
os.write(s, b'hello')
"""
_V4 = "address(2, w['{port}'].to_bytes(2, 'big') + bytes([127, 0, 0, 1]) + bytes(8))"
_V6 = "address(10, w['{port}'].to_bytes(2, 'big') + bytes(4) + bytes(15) + b'\\x01' + bytes(4))"
_PATH = "address(1, w['{path}'].encode() + b'\\0')"
_ABSTRACT = "address(1, b'\\0' + w['{name}'].encode())"


def _connect(family: int, kind: int, address: str, protocol: int = 0) -> str:
    return _CONNECT.format(family=family, kind=kind, protocol=protocol, address=address)


ATTACKS = {
    "TCP over IPv4": _connect(2, 1, _V4.format(port="tcp4")),
    "TCP over IPv6": _connect(10, 1, _V6.format(port="tcp6")),
    "TCP over IPv4 mapped into IPv6": _connect(
        10,
        1,
        "address(10, w['tcp4'].to_bytes(2, 'big') + bytes(4) + bytes(10) + b'\\xff\\xff\\x7f\\0\\0\\x01' + bytes(4))",
    ),
    "TCP to the address that means this machine": _connect(
        2, 1, "address(2, w['tcp4'].to_bytes(2, 'big') + bytes(4) + bytes(8))"
    ),
    "TCP with several paths": _connect(2, 1, _V4.format(port="tcp4"), protocol=262),
    "TCP, data with the first packet": """
s = call(41, 2, 1, 0)
a = """
    + _V4.format(port="tcp4")
    + """
call(44, s, b'hello', 5, 0x20000000, a, len(a))
""",
    "UDP over IPv4": _connect(2, 2, _V4.format(port="udp4")),
    "UDP over IPv6": _connect(10, 2, _V6.format(port="udp6")),
    "UDP by sendto": """
s = call(41, 2, 2, 0)
a = """
    + _V4.format(port="udp4")
    + """
call(44, s, b'hello', 5, 0, a, len(a))
""",
    "UDP by sendmmsg": """
import struct
s = call(41, 2, 2, 0)
a = ctypes.create_string_buffer("""
    + _V4.format(port="udp4")
    + """)
data = ctypes.create_string_buffer(b'hello')
part = ctypes.create_string_buffer(struct.pack('QQ', ctypes.addressof(data), 5))
head = ctypes.create_string_buffer(struct.pack('QIxxxxQQQQQ', ctypes.addressof(a), 16, ctypes.addressof(part), 1, 0, 0, 0) + bytes(8))
call(307, s, head, 1, 0)
""",
    "a UNIX socket by its path": _connect(1, 1, _PATH.format(path="unix")),
    "a UNIX datagram by its path": _connect(1, 2, _PATH.format(path="unix_datagram")),
    "a UNIX socket by an abstract name": _connect(1, 1, _ABSTRACT.format(name="abstract")),
    "a UNIX datagram by an abstract name": _connect(1, 2, _ABSTRACT.format(name="abstract_datagram")),
    "a socket between virtual machines": "return f'exposed {call(41, 40, 1, 0)}'",
    "listen where others may come": """
s = call(41, 2, 1, 0)
a = address(2, bytes(2) + bytes([127, 0, 0, 1]) + bytes(8))
call(49, s, a, len(a)); call(50, s, 1)
return 'exposed'
""",
    "take the port of the listener": """
s = call(41, 2, 2, 0)
call(54, s, 1, 15, (1).to_bytes(4, 'little'), 4)
a = """
    + _V4.format(port="udp4")
    + """
call(49, s, a, len(a))
return 'exposed'
""",
    "which interfaces are there": """
import struct
s = call(41, 2, 2, 0)
for number in range(2, 20):
    request = ctypes.create_string_buffer(bytes(16) + struct.pack('i', number) + bytes(20))
    try:
        call(16, s, 0x8910, request)
    except OSError:
        continue
    if request.raw[:3] not in (b'tun', b'gre', b'sit', b'ip6', b'erspan'[:3], b'lo\\0', b'ip_', b'tei', b'dum', b'ifb'):
        return 'reached ' + request.raw[:16].decode('latin-1')
""",
    "ask the kernel for its routes": "return f'exposed {call(41, 16, 3, 0)}'",
    "watch packets": "return f'exposed {call(41, 17, 3, 0x300)}'",
    "ping": """
s = call(41, 2, 2, 1)
a = address(2, bytes(2) + bytes([127, 0, 0, 1]) + bytes(8))
call(44, s, bytes([8, 0, 0, 0, 0, 0, 0, 1]), 8, 0, a, len(a))
return 'reached'
""",
    "a raw socket": "return f'exposed {call(41, 2, 3, 255)}'",
    "the kernel's cryptography by a socket": "return f'exposed {call(41, 38, 5, 0)}'",
    "a pair of sockets": "call(53, 1, 1, 0, (ctypes.c_int * 2)())\nreturn 'exposed'",
    "a left connection": """
for handle in range(3, 1024):
    try:
        call(44, handle, b'hello', 5, 0x4000, None, 0)
    except OSError:
        pass
""",
    "names by the C library": """
libc.gethostbyname.restype = ctypes.c_void_p
return 'reached' if libc.gethostbyname(w['hostname'].encode()) else None
""",
    "the name of the host": "return 'reached' if os.uname().nodename == w['hostname'] else None",
}
