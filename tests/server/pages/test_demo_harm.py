"""The demo's switch: only in its own project, only for approvers, and seen by the server that it harms."""

import pytest
from django.test import Client

from flywheel.accounts.models import Project
from flywheel.system import demo_switch
from tests.conftest import Cast

pytestmark = pytest.mark.django_db


def test_an_approver_of_the_demos_project_alone_turns_the_switch(cast: Cast, client: Client) -> None:
    client.force_login(cast.approver)
    assert client.post(f"/p/{cast.project.slug}/harm/", {"harm": "on"}).status_code == 404
    Project.objects.filter(pk=cast.project.pk).update(slug=demo_switch.PROJECT, is_demo=True)
    address = f"/p/{demo_switch.PROJECT}/harm/"
    assert client.post(address, {"harm": "on"}).headers["Location"] == f"/p/{demo_switch.PROJECT}/promotions/ramps/"
    assert demo_switch.is_on()
    client.force_login(cast.reviewer)
    assert client.post(address, {"harm": "off"}).status_code == 403
    assert demo_switch.is_on()
    client.force_login(cast.approver)
    client.post(address, {"harm": "off"})
    assert not demo_switch.is_on()
