"""Values that give themselves away: payment cards, keys of known issuers, JWTs, private keys, e-mail addresses, …

Every pattern is RE2's: linear in the text, whatever the text. `near` is a cheap superset of `pattern`; the union of
them is one automaton that reads a whole span in a few microseconds, and only where it stops does anything else run.
"""

import binascii
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import re2

from flywheel.core.redaction.secret_names import is_credential, sensitive

Span = tuple[int, int, str]
"""From, to, kind."""


class Shape(NamedTuple):
    near: str
    find: Callable[[bytes], Iterator[Span]]
    strict: bool = False


def compiled(pattern: str) -> Any:
    """An RE2 over bytes: `\\w`, `\\b` and case mean ASCII."""
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.log_errors = False
    return re2.compile(pattern.encode("latin-1"), options)


def _fixed(kind: str, pattern: str, near: str, *, ok: Callable[[bytes], object] = bool, strict: bool = False) -> Shape:
    """Make the shape of texts that match `pattern` (its first group, where it has one) and are `ok`."""
    regex = compiled(pattern)
    group = 1 if regex.groups else 0

    def find(text: bytes) -> Iterator[Span]:
        for match in regex.finditer(text):
            if ok(match.group(group)):
                start, end = match.span(group)
                yield start, end, kind

    return Shape(near, find, strict)


def _has_digit(value: bytes) -> bool:
    return _DIGIT.search(value) is not None


_DIGIT = re.compile(rb"[0-9]")


# Numbers with a check


def is_card(value: bytes) -> bool:
    """Digits of a known issuer, in the length that it uses, with a right check digit."""
    digits = value.translate(None, b" -")
    return bool(_ISSUER.fullmatch(digits)) and len(set(digits)) > 1 and _luhn(digits)


_ISSUER = re.compile(
    rb"4(?:\d{12}|\d{15}|\d{18})"  # Visa
    rb"|(?:5[1-5]\d\d|222[1-9]|22[3-9]\d|2[3-6]\d\d|27[01]\d|2720)\d{12}"  # Mastercard
    rb"|3[47]\d{13}"  # American Express
    rb"|(?:6011|64[4-9]\d|65\d\d)\d{12}(?:\d{3})?"  # Discover
    rb"|3(?:0[0-5]|[689]\d)\d{11}"  # Diners Club
    rb"|35(?:2[89]|[3-8]\d)\d{12}"  # JCB
    rb"|62\d{14,17}"  # UnionPay
    rb"|(?:5018|5020|5038|5893|6304|6759|676[1-3])\d{9,15}"  # Maestro
)


def _luhn(digits: bytes) -> bool:
    total = 0
    for place, byte in enumerate(reversed(digits)):
        digit = byte - 48
        if place % 2:
            digit = digit * 2 - 9 if digit > 4 else digit * 2
        total += digit
    return total % 10 == 0


def _cards(text: bytes) -> Iterator[Span]:
    for match in _CARD.finditer(text):
        start, end = match.span()
        before, after = text[start - 1 : start], text[end : end + 2]
        if before.isalnum() or (before in (b".", b"_", b"-") and text[start - 2 : start - 1].isalnum()):
            continue
        if after[:1].isalnum() or after[:1] == b"_" or (after[:1] in (b".", b"-") and after[1:].isdigit()):
            continue
        if is_card(match.group()):
            yield start, end, "card"


_CARD = compiled(
    r"[2-6]\d{12,18}|[2-6]\d{3}[ -]\d{4}[ -]\d{4}[ -]\d{4}(?:[ -]\d{3})?"
    r"|3\d{3}[ -]\d{6}[ -]\d{4,5}|[2-6]\d{3}[ -]\d{4}[ -]\d{5}"
)


def is_iban(value: bytes) -> bool:
    text = value.translate(None, b" ").upper()
    if not 15 <= len(text) <= 34 or _IBAN_LENGTH.get(text[:2].decode("latin-1"), 0) != len(text):
        return False
    return int("".join(str(int(chr(byte), 36)) for byte in text[4:] + text[:4])) % 97 == 1


