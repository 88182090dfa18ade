"""What is found, what is left alone, and what holds whatever the text."""

# ruff: noqa: E501 (tables of examples)
import base64
import itertools
import json
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flywheel.core.redaction import PLACEHOLDER, BadRule, Mode, Redactor, Rule, check, warnings
from flywheel.core.redaction.secret_names import sensitive

SECRETS = Redactor(Mode.SECRETS, b"a project's key")
STRICT = Redactor(Mode.STRICT, b"a project's key")

JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U"
PEM = "-----BEGIN RSA PRIVATE KEY-----\nMIIEowIBAAKCAQEA0Z3VS5JJcds3xfn\n-----END RSA PRIVATE KEY-----"


def made(kind: str, seed: int) -> str:
    """A secret of this kind, of the right shape, belonging to nobody."""
    rng = random.Random(f"{kind}{seed}")

    def some(alphabet: str, n: int) -> str:
        return "".join(rng.choice(alphabet) for _ in range(n))

    word = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
    if kind == "card":
        digits = "4" + some("0123456789", 14)
        check_digit = next(d for d in "0123456789" if luhn(digits + d))
        return digits + check_digit
    if kind == "jwt":
        body = base64.urlsafe_b64encode(json.dumps({"sub": some(word, 12)}).encode()).decode().rstrip("=")
        return f"eyJhbGciOiJIUzI1NiJ9.{body}.{some(word, 43)}"
    if kind == "private_key":
        return f"-----BEGIN PRIVATE KEY-----\n{some(word, 64)}\n-----END PRIVATE KEY-----"
    return {
        "aws_key": "AKIA" + some("ABCDEFGHIJKLMNOPQRSTUVWXYZ234567", 16),
        "google_key": "AIza7" + some(word, 34),
        "azure_key": "AccountKey=" + some(word, 86) + "==",
        "github_key": "ghp_1" + some(word, 35),
        "gitlab_key": "glpat-1" + some(word, 19),
        "slack_key": f"xoxb-{some('0123456789', 12)}-{some(word, 24)}",
        "stripe_key": "sk_live_1" + some(word, 23),
        "openai_key": "sk-proj-1" + some(word, 47),
        "anthropic_key": "sk-ant-api03-1" + some(word, 90),
        "huggingface_key": "hf_1" + some(word, 33),
    }[kind]


def luhn(digits: str) -> bool:
    total = 0
    for place, digit in enumerate(reversed(digits)):
        doubled = int(digit) * (2 if place % 2 else 1)
        total += doubled - 9 if doubled > 9 else doubled
    return total % 10 == 0


KINDS = (
    "card", "jwt", "private_key", "aws_key", "google_key", "azure_key", "github_key", "gitlab_key", "slack_key",
    "stripe_key", "openai_key", "anthropic_key", "huggingface_key",
)  # fmt: skip


def b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


POSITIONS: dict[str, Callable[[str], Any]] = {
    "value": lambda s: {"note": s},
    "in a sentence": lambda s: {"note": f"here it is: {s}, keep it safe"},
    "key": lambda s: {s: "what it opens"},
    "under a telling name": lambda s: {"password": s},
    "under a telling name, upper case": lambda s: {"X-API-KEY": s},
    "under a telling name, deep": lambda s: {"credentials": {"primary": [{"it": s}]}},
    "list": lambda s: ["a", s, "b"],
    "nested list": lambda s: {"parts": [[{"text": s}]]},
    "JSON in a string": lambda s: {"arguments": json.dumps({"to": "ana", "body": s})},
    "JSON in JSON in a string": lambda s: {"messages": json.dumps([{"content": json.dumps({"x": {"y": s}})}])},
    "key in JSON in a string": lambda s: {"arguments": json.dumps({s: 1})},
    "JSON that was cut off": lambda s: {"arguments": json.dumps({"body": s})[:-2] + "   "},
    "Python's repr": lambda s: {"arguments": repr({"body": s})},
    "base64": lambda s: {"data": b64(s)},
    "base64 in a sentence": lambda s: {"data": f"decode {b64(s)} please"},
    "base64 of JSON": lambda s: {"data": b64(json.dumps({"password": s}))},
    "URL-safe base64": lambda s: {"data": base64.urlsafe_b64encode(f"??>> {s}".encode()).decode()},
    "query": lambda s: {"url": f"https://example.com/a?b=c&key={s.replace(chr(10), '%0A')}&d=e"},
    "header": lambda s: {"log": f"GET / HTTP/1.1\nAuthorization: Bearer {s}\nAccept: */*"},
    "environment": lambda s: {"stdout": f"HOME=/root\nMY_SECRET={s}\nPATH=/bin"},
    "OTLP attribute": lambda s: {"attributes": [{"key": "db.password", "value": {"stringValue": s}}]},
    "name after value": lambda s: {"attributes": [{"value": s, "name": "api_key"}]},
    "pair of a header": lambda s: {"headers": [["cookie", s]]},
    "code": lambda s: {"code": f'client = Client(token="{s}")\nclient.go()'},
    "line of its own": lambda s: {"stdout": f"it is\n{s}\nsays the log"},
    "line of its own in JSON in a string": lambda s: {"arguments": json.dumps({"body": f"it is\r\n{s}\n"})},
    "column of a table": lambda s: {"stdout": f"name\t{s}\t7"},
    "behind a letter with an accent": lambda s: {"text": f"voilà{s}"},
}  # fmt: skip


