"""Addresses where a cloud answers its machines with their credentials, and where nothing else is served from."""

import ipaddress

METADATA = ipaddress.ip_address("fd00:ec2::254")
"""Over IPv6; over IPv4 it is a link-local address."""


def is_metadata(host: str) -> bool:
    """Whether this is a link-local or metadata address."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped:
        address = address.ipv4_mapped
    return address.is_link_local or address == METADATA
