"""A key goes to the hosts that its operator has bound it to and to no other, by whichever way a server is asked."""

import pytest

from flywheel.core.envs.policy_rollouts import EngineError
from flywheel.core.network.key_hosts import refusal
from flywheel.trajectories.ingest.gateway.routing import NoRoute, Route, keyed
from workers.engines.engine_endpoints import open_engine


@pytest.mark.parametrize(
    ("hosts", "url", "is_refused"),
    [
        (None, "https://api.openai.com/v1", True),
        ("api.openai.com", "https://api.openai.com/v1", False),
        ("api.openai.com", "https://API.OpenAI.com:443/v1", False),
        ("api.openai.com:443", "https://api.openai.com/v1", False),
        ("gpu-1:8000, api.openai.com", "http://gpu-1:8000/v1", False),
        ("api.openai.com", "http://api.openai.com/v1", True),
        ("api.openai.com", "https://api.openai.com:99999/v1", True),
        ("api.openai.com:80", "http://api.openai.com/v1", False),
        ("gpu-1:8000", "http://gpu-1:9000/v1", True),
        ("api.openai.com:443", "http://api.openai.com/v1", True),
        ("api.openai.com", "https://api.openai.com.evil.example/v1", True),
        ("api.openai.com", "https://evil.example/api.openai.com/v1", True),
        ("api.openai.com", "https://api.openai.com@evil.example/v1", True),
        ("api.openai.com", "https://evil.example\\@api.openai.com/v1", True),
        ("localhost, [::1]", "http://localhost:8000/v1", False),
        ("localhost, [::1]", "http://[::1]:8000/v1", False),
        ("127.0.0.1", "http://127.0.0.1:8000/v1", False),
        ("[fd12::1]:8000", "http://[fd12::1]:8000/v1", False),
        ("gpu-1", "http://gpu-1:8000/v1", True),
        ("", "https://api.openai.com/v1", True),
        (" , ", "https:///v1", True),
    ],
)
def test_a_bound_key_goes_to_its_hosts_alone(
    monkeypatch: pytest.MonkeyPatch, hosts: str | None, url: str, is_refused: bool
) -> None:
    if hosts is not None:
        monkeypatch.setenv("OPENAI_API_KEY_HOSTS", hosts)
    assert bool(refusal("OPENAI_API_KEY", url)) is is_refused
    assert refusal("OTHER_API_KEY", url), "bound to nothing"


def test_the_refusal_of_an_unbound_key_says_what_to_set() -> None:
    assert refusal("OPENAI_API_KEY", "https://api.openai.com/v1") == (
        "OPENAI_API_KEY is bound to no host. An admin enters the key under Settings › Models, or the operator sets "
        "OPENAI_API_KEY_HOSTS=api.openai.com for web and worker"
    )
    assert "OPENAI_API_KEY_HOSTS=gpu-1:8000 for" in refusal("OPENAI_API_KEY", "http://gpu-1:8000/v1")
    assert "OPENAI_API_KEY_HOSTS=[fd12::1]:80 for" in refusal("OPENAI_API_KEY", "http://[fd12::1]/v1")


def test_the_address_of_vllm_binds_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLYWHEEL_VLLM_URL", "http://gpu-1:8100")
    assert not refusal("VLLM_API_KEY", "http://gpu-1:8100/v1")
    assert "may be sent to gpu-1:8100 only" in refusal("VLLM_API_KEY", "http://gpu-2:8100/v1")
    assert refusal("OTHER_API_KEY", "http://gpu-1:8100/v1")


def test_an_unbound_key_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANARY_API_KEY", "canary")
    spec = {"kind": "openai", "model": "m", "api_key_env": "CANARY_API_KEY", "base_url": "http://127.0.0.1:9/v1"}
    with pytest.raises(EngineError, match="CANARY_API_KEY is bound to no host"):
        open_engine(spec)
    with pytest.raises(NoRoute, match="CANARY_API_KEY is bound to no host"):
        keyed(Route(0, 1, "https://api.openai.com/v1", "CANARY_API_KEY")).key()


def test_engines_and_the_gateway_hold_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
    monkeypatch.setenv("OPENAI_API_KEY_HOSTS", "api.openai.com")
    spec = {"kind": "openai", "model": "m", "api_key_env": "OPENAI_API_KEY"}
    open_engine({**spec, "base_url": "https://api.openai.com/v1"}).close()
    with pytest.raises(EngineError, match=r"may be sent to api\.openai\.com only .* not to evil\.example"):
        open_engine({**spec, "base_url": "https://evil.example/v1"})
    assert keyed(Route(0, 1, "https://api.openai.com/v1", "OPENAI_API_KEY")).key() == "sk-1"
    with pytest.raises(NoRoute, match="not to evil"):
        keyed(Route(0, 1, "https://evil.example/v1", "OPENAI_API_KEY")).key()
