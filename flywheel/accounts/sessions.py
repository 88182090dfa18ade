"""Who is signed in: the session and its person, which every page asks for before all else."""

from typing import Any

from django.contrib.auth.backends import ModelBackend
from django.contrib.sessions.backends import db
from django.contrib.sessions.models import Session
from django.utils import timezone

from flywheel.accounts.models import User
from flywheel.edge.prepared_queries import PreparedQuery

_SESSION = PreparedQuery(lambda key, now: Session.objects.filter(session_key=key, expire_date__gt=now))
_USER = PreparedQuery(lambda pk: User.objects.filter(pk=pk))


class SessionStore(db.SessionStore):
    """Django's, in the database."""

    def _get_session_from_db(self) -> Session | None:
        found = _SESSION.first(self.session_key, timezone.now())
        if found is None:
            self._session_key = None
        return found


class Accounts(ModelBackend):
    """Django's: a username and a password."""

    def get_user(self, user_id: Any) -> User | None:
        user = _USER.first(user_id)
        return user if user is not None and self.user_can_authenticate(user) else None
