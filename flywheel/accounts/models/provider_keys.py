"""Keys for the servers of models, entered in a browser: sealed at rest, and never shown again."""

import base64

from cryptography.fernet import Fernet, InvalidToken
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from django.conf import settings
from django.db import models
from django.utils import timezone

from flywheel.accounts.models.people import Project, User


class CannotUnseal(Exception):
    """The key was sealed with another `secret_key` than that of this FLYWHEEL_HOME."""


class ProviderKey(models.Model):
    """A key for one server of models, which is sent there and nowhere else."""

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="provider_keys")
    name = models.CharField(max_length=100)
    """As a variable of the environment would be called, such as `OPENAI_API_KEY`; endpoints name it so."""
    base_url = models.CharField(max_length=500)
    """The one server that it is sent to, up to where `/chat/completions` begins."""
    sealed = models.TextField()
    created_by = models.ForeignKey(User, on_delete=models.PROTECT, related_name="+")
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["project", "name"]
        constraints = [models.UniqueConstraint(fields=["project", "name"], name="provider_key_once")]

    def __str__(self) -> str:
        return self.name

    def seal(self, secret: str) -> None:
        self.sealed = _fernet().encrypt(secret.encode()).decode()

    def unseal(self) -> str:
        """The key itself. Raises CannotUnseal."""
        try:
            return _fernet().decrypt(self.sealed.encode()).decode()
        except InvalidToken:
            raise CannotUnseal(
                f"{self.name} was stored under a different secret_key; an admin must enter it again under Settings › "
                f"Models"
            ) from None


def _fernet() -> Fernet:
    """Authenticated encryption under a key of its own, derived from the installation's (HKDF, RFC 5869)."""
    derived = HKDF(algorithm=SHA256(), length=32, salt=None, info=b"flywheel provider keys")
    return Fernet(base64.urlsafe_b64encode(derived.derive(settings.SECRET_KEY.encode())))
