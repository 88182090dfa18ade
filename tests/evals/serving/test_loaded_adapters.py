"""Names on the vLLM server, room for adapters, and the hand-over when a version goes live; the server is a fake."""

import json
import socket
import threading
import time
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Any

import psycopg
import pytest
import torch
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone
from safetensors.torch import save_file

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import AuditEntry
from flywheel.agents import artifacts
from flywheel.agents.models import Agent, Split, Version
from flywheel.agents.splits import open_splits
from flywheel.agents.weights import chosen_bases, lora_adapters, served_weights
from flywheel.agents.weights.served_weights import Address
from flywheel.edge.jobs import State
from flywheel.edge.refusals import Refused
from flywheel.evals.models import Engine, EvalRun
from flywheel.evals.serving import loaded_adapters
from flywheel.promotions import live_version as promoting
from flywheel.promotions.live_version import _move, make_first, roll_back
from flywheel.promotions.models import Promotion
from flywheel.trajectories.ingest.gateway import routing
from tests.conftest import Build, Cast
from tests.evals.fake import submit

pytestmark = pytest.mark.django_db

URL = "http://127.0.0.1:8100"
REAL_CALL = loaded_adapters._call


class Vllm:
    """What a server knows of adapters."""

    def __init__(self) -> None:
        self.bases: list[str] = []
        self.adapters: dict[str, str] = {}
        self.said: list[tuple[str, str]] = []
        self.refused: set[str] = set()
        self.urls: set[str] = set()
        self.is_away = False

    def call(self, url: str, method: str, path: str, body: dict[str, Any] | None = None, until: float = inf) -> Any:
        self.urls.add(url)
        if self.is_away:
            raise loaded_adapters.ServerError("it does not answer")
        if method == "GET":
            rows = [(name, None) for name in self.bases] + [(name, self.bases[0]) for name in self.adapters]
            return {"data": [{"id": name, "parent": parent} for name, parent in rows]}
        assert body is not None
        name = body["lora_name"]
        verb = path.removeprefix("/v1/").removesuffix("_lora_adapter")
        self.said.append((verb, name))
        if verb == "load":
            if name in self.refused:
                raise loaded_adapters.ServerError("its rank is too great")
            assert name not in self.adapters, "an adapter is never loaded over another"
            assert (Path(body["lora_path"]) / lora_adapters.CONFIG).is_file()
            self.adapters[name] = body["lora_path"]
        else:
            del self.adapters[name]
        return None


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> Vllm:
    fake = Vllm()
    monkeypatch.setenv("FLYWHEEL_VLLM_URL", URL)
    monkeypatch.setattr(loaded_adapters, "_call", fake.call)
    return fake


@pytest.fixture
def version(build: Build, tmp_path: Path, vllm: Vllm) -> Callable[..., Version]:
    """`version()` is a base that the server has; `version(3)` has an adapter of this number; `base` is another base."""

    def make(number: int | None = None, base: int = 0, **config: Any) -> Version:
        place = tmp_path / f"base{base}"
        place.mkdir(exist_ok=True)
        tensors = {"model.layers.0.self_attn.q_proj.weight": torch.full((2, 2), float(base))}
        save_file(tensors, place / "model.safetensors")
        weights = artifacts.store(place, "model")
        vllm.bases = vllm.bases or [loaded_adapters.base_name(weights.digest)]
        adapter = None
        if number is not None:
            place = tmp_path / f"adapter{number}"
            place.mkdir(exist_ok=True)
            plain = {"peft_type": "LORA", "r": 1, "lora_alpha": 1, "bias": "none", "target_modules": ["q_proj"]}
            (place / lora_adapters.CONFIG).write_text(json.dumps(plain | config))
            save_file({"a": torch.full((1,), float(number))}, place / lora_adapters.WEIGHTS)
            adapter = artifacts.store(place, "adapter")
        return build.version(weights=weights, adapter=adapter)

    return make


Make = Callable[..., Version]


def looked_up() -> Any:
    """The agent as the gateway reads it."""
    return Agent.objects.annotate(split=open_splits.OPEN).get()


def test_a_name_says_the_version_and_its_content(version: Make) -> None:
    plain, one = version(), version(1)
    assert plain.weights is not None
    assert one.adapter is not None
    assert loaded_adapters.name_of(plain) == f"identity-{plain.weights.digest[:8]}"
    assert loaded_adapters.name_of(one) == f"assistant-v2-{one.adapter.digest[:8]}"


def test_loading_twice_loads_once(version: Make, vllm: Vllm) -> None:
    one = version(1)
    assert loaded_adapters.load(one) == loaded_adapters.load(one) == loaded_adapters.name_of(one)
    assert vllm.said == [("load", loaded_adapters.name_of(one))]


