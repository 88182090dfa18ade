"""Settings › Redaction: who may, what is refused, what is written down."""

from collections.abc import Callable

import pytest
from django.test import Client

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import AuditEntry, RedactionPolicy, User
from flywheel.accounts.project_settings import redaction_policy
from flywheel.core.redaction import BadRule
from tests.conftest import Cast

pytestmark = pytest.mark.django_db
SignIn = Callable[[User], Client]
PAGE = "/p/acme/settings/redaction/"
RULE = {"name": "orders", "pattern": r"ORD-\d{4}", "kind": "order"}


@pytest.fixture
def admin(cast: Cast, sign_in: SignIn) -> Client:
    return sign_in(cast.admin)


def test_a_new_policy_is_a_version_with_who_and_what(cast: Cast, admin: Client) -> None:
    assert "Unchanged" in admin.get(PAGE).content.decode()
    sent = {"mode": "strict", "name": ["orders", ""], "pattern": [r"ORD-\d{4}", ""], "kind": ["order", ""]}
    for _ in range(2):
        assert admin.post(PAGE, sent).status_code == 302
    held = RedactionPolicy.objects.get()
    assert (held.number, held.mode, held.rules, held.made_by) == (1, "strict", [RULE], cast.admin)
    entry = AuditEntry.objects.get(action="accounts.set_redaction")
    assert entry.data["before"]["mode"] == "secrets"
    page = admin.get(PAGE).content.decode()
    assert "mode secrets → strict, rule orders added" in page
    assert admin.post(PAGE, {**sent, "remove": "0"}).status_code == 302
    assert redaction_policy.policy_of(cast.project).rules == []


@pytest.mark.parametrize(
    ("pattern", "said"),
    [("(", "cannot be read"), ("x*", "empty text"), (".{0,900}z", "too slow"), ("", "1 to 1000"), (r"(?=a)b", "RE2")],
)
def test_a_bad_rule_is_told_at_the_form_and_changes_nothing(admin: Client, pattern: str, said: str) -> None:
    answer = admin.post(PAGE, {"mode": "secrets", "name": "mine", "pattern": pattern, "kind": "k"})
    assert answer.status_code == 422
    assert said in answer.content.decode()
    assert not RedactionPolicy.objects.exists()
    assert admin.post(PAGE, {"mode": "everything"}).status_code == 422


def test_a_text_is_tried_and_stored_nowhere(admin: Client) -> None:
    answer = admin.post(f"{PAGE}try/", {"text": '{"password": "hunter2", "to": "<b>ana@example.com"}'}).content.decode()
    assert "<mark>[redacted:password:" in answer
    assert "1 × password" in answer
    assert "hunter2" not in answer
    assert "&lt;b&gt;ana@example.com" in answer
    assert "Nothing found" in admin.post(f"{PAGE}try/", {"text": "hello"}).content.decode()


def test_only_an_admin_may(cast: Cast, sign_in: SignIn) -> None:
    for user, status in ((cast.builder, 403), (cast.approver, 403), (cast.stranger, 404)):
        assert sign_in(user).get(PAGE).status_code == status
        assert sign_in(user).post(PAGE, {"mode": "off"}).status_code == status
        assert sign_in(user).post(f"{PAGE}try/", {"text": "x"}).status_code == status
    assert not RedactionPolicy.objects.exists()


def test_rules_have_names_of_their_own_and_are_not_too_many(cast: Cast) -> None:
    for rules in ([RULE, RULE], [{**RULE, "name": f"r{number}"} for number in range(21)]):
        with pytest.raises(BadRule):
            redaction_policy.set_policy(project=cast.project, actor=Actor(cast.admin), mode="secrets", rules=rules)


def test_projects_do_not_share_placeholders(cast: Cast) -> None:
    one, other = (
        redaction_policy.redactor_of(project).text("4111111111111111")[0] for project in (cast.project, cast.elsewhere)
    )
    assert one != other