_IBAN_LENGTH = {
    code: length
    for length, codes in {
        15: "NO", 16: "BE", 18: "DK FI FO GL NL SD", 19: "MK SI", 20: "AT BA EE KZ LT LU MN XK",
        21: "CH HR LI LV", 22: "BG BH CR DE GB GE IE ME RS VA", 23: "AE GI IL IQ OM SO TL",
        24: "AD CZ ES MD PK RO SA SE SK TN VG", 25: "PT ST LY", 26: "IS TR", 27: "BI DJ FR GR IT MC MR SM",
        28: "AL AZ BY CY DO GT HU LB NI PL SV", 29: "BR EG PS QA UA", 30: "JO KW MU YE", 31: "MT SC", 32: "LC",
        33: "RU",
    }.items()
    for code in codes.split()
}  # fmt: skip


def _ibans(text: bytes) -> Iterator[Span]:
    for match in _IBAN.finditer(text):
        start, end = match.span()
        length = _IBAN_LENGTH.get(text[start : start + 2].decode("latin-1"), 0)
        taken = 0
        for place in range(start, end):
            taken += text[place] != 0x20
            if taken == length:
                end = place + 1
                break
        if not text[start - 1 : start].isalnum() and not text[end : end + 1].isalnum() and is_iban(text[start:end]):
            yield start, end, "iban"


_IBAN = compiled(r"[A-Z]{2}\d\d(?: ?[A-Z0-9]){11,30}")


def _is_basic(value: bytes) -> bool:
    shown = shown_by(value)
    return shown is not None and b":" in shown


# Secrets in running text: `password=…`, `"api_key": "…"`, `--token …`, headers


def _pairs(text: bytes) -> Iterator[Span]:
    at = 0
    while (match := _PAIR.search(text, at)) is not None:
        at = match.end(2)  # a value that is none may be the next name
        found = _named_secret(text, match, match.group(1).lstrip(b"-"), 3, match.group(2) == b"=")
        if found is not None:
            yield found
            at = found[1]


def _flags(text: bytes) -> Iterator[Span]:
    at = 0
    while (match := _FLAG.search(text, at)) is not None:
        at = match.end(1)
        found = _named_secret(text, match, match.group(1), 2, True)
        if found is not None:
            yield found
            at = found[1]


def _named_secret(text: bytes, match: Any, name: bytes, first: int, tight: bool) -> Span | None:
    """The secret that stands beside a name, in the group that matched of three."""
    quoting = next(place for place in range(3) if match.group(first + place) is not None)
    start, end = match.span(first + quoting)
    found = None if text[end : end + 1] in _CALLED else _value(name, text[start:end], quoting < 2, tight)
    if found is None:
        return None
    kind, value = found
    if end - start < 200:
        return start, start + len(value), kind
    rest = _REST[quoting].match(text, end)
    return start, rest.end() if rest else end, kind


_CALLED = (b"(", b"[", b"{")
"""`auth=Key(…)` is code."""


def _value(name: bytes, value: bytes, quoted: bool, tight: bool) -> tuple[str, bytes] | None:
    """The kind of secret and the secret itself, or None when this is no secret."""
    known = sensitive(name.decode("latin-1"))
    if known is None:
        return None
    if not quoted:
        value = value.rstrip(b".?:")
    if known.only == "credential" and not is_credential(value):
        return None
    if known.only == "no path" and value[:1] in (b"/", b"~", b"."):
        return None
    return (known.kind, value) if _is_said(value, quoted=quoted, name=name, tight=tight) else None


def _is_said(value: bytes, *, quoted: bool, name: bytes, tight: bool) -> bool:
    """Whether this is a value and no word of a sentence, no type, no reference in code."""
    lower = value.lower()
    if not value or lower in _NO_VALUE or lower == name.lower() or value[:1] in (b"$", b"%", b"<", b"*"):
        return False
    if quoted:
        return len(value) >= 3
    if len(value) < 4 or value.startswith(
        (b"os.", b"process.", b"env.", b"self.", b"--", b"http://", b"https://", b"/")
    ):
        return False
    if _has_digit(value) or _SIGN.search(value) is not None:
        return True
    return tight and value.isalpha()


