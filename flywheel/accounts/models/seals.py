"""Secrets at rest: sealed under a key of the installation's, one for each purpose."""

import base64

from cryptography.fernet import Fernet, InvalidToken
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from django.conf import settings


class CannotUnseal(Exception):
    """It was sealed with another `secret_key` than that of this FLYWHEEL_HOME."""


def seal(secret: str, purpose: str) -> str:
    return _fernet(purpose).encrypt(secret.encode()).decode()


def unseal(sealed: str, purpose: str) -> str:
    """The secret itself. Raises CannotUnseal."""
    try:
        return _fernet(purpose).decrypt(sealed.encode()).decode()
    except InvalidToken:
        raise CannotUnseal("it was stored under a different secret_key") from None


def _fernet(purpose: str) -> Fernet:
    """Authenticated encryption under a key of its own, derived from the installation's (HKDF, RFC 5869)."""
    derived = HKDF(algorithm=SHA256(), length=32, salt=None, info=f"flywheel {purpose}".encode())
    return Fernet(base64.urlsafe_b64encode(derived.derive(settings.SECRET_KEY.encode())))
