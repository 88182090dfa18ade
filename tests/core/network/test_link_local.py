"""Addresses that nobody's choice may lead to."""

from ipaddress import ip_network

import pytest

from flywheel.core.network.link_local import is_metadata, is_private

METADATA = """
    169.254.169.254 169.254.170.2 fe80::1%eth0 fd00:ec2::254 100.100.100.200 168.63.129.16 192.0.0.192
    ::ffff:169.254.169.254 64:ff9b::a9fe:a9fe 2002:a9fe:a9fe::
"""
PRIVATE = """
    127.0.0.1 10.1.2.3 192.168.0.1 172.16.0.1 100.64.0.1 0.0.0.0 ::1 :: fd12::1 ::ffff:10.0.0.1 64:ff9b::a00:1
    2002:7f00:1:: 224.0.0.1 ff02::1 255.255.255.255
"""
PUBLIC = "8.8.8.8 1.1.1.1 2606:4700::1111 ::ffff:8.8.8.8 64:ff9b::808:808"


@pytest.mark.parametrize("host", METADATA.split())
def test_where_a_cloud_keeps_credentials_is_known(host: str) -> None:
    assert is_metadata(host)


@pytest.mark.parametrize("host", [*PRIVATE.split(), *PUBLIC.split(), "example.com", ""])
def test_nothing_else_is_taken_for_it(host: str) -> None:
    assert not is_metadata(host)


@pytest.mark.parametrize("host", [*METADATA.split()[:1], *PRIVATE.split(), "example.com"])
def test_what_is_not_public_is_private(host: str) -> None:
    assert is_private(host)


@pytest.mark.parametrize("host", PUBLIC.split())
def test_public_addresses_are_not(host: str) -> None:
    assert not is_private(host)


def test_an_allowed_network_is_as_public() -> None:
    allowed = [ip_network("10.0.0.0/8"), ip_network("::1/128")]
    assert [is_private(host, allowed) for host in ("10.1.2.3", "::ffff:10.1.2.3", "::1", "127.0.0.1")] == [
        False,
        False,
        False,
        True,
    ]
