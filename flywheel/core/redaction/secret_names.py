"""Which names say that what stands under them is a secret: `password`, `X-Api-Key`, `db.connection.pwd`, …

A name is read as words (`accessToken`, `access_token` and `ACCESS-TOKEN` are the same), so that a count of tokens is no
token and a password's policy no password.
"""

import functools
import re
from typing import Literal, NamedTuple

LONGEST = 200
"""A longer key is a text and no name."""


class Sensitive(NamedTuple):
    kind: str
    only: Literal["", "credential", "no path"] = ""
    """What a value must look like besides: `token` and `PWD` are the names of harmless things too."""


_NAMES: dict[str, tuple[str, ...]] = {
    "private_key": ("private_key", "privatekey"),
    "api_key": (
        "api_key", "apikey", "access_key", "accesskey", "signing_key", "encryption_key", "subscription_key",
        "account_key", "shared_key", "ssh_key", "deploy_key", "auth_key", "master_key",
    ),
    "password": ("password", "passwords", "passwd", "passphrase", "passcode"),
    "secret": ("secret", "secrets", "clientsecret", "secretkey"),
    "authorization": ("authorization", "bearer"),
    "credentials": ("credential", "credentials"),
    "cookie": ("cookie", "cookies", "csrf", "xsrf", "csrftoken", "xsrftoken", "sessionid", "phpsessid", "jsessionid"),
    "token": ("accesstoken", "authtoken", "refreshtoken", "idtoken", "bearertoken", "apitoken"),
    "ssn": ("ssn", "social_security", "social_security_number"),
    "iban": ("iban",),
    "card": (
        "credit_card", "creditcard", "debit_card", "card_number", "cardnumber", "card_no", "cc_number", "ccnumber",
        "cvv", "cvc", "cvv2", "cvc2",
    ),
}  # fmt: skip
_KINDS = [(f"_{name}_", kind) for kind, names in _NAMES.items() for name in names]

_WHOLE = {"auth": Sensitive("authorization", "credential"), "pwd": Sensitive("password", "no path"), "oldpwd": None}
"""Names that mean it only when nothing else stands beside them."""

_ABOUT = frozenset(
    {"count", "counts", "tokens", "length", "len", "type", "types", "name", "names", "expires", "expiry",
     "expiration", "at", "in", "required", "enabled", "disabled", "policy", "policies", "reset", "changed",
     "status", "limit", "limits", "budget", "usage", "details", "endpoint", "url", "uri", "scope", "scopes",
     "algorithm", "provider", "method", "mode", "version", "size", "max", "min", "present", "valid", "exists",
     "set", "rotation", "manager", "description", "field", "fields", "label", "title", "placeholder", "schema",
     "properties", "hint", "strength", "id", "ids", "consent", "banner", "settings", "param", "parameter",
     "parameters", "header", "updated", "created", "attempts", "failed", "brand", "network", "issuer", "holder",
     "last4", "age", "samesite", "secure", "httponly", "domain", "path", "view", "class", "error", "message",
     "handler", "source", "store", "format", "last"}
)  # fmt: skip
"""Last words that make it a fact about the secret: `password_policy`, `api_key_id`, `token_type`."""

_ISSUED = frozenset(
    {"access", "refresh", "auth", "id", "bearer", "api", "session", "secret", "csrf", "xsrf", "security", "personal",
     "user", "bot", "app", "private", "oauth", "oauth2", "jwt", "service", "device", "verification", "reset",
     "webhook", "deploy", "registry", "github", "gitlab", "slack", "hf", "huggingface", "npm", "pypi", "vault",
     "k8s"}
)  # fmt: skip
"""`<word>_token` is a credential for these."""

_PLAIN = frozenset(
    {"page", "next", "prev", "previous", "continuation", "sync", "cursor", "resume", "pad", "eos", "bos", "unk",
     "sep", "cls", "mask", "stop", "max", "min", "per", "special", "first", "last", "image", "audio", "text",
     "video", "input", "output", "prompt", "completion", "top", "new", "reasoning", "cached", "cost", "draft",
     "start", "end", "think"}
)  # fmt: skip
"""`<word>_token` is none for these: pagination, and the vocabulary of language models."""

_WORD = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|[0-9]+")


@functools.lru_cache(maxsize=65536)
def sensitive(name: str) -> Sensitive | None:
    """Say which kind of secret stands under this name; None when the name says nothing."""
    if len(name) > LONGEST:
        return None
    words = [word.lower() for word in _WORD.findall(name)]
    while len(words) > 1 and words[-1].isdigit():
        words.pop()
    if not words or words[-1] in _ABOUT:
        return None
    if len(words) == 1 and words[0] in _WHOLE:
        return _WHOLE[words[0]]
    if words[-1] == "pwd":
        return Sensitive("password")
    joined = f"_{'_'.join(words)}_"
    for part, kind in _KINDS:
        if part in joined:
            return Sensitive(kind)
    if words[-1] == "token":
        before = words[-2] if len(words) > 1 else ""
        return None if before in _PLAIN else Sensitive("token", "" if before in _ISSUED else "credential")
    return None


def is_credential(value: bytes) -> bool:
    """Whether a value could be an issued token: long, no gaps, letters and digits."""
    return _CREDENTIAL.fullmatch(value) is not None


_CREDENTIAL = re.compile(rb"(?=\S*[0-9])(?=\S*[A-Za-z])\S{16,}")

HEADERS = frozenset(
    {
        b"authorization", b"proxy-authorization", b"cookie", b"set-cookie",
        b"x-api-key", b"api-key", b"x-auth-token", b"x-goog-api-key",
    }
)  # fmt: skip
"""Names of HTTP headers whose value is a secret: `["authorization", "…"]`."""

IDENTITY = re.compile(rb"(?:trace|span|parent)[_.]?(?:span[_.]?)?id$|_ns$|unix[_.]?nano$|timestamp$", re.IGNORECASE)
"""Keys of ids and times, which stay as they came."""
COUNT = re.compile(rb"tokens?$|counts?$|usage|ids?$|_ns$|nano$|time|size|length|bytes$|seed$", re.IGNORECASE)
"""Keys whose numbers are no payment cards, whatever their digits."""
IDENTITY_VALUE = re.compile(rb"[0-9a-fA-F]{1,32}")