def dumps(value: Any) -> bytes:
    return json.dumps(value).encode()


# What is found


@pytest.mark.parametrize("where", POSITIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_secret_is_gone_from_wherever_it_stood(kind: str, where: str) -> None:
    secret = made(kind, 1)
    before = dumps(POSITIONS[where](secret))
    after, counts = SECRETS.json(before)
    for form in (secret, json.dumps(secret)[1:-1], b64(secret), b64(secret)[4:-4]):
        assert form.encode() not in after
    assert json.loads(after)
    assert sum(counts.values()) >= 1
    assert SECRETS.json(after)[0] is after or SECRETS.json(after)[0] == after


def test_hundreds_of_secrets_in_every_position() -> None:
    missed = []
    for seed, (where, kind) in enumerate(itertools.islice(itertools.cycle(itertools.product(POSITIONS, KINDS)), 364)):
        secret = made(kind, seed)
        after, _ = SECRETS.json(dumps(POSITIONS[where](secret)))
        shown = after.decode() + " ".join(_decodings(after.decode()))
        if secret in shown or json.dumps(secret)[1:-1] in shown:
            missed.append((kind, where))
    assert missed == []


def _decodings(text: str) -> list[str]:
    words = text.replace('"', " ").replace("\\", " ").split()
    return [base64.b64decode(word + "===").decode("latin-1") for word in words if len(word) > 20 and word.isalnum()]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("password=hunter2", "password"),
        ("password: hunter2.", "password"),
        ("the password is hunter2", "password"),
        ("'password': 'correct horse'", "password"),
        ("run it with --api-key abc123def", "api_key"),
        ("run it with --password hunter", "password"),
        ("?user=a&access_token=abcdefgh1&x=1", "token"),
        ("postgres://app:s3cr3t@db.internal:5432/app", "url_password"),
        ("curl -H 'Authorization: Basic dXNlcjpwYXNzd29yZA=='", "password"),
        ("Authorization: Bearer abcdefghijklmnop", "authorization"),
        ("AKIAABCDEFGHIJKLMNOP", "aws_key"),
        ("Cookie: sid=abc; theme=dark", "cookie"),
        ("card 4111 1111 1111 1111 please", "card"),
        ("card 4111-1111-1111-1111", "card"),
        ("378282246310005", "card"),
        ("3782 822463 10005", "card"),
        (JWT, "jwt"),
        (PEM, "private_key"),
        (PEM[:60], "private_key"),
    ],
)
def test_text_is_read(text: str, kind: str) -> None:
    after, counts = SECRETS.text(text)
    assert counts[kind] >= 1, after
    assert f"[redacted:{kind}:" in after


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("write to ana.silva@example.com today", "email"),
        ("call +351 912 345 678", "phone"),
        ("call +14155552671 now", "phone"),
        ("call (415) 555-2671", "phone"),
        ("pay DE89 3704 0044 0532 0130 00 now", "iban"),
        ("GB82WEST12345698765432", "iban"),
        ("ssn 078-05-1120", "ssn"),
    ],
)
def test_strict_finds_people_too_and_secrets_does_not(text: str, kind: str) -> None:
    after, counts = STRICT.text(text)
    assert counts == {kind: 1}
    assert f"[redacted:{kind}:" in after
    if kind != "ssn":
        assert SECRETS.text(text) == (text, {})


def test_a_whole_value_goes_under_a_telling_name() -> None:
    before = {"db": {"password": "x y z", "user": "ana"}, "pin": 3, "card_number": 4111111111111111, "secret": 123456}
    after, counts = SECRETS.value(before)
    assert after["db"]["user"] == "ana"
    assert after["pin"] == 3
    assert PLACEHOLDER.fullmatch(after["db"]["password"].encode())
    assert after["card_number"].startswith("[redacted:card:")
    assert after["secret"].startswith("[redacted:secret:")
    assert counts == {"password": 1, "card": 1, "secret": 1}


