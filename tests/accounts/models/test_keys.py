import pytest
from django.db import IntegrityError, InternalError, connection, transaction

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import ApiKey, AuditEntry, Permission
from tests.conftest import Build, Cast


def test_each_role_grants_what_it_says_and_a_stranger_nothing(cast: Cast) -> None:
    assert Permission.APPROVE in cast.approver.permissions(cast.project)
    assert Permission.APPROVE not in cast.admin.permissions(cast.project)
    assert cast.stranger.permissions(cast.project) == frozenset()


def test_a_key_is_found_by_its_text_and_by_nothing_else(cast: Cast) -> None:
    key, text = ApiKey.make(cast.project, "ci", ["ingest"], cast.admin)
    assert ApiKey.find(text) == key
    assert text.rpartition("_")[2] not in key.hashed
    for wrong in ("", "fw_", text[:-1], text + "x", text.replace("fw_", "fx_")):
        assert ApiKey.find(wrong) is None


def test_a_key_of_an_unknown_scope_is_refused_by_name(cast: Cast) -> None:
    with pytest.raises(ValueError, match="'everything' is unknown; use one of ingest, gateway, read"):
        ApiKey.make(cast.project, "ci", ["everything"], cast.admin)


def test_the_audit_log_refuses_every_change(cast: Cast) -> None:
    Actor(cast.admin).record(project=cast.project, action="accounts.test", subject="x")
    for change in ("UPDATE accounts_auditentry SET action = 'other'", "DELETE FROM accounts_auditentry"):
        with pytest.raises((IntegrityError, InternalError), match="never change"), transaction.atomic():
            connection.cursor().execute(change)
    assert AuditEntry.objects.count() == 1


def test_a_version_never_changes_and_equal_content_is_one_version(build: Build) -> None:
    version = build.version()
    again = build.version(note="another note")
    assert again == version
    version.system_prompt = "other"
    with pytest.raises((IntegrityError, InternalError), match="never change"), transaction.atomic():
        version.save()