def test_the_arms_are_the_version_what_is_live_and_the_bare_base_and_probes_fill_the_rest(
    version: Make, vllm: Vllm, build: Build
) -> None:
    live, one = version(1), version(2)
    make_first(agent=live.agent, version=live, actor=Actor(build.cast.approver), reason="test")
    one.agent.refresh_from_db()
    arms, probes = loaded_adapters.load_arms(one)
    identity = f"identity-{live.weights.digest[:8]}"  # type: ignore[union-attr]
    assert arms == [loaded_adapters.name_of(one), loaded_adapters.name_of(live), identity]
    assert set(vllm.adapters) == {*arms, *probes}
    assert len(vllm.adapters) == loaded_adapters.SLOTS
    assert sum(map(len, loaded_adapters.load_arms(version()))) == loaded_adapters.SLOTS


def test_others_are_arms_as_far_as_there_is_room_and_put_nothing_out_that_is_in_use(
    version: Make, vllm: Vllm, build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loaded_adapters, "LOADED", 9)
    one, second, third, fourth, fifth = (version(number) for number in range(1, 6))
    others = [second, third, fourth]

    def ask(asked: Version) -> None:
        run = submit(build, version=asked, engine=Engine.VLLM)
        EvalRun.objects.filter(pk=run.pk).update(state=State.RUNNING, isolation={"passed": True, "arms": ["over"]})
        loaded_adapters.load(asked)

    ask(fifth)
    vllm.adapters |= dict.fromkeys([f"old{number}-00000000" for number in range(8)], "")
    arms, probes = loaded_adapters.load_arms(one, others)
    assert arms[2:] == [loaded_adapters.name_of(second), loaded_adapters.name_of(third)], "the last has no room"
    assert len(probes) == 1
    assert loaded_adapters.name_of(fifth) in vllm.adapters
    assert len(vllm.adapters) == loaded_adapters.LOADED

    # While it is tested its arms are in use, afterwards its version alone: a server is never full of the others.
    run = submit(build, version=one, engine=Engine.VLLM)
    EvalRun.objects.filter(pk=run.pk).update(state=State.RUNNING, isolation={"arms": arms})
    assert loaded_adapters.load_arms(one, others)[0] == arms, "the same once more"
    for number in range(loaded_adapters.SPARE):
        ask(version(6 + number))
    unused = version(9)
    with pytest.raises(loaded_adapters.ServerError, match="9 of them in use"):
        loaded_adapters.load(unused)
    EvalRun.objects.filter(pk=run.pk).update(isolation={"arms": arms, "passed": True})
    loaded_adapters.load(unused)
    assert {loaded_adapters.name_of(one), loaded_adapters.name_of(fifth), loaded_adapters.name_of(unused)} <= set(
        vllm.adapters
    )


def test_for_versions_that_do_not_load_the_next_are_asked(
    version: Make, vllm: Vllm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loaded_adapters, "BESIDE", 2)
    one, *others = (version(number) for number in range(1, 7))
    vllm.refused = {loaded_adapters.name_of(each) for each in others[:3]}
    assert loaded_adapters.load_arms(one, others)[0][2:] == [loaded_adapters.name_of(each) for each in others[3:]]


def test_one_that_does_not_load_is_no_arm_and_stops_nobody(version: Make, vllm: Vllm) -> None:
    one, second, third = (version(number) for number in (1, 2, 3))
    vllm.refused = {loaded_adapters.name_of(second)}
    assert loaded_adapters.load_arms(one, [second, third])[0][2:] == [loaded_adapters.name_of(third)]
    with pytest.raises(loaded_adapters.ServerError, match="too great"):
        loaded_adapters.load_arms(second)


def test_the_longest_unused_makes_room_and_what_is_in_use_stays(
    version: Make, vllm: Vllm, build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loaded_adapters, "LOADED", 3)
    first, second, third = (version(number) for number in (1, 2, 3))
    task_set = build.task_set()
    for one in (second, third, first):  # so `second` is the longest unused, whatever was loaded first
        submit(build, task_set, one, engine=Engine.VLLM)
    for one in (first, second, third):
        loaded_adapters.load(one)
    loaded_adapters.load(version(4))
    assert set(vllm.adapters) == {loaded_adapters.name_of(one) for one in (first, third, version(4))}

    EvalRun.objects.filter(version__in=[first, third]).update(state=State.RUNNING)
    loaded_adapters.load(version(5))
    assert loaded_adapters.name_of(version(4)) not in vllm.adapters
    Agent.objects.update(served=loaded_adapters.name_of(version(5)))
    with pytest.raises(loaded_adapters.ServerError, match="3 of them in use; Flywheel keeps 3 there at most"):
        loaded_adapters.load(version(6))


