"""Addresses where a cloud answers its machines with their credentials, and where nothing else is served from; and those
that are no public ones."""

import ipaddress
from collections.abc import Iterable

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

METADATA = frozenset(
    ipaddress.ip_address(address) for address in ("fd00:ec2::254", "100.100.100.200", "168.63.129.16", "192.0.0.192")
)
"""Of AWS over IPv6, Alibaba Cloud, Azure and Oracle Cloud; the others are link-local."""
_NAT64 = ipaddress.ip_network("64:ff9b::/96")


def is_metadata(host: str) -> bool:
    """Whether this is a link-local or metadata address."""
    address = _address(host)
    return address is not None and (address.is_link_local or address in METADATA)


def is_private(host: str, allowed: Iterable[Network] = ()) -> bool:
    """Whether this is no address of the public internet, nor of an allowed network."""
    address = _address(host)
    if address is None or any(address in network for network in allowed):
        return address is None
    return not address.is_global or address.is_multicast


def _address(host: str) -> Address | None:
    """The address; of an IPv6 address that leads to an IPv4 one, the latter. None for what is no address."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or address
