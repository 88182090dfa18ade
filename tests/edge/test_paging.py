import pytest

from flywheel.accounts.models import AuditEntry
from flywheel.edge.paging import about
from tests.conftest import Cast


@pytest.mark.django_db
def test_a_list_of_some_thousands_is_counted_and_not_guessed(cast: Cast) -> None:
    rows = AuditEntry.objects.filter(project=cast.project, action="counted")
    entry = {"project": cast.project, "actor": cast.admin, "action": "counted", "subject": "x"}
    AuditEntry.objects.bulk_create(AuditEntry(**entry) for _ in range(1_203))
    assert about(rows) == (1_203, False)