def test_names_that_are_not_ours_are_left_alone(version: Make, vllm: Vllm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loaded_adapters, "LOADED", 1)
    vllm.adapters["somebodys-adapter"] = "/x"
    loaded_adapters.load(version(1))
    loaded_adapters.load(version(2))
    assert set(vllm.adapters) == {"somebodys-adapter", loaded_adapters.name_of(version(2))}


def test_a_version_of_another_base_is_refused_with_what_to_do(version: Make) -> None:
    version()
    other = version(1, base=7)
    with pytest.raises(
        loaded_adapters.ServerError, match=rf"a full fine-tune, are a base .*make serve VERSION={other}"
    ):
        loaded_adapters.load(other)


def test_a_run_on_it_is_refused_where_that_cannot_be(
    version: Make, build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    task_set = build.task_set()
    asked = build.version(endpoint={"kind": "openai", "base_url": "http://h/v1", "model": "m"})
    for one, reason in [(asked, "asked at its own endpoint"), (version(1, use_dora=True), "DoRA")]:
        with pytest.raises(Refused, match=f"engine: .*{reason}"):
            submit(build, task_set, one, engine=Engine.VLLM)
    with pytest.raises(Refused, match="engine: 'other' is unknown"):
        submit(build, task_set, version(), engine="other")
    monkeypatch.delenv("FLYWHEEL_VLLM_URL")
    with pytest.raises(Refused, match="no vLLM server is set"):
        submit(build, task_set, version(), engine=Engine.VLLM)


def test_what_goes_live_is_loaded_first_and_the_gateway_goes_there(
    version: Make, vllm: Vllm, build: Build, cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = version(1)
    make_first(agent=one.agent, version=one, actor=Actor(cast.approver), reason="test")
    assert vllm.said == [("load", loaded_adapters.name_of(one))]
    (live,) = routing.served(cast.project)
    found = routing._live(cast.project, 1, looked_up(), live.agent.name)
    assert (found.base_url, found.model, found.api_key_env) == (f"{URL}/v1", loaded_adapters.name_of(one), "")
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    assert routing.keyed(routing._live(cast.project, 1, looked_up(), "assistant")).key() == "secret"
    monkeypatch.delenv("FLYWHEEL_VLLM_URL")
    assert routing.served(cast.project) == []
    with pytest.raises(routing.NoRoute, match=r"make serve VERSION=assistant@1"):
        routing._live(cast.project, 1, looked_up(), "assistant")


def test_a_server_that_does_not_take_it_stops_a_promotion_but_not_the_way_back(
    version: Make, vllm: Vllm, cast: Cast
) -> None:
    first, second = version(1), version(2)
    make_first(agent=first.agent, version=first, actor=Actor(cast.approver), reason="test")

    def move(to: Version) -> None:
        agent, server = Agent.objects.get(), loaded_adapters.hand_over(to, within_s=9)
        after = Version.objects.get(pk=to.pk)
        promotion = Promotion(agent=agent, kind=Promotion.Kind.FIRST, after=after, reason="test")
        _move(promotion, server, Actor(cast.approver), agent.generation)

    vllm.is_away = True
    with pytest.raises(Refused, match=r"the gateway answers with assistant-v1-.*it does not answer"):
        move(second)
    assert Agent.objects.get().live == first
    vllm.is_away = False
    move(second)
    assert Agent.objects.get().served == loaded_adapters.name_of(second)
    vllm.is_away = True
    roll_back(agent=Agent.objects.get(), to=first, actor=Actor(cast.approver), reason="test", generation=2)
    assert (Agent.objects.get().live, Agent.objects.get().served) == (first, "")
    assert AuditEntry.objects.get(action="promotions.rollback").data["unserved"].endswith("(it does not answer)")
    vllm.is_away = False
    assert loaded_adapters.load_live(URL) == [loaded_adapters.name_of(first)]
    assert Agent.objects.get().served == loaded_adapters.name_of(first)


def test_both_arms_of_an_open_split_stay_and_its_candidate_is_loaded_again_with_what_is_live(
    version: Make, vllm: Vllm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loaded_adapters, "LOADED", 2)
    live, candidate = version(1), version(2)
    names = {str(one.pk): loaded_adapters.name_of(one) for one in (live, candidate)}
    Agent.objects.update(live=live)
    split = Split.objects.create(
        agent=live.agent, live=live, candidate=candidate, share=500, salt="s", served=names, lease_until=timezone.now()
    )
    assert sorted(loaded_adapters.load_live(URL)) == sorted(names.values())
    with pytest.raises(loaded_adapters.ServerError, match="2 of them in use"):
        loaded_adapters.load(version(3))
    Split.objects.filter(pk=split.pk).update(closed_at=timezone.now())
    loaded_adapters.load(version(3))
    assert names[str(candidate.pk)] not in vllm.adapters


def test_small_weights_go_live_without_it_where_flywheel_answers_itself(
    version: Make, vllm: Vllm, cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = version(1), version(2)
    make_first(agent=first.agent, version=first, actor=Actor(cast.approver), reason="test")
    vllm.is_away = True
    monkeypatch.setattr(served_weights, "address", lambda: Address("http://127.0.0.1:1", "sesame"))
    agent, server = Agent.objects.get(), loaded_adapters.hand_over(second, within_s=9)
    promotion = Promotion(agent=agent, kind=Promotion.Kind.FIRST, after=second, reason="test")
    assert _move(promotion, server, Actor(cast.approver), agent.generation).unserved == ""
    found = routing._live(cast.project, 1, looked_up(), "assistant")
    assert (found.base_url, found.model) == ("http://127.0.0.1:1/v1", served_weights.name_of(second))


def test_nobody_waits_for_the_server_with_the_lock_of_the_agent(
    version: Make, vllm: Vllm, cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = version(1), version(2)
    make_first(agent=first.agent, version=first, actor=Actor(cast.approver), reason="test")
    roll_to = Agent.objects.get()
    Agent.objects.update(live=second)
    asked = []

    def call(*args: Any, **kwargs: Any) -> Any:
        asked.append(any('"agents_agent"' in row["sql"] and "UPDATE" in row["sql"] for row in seen.captured_queries))
        return vllm.call(*args, **kwargs)

    monkeypatch.setattr(loaded_adapters, "_call", call)
    with CaptureQueriesContext(connection) as seen:
        roll_back(
            agent=Agent.objects.get(), to=first, actor=Actor(cast.approver), reason="x", generation=roll_to.generation
        )
    assert asked
    assert not any(asked)


@pytest.mark.parametrize("busy", [False, True], ids=["it never answers", "somebody else asks it"])
@pytest.mark.django_db(transaction=True)
def test_the_way_back_waits_for_no_server(
    version: Make,
    vllm: Vllm,
    cast: Cast,
    sign_in: Callable[[Any], Client],
    monkeypatch: pytest.MonkeyPatch,
    busy: bool,
) -> None:
    first, second = version(1), version(2)
    make_first(agent=first.agent, version=first, actor=Actor(cast.approver), reason="test")
    Agent.objects.update(live=second, served=loaded_adapters.name_of(second))
    monkeypatch.setattr(promoting, "ROLLBACK_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent, psycopg.connect(**_database()) as other:
        if busy:
            other.execute("SELECT pg_advisory_xact_lock(hashtext('flywheel.evals.serving.loaded_adapters 8100'))")
        else:
            monkeypatch.setenv("FLYWHEEL_VLLM_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
            monkeypatch.setattr(loaded_adapters, "_call", REAL_CALL)
        page = sign_in(cast.approver).post(
            reverse("promotions:roll_back", args=["acme", "assistant"]),
            {"version": first.number, "reason": "x", "generation": 1},
            follow=True,
        )
    assert (Agent.objects.get().live, Agent.objects.get().served) == (first, "")
    said = page.content.decode()
    assert "assistant@1 is live again" in said
    assert ("is being asked to load something else" if busy else "does not answer: ") in said


def _database() -> dict[str, Any]:
    known = connection.get_connection_params()
    return {name: known[name] for name in ("dbname", "user", "password", "host", "port") if name in known}


def test_a_server_that_is_not_there_is_said_so() -> None:
    with pytest.raises(loaded_adapters.ServerError, match=r"the vLLM server at http://127.0.0.1:9 does not answer"):
        loaded_adapters.load_live("http://127.0.0.1:9")


def test_of_several_servers_the_one_that_has_the_base_is_asked(
    version: Make, vllm: Vllm, cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLYWHEEL_SERVE", "vllm")
    monkeypatch.setenv("FLYWHEEL_SERVE_GPUS", "0,1")
    one = version(1)
    loaded_adapters.load(one)
    assert vllm.urls == {URL}, "nobody has chosen anything: the first one says what it has"
    vllm.urls.clear()
    chosen_bases.choose(version=one, actor=Actor(cast.admin), place=1)
    loaded_adapters.load_arms(one, [version(2)])
    assert loaded_adapters.has(one)
    assert vllm.urls == {"http://127.0.0.1:8101"}


def test_a_server_that_drips_its_answer_is_not_waited_for_longer() -> None:
    over = threading.Event()

    def drip(server: socket.socket) -> None:
        line, _ = server.accept()
        with line:
            line.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
            while not over.wait(0.2):
                try:
                    line.sendall(b" ")
                except OSError:
                    return

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=drip, args=[server])
        thread.start()
        try:
            with pytest.raises(loaded_adapters.ServerError, match="does not answer: timed out"):
                loaded_adapters._models(f"http://127.0.0.1:{server.getsockname()[1]}", time.monotonic() + 1)
        finally:
            over.set()
            thread.join()