def test_equal_values_stay_equal_and_only_in_one_project() -> None:
    (a, _), (b, _) = SECRETS.text("4111 1111 1111 1111"), SECRETS.text("pay 4111-1111-1111-1111")
    assert a == b.removeprefix("pay ")
    other, _ = Redactor(Mode.SECRETS, b"another key").text("4111 1111 1111 1111")
    assert other != a
    assert STRICT.text("Ana@Example.com")[0] == STRICT.text("ana@example.com")[0]


def test_a_key_is_the_same_in_a_header_and_by_itself() -> None:
    key = made("openai_key", 5)
    alone = SECRETS.text(key)[0]
    header = SECRETS.value({"authorization": f"Bearer {key}"})[0]["authorization"]
    assert header.split(":")[-1] == alone.split(":")[-1]


# What is left alone

HARMLESS = {
    "gen_ai.usage.input_tokens": 412, "gen_ai.usage.output_tokens": 31, "llm.token_count.prompt": 5, "max_tokens": 4096,
    "token_count": 3, "next_page_token": "CAUQAA_9f8e7d6c5b4a", "tokens": ["a", "b"], "eos_token": "<|im_end|>",
    "logprobs": {"content": [{"token": " hello", "logprob": -0.5123456789012345, "bytes": [32, 104]}]},
    "prompt_token_ids": [151644, 8948, 198], "trace_id": "4111111111111111d694511639f9fe8e", "span_id": "4111111111111111",
    "start_ns": "4111111111111111", "start_time_unix_nano": "1763722543123456789", "order": "1763722543123",
    "id": "chatcmpl-Ab12Cd34Ef56Gh78Ij90Kl12Mn34", "call": "call_Ab12Cd34Ef56Gh78Ij90Kl12", "password_policy": "at least ten",
    "api_key_id": "ak_7", "token_type": "Bearer", "has_password": True, "password": None, "secret": "",
    "tools": [{"name": "log_in", "parameters": {"type": "object", "required": ["user", "password"], "properties": {
        "password": {"type": "string", "description": "the person's password, ten characters"}}}}],
    "text": "I forgot my password. Is the token missing? The secret is out: the authorization was refused. Cookies are fine.",
    "code": "def f(password: str, api_key=None): return login(password=password, token=self.token, key=os.environ['API_KEY'])",
    "uuid": "0e4f1111-1111-4111-8111-111111111111", "hash": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "when": "2026-03-01 10:00:00+01:00", "git": "sha256:41111111111111111", "sum": "1 + 2 = 3", "PWD": "/home/ana",
    "url": "https://example.com:8443/a@b", "email": "ana@example.com", "phone": "+351 912 345 678", "view": "def list(auth=Key(Scope.READ)): secret = public or other; --auth=peer", "css": "sk-fading-circle-loader",
}  # fmt: skip


def test_what_is_no_secret_is_not_touched() -> None:
    raw = dumps(HARMLESS)
    after, counts = SECRETS.json(raw)
    assert counts == {}
    assert after is raw
    value, _ = SECRETS.value(HARMLESS)
    assert value is HARMLESS


def test_the_rest_of_a_text_stays_byte_for_byte() -> None:
    before = (
        b'{ "a":1.50, "big":123456789012345678901234567890,"e":1E5 ,"password":"x12", "n":-0.0,"u":"\\u00e9\xc3\xa9" }'
    )
    after, _ = SECRETS.json(before)
    placeholder = PLACEHOLDER.search(after)
    assert placeholder
    assert after.replace(placeholder.group(), b"x12") == before


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("password", "password"), ("dbPassword", "password"), ("http.request.header.authorization", "authorization"),
        ("X-Api-Key", "api_key"), ("OPENAI_API_KEY", "api_key"), ("clientSecret", "secret"), ("set-cookie", "cookie"),
        ("accessToken", "token"), ("refresh_token", "token"), ("mysql_pwd", "password"), ("password2", "password"),
        ("privateKey", "private_key"), ("creditCardNumber", "card"), ("customer.ssn", "ssn"), ("IBAN", "iban"),
        ("input_tokens", None), ("token_count", None), ("session.id", None), ("author", None), ("cookie_consent", None),
        ("secretary", None), ("authored_by", None), ("page_token", None), ("passenger", None), ("compass", None),
    ],
)  # fmt: skip
def test_names(name: str, kind: str | None) -> None:
    known = sensitive(name)
    assert (known.kind if known else None) == kind