_SIGN = re.compile(rb"[!@#$%^*+?|~]")
_NO_VALUE = frozenset(
    b"none null true false undefined str string int text any optional required secret bytes bool input hidden redacted"
    b" filtered removed missing invalid expired wrong incorrect empty unset yes no".split()
)
_KEYS = (
    r"passw(?:or)?ds?|passphrase|passcode|pwd|secrets?|credentials?|authorization|cookies?|bearer|[cx]srf|(?-i:sessionid|SESSIONID)|sessid|ssn|iban"
    r"|(?:api|access|private|signing|encryption|subscription|account|shared|ssh|deploy|auth|master)[_. -]?key"
    r"|social[_. -]?security|(?:credit|debit)[_. -]?card|card[_. -]?n(?:umber|o)|cc[_-]?number|cv[vc]2?|\bauth"
)
_GIVEN = r"""(?:\\*"([^"\\\r\n]{1,200})|\\*'([^'\\\r\n]{1,200})|([^\s"'&,;<>{}()\[\]\\`|]{1,200}))"""
_REST = {
    0: re.compile(rb"""[^"\\\r\n]*"""),
    1: re.compile(rb"""[^'\\\r\n]*"""),
    2: re.compile(rb"""[^\s"'&,;<>{}()\[\]\\`|]*"""),
}
"""By how it is quoted: the first 200 bytes tell what a value is, and then the rest of it goes too."""
_PAIR = compiled(
    rf"""(?i)([A-Z0-9_.-]{{0,60}}(?:{_KEYS}|token)[A-Z0-9_.-]{{0,24}})(\\*["']?\s{{0,3}}(?:[:=]|=>)\s{{0,3}}|\s+is:?\s+){_GIVEN}"""
)
_FLAG = compiled(rf"(?i)--([A-Z0-9-]{{0,40}}(?:{_KEYS}|token)[A-Z0-9-]{{0,24}})\s+{_GIVEN}")


def _headers(text: bytes) -> Iterator[Span]:
    for match in _HEADER.finditer(text):
        value = match.group(2).rstrip()
        scheme = _SCHEME.match(value)
        if len(value) >= 8 and (scheme or _has_digit(value) or b"=" in value):
            start = match.start(2)
            kind = "cookie" if match.group(1).lower().endswith(b"cookie") else "authorization"
            yield start + (scheme.end() if scheme else 0), start + len(value), kind


_HEADER = compiled(
    r"""(?i)\b(cookie|set-cookie|authorization|proxy-authorization|x-api-key)\\*["']?\s?:\s?\\*["']?([^\r\n"'\\]+)"""
)
_SCHEME = re.compile(rb"(?:bearer|basic|token|digest)\s+", re.IGNORECASE)


# Base64


