"""Which bases the vLLM servers have that the supervisor keeps."""

import os
from collections.abc import Callable

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import User
from flywheel.agents.models import Agent, ChosenBase, Split
from flywheel.agents.weights import chosen_bases
from flywheel.core.network import key_hosts
from flywheel.edge.refusals import Refused
from flywheel.server import supervisor
from flywheel.system import devices, env
from tests.conftest import Build
from tests.evals.fake import adapted
from tests.pages import page_of

SignIn = Callable[[User], Client]


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLYWHEEL_SERVE", "vllm")
    monkeypatch.delenv("FLYWHEEL_VLLM_URL", raising=False)
    monkeypatch.setattr(devices, "offered", dict)


@pytest.mark.django_db
def test_an_admin_chooses_a_base_in_the_browser_and_the_page_says_how_the_server_is(
    kept: None, build: Build, sign_in: SignIn
) -> None:
    one, other = adapted(build, 1), adapted(build, 2, base=7)
    page, post = (reverse(f"evals:{name}", args=["acme"]) for name in ("serving", "choose_base"))
    assert "An admin chooses the base" in page_of(sign_in(build.cast.viewer).get(page))
    client = sign_in(build.cast.admin)
    assert "No base was chosen yet" in page_of(client.get(page))
    assert client.post(post, {"version": str(one)}).status_code == 302
    row = ChosenBase.objects.get()
    assert (row.version, row.state, row.generation) == (one, "waiting", 1)
    chosen_bases.report(row, "down", problem="vLLM ended with code 3", failures=2, again_s=40)
    shown = page_of(client.get(page))
    assert "It ended 2 times and starts again" in shown
    assert "vLLM ended with code 3" in shown
    assert client.post(post, {"version": str(other)}).status_code == 302
    assert not chosen_bases.is_current(row)
    chosen_bases.report(row, "ready", problem="late")
    row = ChosenBase.objects.get()
    assert (row.version, row.state, row.problem, row.generation) == (other, "waiting", "", 2)