def test_off_is_off() -> None:
    assert Redactor(Mode.OFF).json(b'{"password": "x"}') == (b'{"password": "x"}', {})


# What holds whatever the text

LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(),
    st.sampled_from([made(kind, 3) for kind in KINDS]),
    st.sampled_from(["password=hunter2", "a@b.co", "[redacted:password:0123abcd]", "Bearer abcdefgh12345678", '{"password": "x1y"}',
                     "password: [redacted:password:0123abcd]", "pw " + PEM, '{"a": "\\ud800 token=abcdef1234"}', "+14155552671"]),
    st.text("password=: \"'{}[]\\,123redacted@.", max_size=60),
)  # fmt: skip
KEYS = st.one_of(
    st.text(max_size=20), st.sampled_from(["password", "token", "name", "value", "key", "authorization", "type"])
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(KEYS, inner, max_size=4),
        inner.map(json.dumps),
        inner.map(lambda value: b64(json.dumps(value))),
    ),
    max_leaves=12,
)
RULES = (Rule("numbers", r"\d{3,}", "number"), Rule("words", r"(?i)red\w*", "red"))


@settings(max_examples=300)
@given(VALUES, st.sampled_from([SECRETS, STRICT, Redactor(Mode.SECRETS, b"k", RULES)]))
def test_json_stays_json_and_twice_is_once(value: Any, redactor: Redactor) -> None:
    raw = dumps(value)
    once, counts = redactor.json(raw)
    json.loads(once)
    assert (once is raw) == (not counts) or once == raw
    assert redactor.json(once)[0] == once
    again, _ = redactor.value(json.loads(once))
    assert dumps(again) == dumps(json.loads(once))


@settings(max_examples=300)
@given(
    st.lists(st.one_of(VALUES.map(dumps), st.binary(max_size=20)), max_size=6),
    st.sampled_from([SECRETS, STRICT, Redactor(Mode.SECRETS, b"k", RULES), Redactor(Mode.OFF)]),
)
def test_looking_at_all_texts_at_once_misses_none(texts: list[bytes], redactor: Redactor) -> None:
    touched = {index for index, text in enumerate(texts) if redactor.json(text)[0] is not text}
    assert touched <= redactor.suspects(texts)
    assert redactor.mode is not Mode.OFF or not redactor.suspects(texts)


def test_of_clean_texts_none_is_suspect() -> None:
    clean, held = dumps({"to": "Ana", "n": 12}), dumps({"password": "hunter2"})
    assert SECRETS.suspects([clean] * 5) == set()
    assert SECRETS.suspects([held, clean, held, held, clean]) == {0, 2, 3}


@settings(max_examples=300)
@given(
    st.one_of(
        st.binary(),
        st.text().map(lambda text: text.encode("utf-8", "surrogatepass")),
        st.text('{}[]":,\\password=12 ').map(str.encode),
    )
)
def test_any_bytes_are_taken(raw: bytes) -> None:
    for redactor in (SECRETS, STRICT):
        once, _ = redactor.json(raw)
        assert redactor.json(once)[0] == once


@given(st.text("0123456789abcdef", min_size=16, max_size=32), st.integers(0, 2**64 - 1))
def test_ids_and_times_are_never_touched(digits: str, number: int) -> None:
    span = {"token_ids": [number], "trace_id": digits, "spanId": digits[:16], "parent_id": digits[:16], "start_ns": str(number), "end_ns": number,
            "usage": {"input_tokens": number, "total_token_count": number}, "password": "gone already?"}  # fmt: skip
    after, _ = STRICT.value(span)
    assert {**after, "password": ""} == {**span, "password": ""}


@pytest.mark.parametrize(
    "raw",
    [
        b"[" * 100_000, b'{"a":' * 50_000 + b"1" + b"}" * 50_000, b'{"password": ' + b"9" * 10_000 + b"}",
        b'{"password": "' + b"a" * 1_000_000 + b'"}', b"password=" * 20_000, b"eyJ" * 50_000, b"-----BEGIN " * 10_000,
        b"+1 " * 50_000, b"A1" * 100_000, b"ZDZD" * 50_000, b"://a:" * 30_000, b'"\\ud800 password=abc12"', b"\xff\xfe password=abc12",
        b"[redacted:" * 20_000, b'{"password": "\\u0000\\ud800"}',
    ],
    ids=range(15),
)  # fmt: skip
def test_hostile_texts_are_taken_in_time(raw: bytes) -> None:
    for redactor in (SECRETS, STRICT):
        once, _ = redactor.json(raw)
        assert redactor.json(once)[0] == once