def wrapped(text: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Each piece of base64 that wraps text: from, to, and the text."""
    at = 0
    while (match := _BASE64.search(text, at)) is not None:
        start, end = match.span()
        shown = shown_by(match.group())
        if shown is not None:
            yield start, end, shown
        at = end if shown is not None else start + 1


def shown_by(value: bytes) -> bytes | None:
    """The text that this base64 wraps, or None when it wraps none."""
    plain = value.rstrip(b"=").translate(_STANDARD)
    try:
        shown = binascii.a2b_base64(plain[: len(plain) - (len(plain) % 4 == 1)] + b"==")
    except binascii.Error:
        return None
    return shown if shown and shown.isascii() and not shown.translate(None, _PRINTABLE) else None


_QUAD = r"[CDI-Za-f][AC-HQS-Xgi-nwyz0-3][ABEFIJMNQRUVYZcdghklopstwx014589][A-Za-z0-9+/_-]"
"""Three bytes of ASCII in base64: a high bit that is always 0 leaves few letters. Ids never look like five of them."""
_WRAPPED = rf"(?:{_QUAD}){{5}}"
_BASE64 = compiled(rf"{_WRAPPED}[A-Za-z0-9+/_-]*={{0,2}}")
_STANDARD = bytes.maketrans(b"-_", b"+/")
_PRINTABLE = bytes(range(32, 127)) + b"\t\r\n"


# All of them


def _token(kind: str, pattern: str, near: str, ok: Callable[[bytes], object] = bool) -> Shape:
    """A key with a known beginning, which no letter precedes."""
    return _fixed(kind, rf"(?:^|[^A-Za-z0-9])({pattern})", near, ok=ok)


_ESCAPE = r"\\(?:[bfnrt]|u[0-9A-Fa-f]{4})"
"""How JSON writes what stands between words: its last sign looks like one of the word that follows."""
_BEGIN = rf"(?:\b|{_ESCAPE})"
_NEAR_KEYS = _KEYS.replace(r"\b", _BEGIN).replace("n(?:umber|o)", "number")
_NEAR_PAIR = (
    rf"(?:(?i:{_NEAR_KEYS})|(?i:card[_. -]?no)(?:[A-Z0-9_.-]|\b))"
    r"[A-Za-z0-9_.-]{0,24}(?:\\*[\"']|\s{0,3}[:=]|\sis:?\s)"
    r"|(?i:token)[A-Za-z0-9_.-]{0,24}(?:\\*[\"']\s{0,3}:\s{0,3}\\*[\"'][^\"'\\\s]{16}|\s?=|:\s|\sis:?\s)"
    r"|(?i:(?:access|refresh|auth|id|bearer|api|session|secret|security|user|bot|app)[_. -]?token)\\*[\"']"
    rf"|--[A-Za-z0-9-]{{0,40}}(?i:{_KEYS}|token)"
)
SHAPES: tuple[Shape, ...] = (
    _fixed(
        "private_key",
        r"-----BEGIN [A-Z ]{0,20}PRIVATE KEY(?: BLOCK)?-----"
        r"(?:(?s:.)*?-----END [A-Z ]{0,20}PRIVATE KEY(?: BLOCK)?-----|(?s:.)*)",
        r"-----BEGIN",
    ),
    _fixed("jwt", r"\beyJ[\w-]{10,}\.[\w-]{10,}(?:\.[\w-]*){0,3}", r"eyJ"),
    _fixed(
        "url_password",
        r"[A-Za-z][A-Za-z0-9+.-]*://[^\s/:@\"'<>\\]*:([^\s/@\"'<>\\\[]+)@",
        r"://[^\s/:@\"]*:[^\s/@\"]+@",
    ),
    _token("aws_key", r"(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}\b", r"AKIA|ASIA|ABIA|ACCA"),
    _token("google_key", r"AIza[\w-]{35}|ya29\.[\w-]{20,}|GOCSPX-[\w-]{28}", r"AIza|ya29\.|GOCSPX-"),
    _fixed(
        "azure_key",
        r"(?:AccountKey|SharedAccessKey)=([A-Za-z0-9+/=]{40,})|\b[\w~.]{3}\dQ~[\w~.-]{31,34}",
        r"AccountKey=|SharedAccessKey=|\dQ~",
    ),
    _fixed("azure_key", r"(?i)\bsig=([A-Z0-9%+/=]{40,})", rf"(?i:{_BEGIN}sig=)"),
    _token("github_key", r"gh[pousr]_[A-Za-z0-9]{30,}|github_pat_\w{22,}", r"gh[pousr]_|github_pat_"),
    _token(
        "gitlab_key",
        r"gl(?:pat|dt|rt|cbt|ptt|ft|soat|imt|agent)-[\w.-]{20,}",
        r"gl(?:pat|dt|rt|cbt|ptt|ft|soat|imt|agent)-",
    ),
    _token(
        "slack_key",
        r"xox[abeoprs]-[\w-]{10,}|xapp-[\w-]{10,}|hooks\.slack\.com/services/[\w/-]{20,}",
        r"xox[abeoprs]-|xapp-|hooks\.slack",
    ),
    _token("stripe_key", r"[sr]k_(?:live|test)_\w{16,}|whsec_[A-Za-z0-9+/]{24,}", r"[sr]k_(?:live|test)_|whsec_"),
    _token("anthropic_key", r"sk-ant-[\w-]{20,}", r"sk-ant"),
    _token("openai_key", r"sk-[\w-]{20,}", rf"{_BEGIN}sk-|_sk-", ok=_has_digit),
    _token("huggingface_key", r"(?:hf_|api_org_)[A-Za-z0-9]{30,}", r"hf_[A-Za-z0-9]{9}|api_org_"),
    _token("flywheel_key", r"fw_[0-9a-f]{12}_[\w-]{20,}", r"fw_[0-9a-f]{12}_"),
    _token(
        "provider_key",
        r"npm_[A-Za-z0-9]{36}|pypi-[\w-]{50,}|SG\.[\w-]{16,}\.[\w-]{16,}|gsk_[A-Za-z0-9]{40,}|xai-[A-Za-z0-9]{60,}|r8_[A-Za-z0-9]{37}"
        r"|nvapi-[\w-]{40,}|dapi[0-9a-f]{32}|do[por]_v1_[0-9a-f]{64}|shp(?:at|ca|pa|ss)_[0-9a-fA-F]{32}|lin_api_[A-Za-z0-9]{40}"
        r"|\d{8,10}:AA[\w-]{33}|PMAK-[0-9a-f-]{50,}|dckr_pat_[\w-]{20,}|sntrys_[\w+/=-]{40,}|tvly-[\w-]{20,}",
        r"npm_|pypi-|SG\.|gsk_|xai-|r8_|nvapi-|dapi[0-9a-f]{8}|do[por]_v1_|shp(?:at|ca|pa|ss)_|lin_api_|:AA[\w-]{8}|PMAK-|dckr_pat_|sntrys_|tvly-",
    ),
    _fixed("token", r"(?i)\bbearer\s+([A-Z0-9._~+/-]{16,}=*)", r"(?i:bearer)\s", ok=is_credential),
    _fixed("password", r"(?i)\bbasic\s+([A-Z0-9+/]{12,}={0,2})", r"(?i:basic)\s", ok=_is_basic),
    Shape(r"(?i:cookie|authorization|x-api-key)\\*[\"']?\s?:", _headers),
    Shape(_NEAR_PAIR, _pairs),
    Shape("", _flags),
    Shape(
        rf"(?:^|[^0-9A-Za-z.]|{_ESCAPE})\.?[2-6]\d{{3}}(?:\d{{9}}|[ -]\d{{4}}(?:[ -]\d{{4}}|\d{{2}}[ -]\d{{4}}))",
        _cards,
    ),
    _fixed(
        "email",
        r"[A-Za-z0-9._%+-]{1,64}(?:@|%40)(?:[A-Za-z0-9-]{1,63}\.){1,8}[A-Za-z]{2,24}",
        r"(?:@|%40)[A-Za-z0-9-]+\.",
        strict=True,
    ),
    Shape(r"[A-Z]{2}\d\d ?[A-Z0-9]{4}", _ibans, strict=True),
    _fixed(
        "phone",
        r"(?:^|[^\w+.-])(\+[1-9]\d{0,2}[ .-]?(?:\(\d{1,4}\)[ .-]?)?\d(?:[ .-]?\d){5,12}"
        r"|\([2-9]\d\d\) ?\d{3}[-. ]\d{4}|[2-9]\d\d([-.])\d{3}[-.]\d{4})(?:$|[^\w-])",
        r"\+[1-9][0-9 .(-]{6}|\d\d\) ?\d{3}[-. ]\d{4}|\d{3}[-.]\d{3}[-.]\d{4}",
        strict=True,
    ),
    _fixed(
        "ssn",
        r"(?:^|[^\w-])((?:00[1-9]|0[1-9]\d|[1-578]\d\d|6[0-57-9]\d|66[0-57-9])-\d\d-\d{4})(?:$|[^\w-])",
        r"\d{3}-\d{2}-\d{4}",
        strict=True,
    ),
)


def near(*, strict: bool) -> Any:
    """One automaton that stops at whatever could be found, also behind the escapes of JSON in JSON."""
    parts = [shape.near for shape in SHAPES if shape.near and (strict or not shape.strict)]
    return compiled("|".join([*parts, _WRAPPED, r"\\u00[2-7]|\\/"]))