@pytest.mark.django_db
def test_what_would_lose_its_server_and_what_does_not_fit_is_refused(
    kept: None, build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    live, other, actor = adapted(build, 1), adapted(build, 2, base=7), Actor(build.cast.admin)
    Agent.objects.filter(pk=live.agent_id).update(live=live, served="assistant-v1-00000001")
    with pytest.raises(Refused, match=f"{live} would lose the server; tick Replace anyway"):
        chosen_bases.choose(version=other, actor=actor)
    one, two = (build.version(endpoint={"kind": "openai", "base_url": "http://h/v1", "model": m}) for m in "ab")
    Split.objects.create(
        agent=live.agent, live=one, candidate=two, salt="", lease_until=timezone.now(), served={str(live.pk): "a"}
    )
    for arm in ("live", "candidate"):
        Split.objects.update(**{"live": one, "candidate": two, arm: live})
        with pytest.raises(Refused, match=f"{live} is in a ramp, and would lose the server"):
            chosen_bases.choose(version=other, actor=actor, anyway=True)
    Split.objects.update(live=one, candidate=two)
    chosen_bases.choose(version=other, actor=actor, anyway=True)
    assert Agent.objects.get(pk=live.agent_id).served == ""
    monkeypatch.setattr(chosen_bases, "needed_bytes", lambda _: 10**15)
    with pytest.raises(Refused, match=r"takes about 931322\.6 GB of memory on vLLM, and this machine allows"):
        chosen_bases.choose(version=live, actor=actor)
    monkeypatch.setenv("FLYWHEEL_SERVE", "")
    with pytest.raises(Refused, match="start it with FLYWHEEL_SERVE=vllm"):
        chosen_bases.choose(version=live, actor=actor)


@pytest.mark.django_db
def test_each_gpu_of_several_has_a_server_with_a_base_of_its_own(
    kept: None, build: Build, sign_in: SignIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLYWHEEL_SERVE_GPUS", "2,3")
    one, other, third = adapted(build, 1), adapted(build, 2, base=7), adapted(build, 3, base=8)
    page, post = (reverse(f"evals:{name}", args=["acme"]) for name in ("serving", "choose_base"))
    client = sign_in(build.cast.admin)
    assert client.post(post, {"version": str(one)}).status_code == 302
    Agent.objects.filter(pk=one.agent_id).update(live=one, served="assistant-v1-00000001")
    form = client.get(page).context["form"]
    assert form["place"].initial == 1, "the first that has none"
    assert form.fields["place"].choices[1] == (1, "Server 2, http://127.0.0.1:8101, no base yet")
    assert client.post(post, {"version": str(other), "place": 1}).status_code == 302, "what is live keeps its server"
    assert Agent.objects.get(pk=one.agent_id).served
    assert [chosen_bases.address_of(row)[-4:] for row in (one, other, third)] == ["8100", "8101", "8100"]
    assert [chosen_bases.server_with(row)[-4:] for row in (one, other, third)] == ["8100", "8101", ""]
    with monkeypatch.context() as fewer:
        fewer.setenv("FLYWHEEL_SERVE_GPUS", "2")
        assert [chosen_bases.server_with(row)[-4:] for row in (one, other)] == ["8100", ""], "it is not kept any more"
    shown = page_of(client.get(page))
    for said in ("Server 1", "Server 2", "http://127.0.0.1:8101", str(one), str(other)):
        assert said in shown
    refused = client.post(post, {"version": str(other), "place": 0})
    assert "the server at http://127.0.0.1:8101 has this base already" in page_of(refused)
    assert "Select a valid choice" in page_of(client.post(post, {"version": str(third), "place": 2}))
    with pytest.raises(Refused, match="there is no server 3; there are 2"):
        chosen_bases.choose(version=third, actor=Actor(build.cast.admin), place=2)
    with pytest.raises(Refused, match=f"{one} would lose the server"):
        chosen_bases.choose(version=third, actor=Actor(build.cast.admin), place=0)
    assert {child.name for child in supervisor.children()} >= {"vllm 0", "vllm 1"}


def test_gpus_of_vllm_are_left_to_it_and_its_key_goes_to_its_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLYWHEEL_SERVE", "vllm")
    monkeypatch.setenv("FLYWHEEL_VLLM_URL", "http://127.0.0.1:9000")
    monkeypatch.setenv("FLYWHEEL_SERVE_GPUS", "0,3")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    monkeypatch.setenv("VLLM_API_KEY_HOSTS", "gpu-1:8000")
    supervisor._share_with_vllm()
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "1,2"
    assert os.environ["VLLM_API_KEY_HOSTS"] == "gpu-1:8000,127.0.0.1:9000,127.0.0.1:9001"
    assert [key_hosts.refusal("VLLM_API_KEY", f"{url}/v1") for url in env.vllm_urls()] == ["", ""]
    assert "may be sent to" in key_hosts.refusal("VLLM_API_KEY", "http://127.0.0.1:9002/v1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    with pytest.raises(env.BadSetting, match="FLYWHEEL_SERVE_GPUS names 3, and this machine has the GPUs 0, 1"):
        supervisor._share_with_vllm()


def test_the_supervisor_keeps_the_server_at_an_address_of_this_machine(
    kept: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert env.vllm_url() == env.OWN_VLLM_URL
    assert "vllm 0" in {child.name for child in supervisor.children()}
    monkeypatch.setenv("FLYWHEEL_VLLM_URL", "http://gpu.example.org:8100")
    with pytest.raises(env.BadSetting, match="FLYWHEEL_SERVE starts vLLM on this machine's loopback"):
        supervisor._check_ports()
    monkeypatch.setenv("FLYWHEEL_SERVE", "sglang")
    with pytest.raises(env.BadSetting, match="FLYWHEEL_SERVE='sglang' cannot be used"):
        env.serve()