def test_what_json_cannot_say_is_redacted_in_its_parts() -> None:
    value = {"when": object(), "a": [{"password": "hunter2"}, {1, 2}], "text": "password=hunter2"}
    after, counts = SECRETS.value(value)
    assert after["when"] is value["when"]
    assert after["a"][1] == {1, 2}
    assert "hunter2" not in str(after)
    assert counts == {"password": 2}
    assert SECRETS.value({"password": "x", "b": b"x"})[0]["password"].startswith("[redacted:")


# A project's own rules


def test_a_rule_finds_inside_json_in_a_string() -> None:
    redactor = Redactor(Mode.SECRETS, b"k", [Rule("customers", r"\bC-\d{6}\b", "customer")])
    after, counts = redactor.value({"arguments": '{"id": "C-123456", "n": 1}', "other": "C-1234567"})
    assert counts == {"customer": 1}
    assert after["other"] == "C-1234567"
    assert json.loads(after["arguments"])["id"].startswith("[redacted:customer:")


@pytest.mark.parametrize(
    "pattern",
    ["^sec.et$", "^sec", "cret$", r"\bsecret\b", r"\Asecret\z", "(?s)s.*t", 'e"c', "e\\\\nc", "(?i)SECRET", "é"],
)
@pytest.mark.parametrize(
    "text",
    ["secret", "a secret", "secret a", "sec\nret", 'e"c', "e\nc", "e\\nc", "é", '{"a": "secret"}', '[["secret", 1]]'],
)
def test_looking_at_all_strings_at_once_misses_nothing(pattern: str, text: str) -> None:
    rule = [Rule("r", pattern, "k")]
    fast, slow = Redactor(Mode.SECRETS, b"k", rule), Redactor(Mode.SECRETS, b"k", rule)
    slow._any_rule = None
    for value in ({"x": text}, {"x": [json.dumps({"y": text, "z": "other"})]}, {text: 1}, text, [text, "b"]):
        assert fast.value(value) == slow.value(value)


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        (("r", "(", "k"), "cannot be read"),
        (("r", r"(?=a)b", "k"), "cannot be read"),
        (("r", "", "k"), "1 to 1000 characters"),
        (("r", "a*", "k"), "the empty text"),
        (("r", r"\b", "k"), "the empty text"),
        (("r", r"$", "k"), "the empty text"),
        (("", "abc", "k"), "name"),
        (("r", "abc", "No Kind"), "kind"),
        (("r", "((a{1,100}){1,100}){1,100}", "k"), "cannot be read"),
    ],
)
def test_a_bad_rule_is_refused(rule: tuple[str, str, str], said: str) -> None:
    with pytest.raises(BadRule, match=said):
        check(Rule(*rule))


def test_a_rule_that_takes_too_long_redacts_the_whole_value_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count()
    monkeypatch.setattr("flywheel.core.redaction.redaction_rules.time.thread_time", lambda: float(next(clock)))
    redactor = Redactor(Mode.SECRETS, b"k", [Rule("slow", "abc", "mine")])
    after, counts = redactor.text("x" * 80_000)
    assert PLACEHOLDER.fullmatch(after.encode())
    assert after.startswith("[redacted:mine:")
    assert warnings(counts) == ["the redaction rule 'slow' took too long on 1 values, which were redacted as a whole"]


def test_a_rule_sees_what_lies_across_two_windows() -> None:
    rule = Rule("r", r"\d{9}", "k")
    for offset in (16_370, 16_380, 14_335, 14_330, 30_000):
        text = b"x" * offset + b"123456789" + b"x" * 40_000
        assert rule.find(text) == [(offset, offset + 9)]


def test_the_version_says_what_was_looked_for() -> None:
    assert SECRETS.version == "1-secrets"
    with_rules = Redactor(Mode.STRICT, b"k", [Rule("r", "abc", "k")])
    assert with_rules.version.startswith("1-strict-")
    assert with_rules.version == Redactor(Mode.STRICT, b"other", [Rule("r", "abc", "k")]).version


def test_a_report_says_where_and_never_what() -> None:
    found = STRICT.findings({"attributes": {"to": "ana@example.com", "input": '[{"password": "hunter2"}]'}})
    assert [(item.path, item.kind) for item in found] == [
        ("attributes.to", "email"),
        ("attributes.input.password", "password"),
    ]
    assert found[0].shown == "xxx@xxxxxxx.xxx"
    assert "hunter" not in str(found)
