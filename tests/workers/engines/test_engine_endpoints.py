"""Both engines behind the one protocol: what they answer, and what they say when they cannot."""

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from shutil import copytree
from typing import Any
from unittest import mock

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from flywheel.core.envs.policy_rollouts import ChatRequest, ChatResponse, EngineError, Sampling
from flywheel.core.envs.workplace.world_tools import DEFINITIONS
from flywheel.core.network import http_replies
from flywheel.core.traces import Message, ToolCall, tooling
from flywheel.core.traces.tooling import call_text
from tests.waiting import PATIENCE_S
from workers.engines import transformers_engine
from workers.engines.engine_endpoints import open_engine
from workers.engines.generation import _Draw, _nucleus
from workers.engines.openai_engine import OpenAIEngine
from workers.engines.tool_calls import read_tool_calls
from workers.engines.transformers_engine import TransformersEngine
from workers.reference import story
from workers.reference.build import POLICY

SEARCH = "email.search_emails"
LAYER = "model.layers.0.self_attn.q_proj"


def ask(prompt: str, seed: int = 0, temperature: float = 1.0, top_p: float = 1.0, max_tokens: int = 64) -> ChatRequest:
    messages = (Message("system", story.SYSTEM_PROMPT), Message("user", prompt))
    return ChatRequest(messages, Sampling(temperature, top_p, max_tokens), seed)


def requests(count: int, **settings: Any) -> list[ChatRequest]:
    prompts = [request.prompt for request in story.sessions(count, seed=31)]
    return [ask(prompt, seed=index, **settings) for index, prompt in enumerate(prompts[:count])]


def texts(responses: list[ChatResponse]) -> list[str]:
    assert not [response.error for response in responses if response.error]
    return [response.text for response in responses]


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def engine() -> Iterator[TransformersEngine]:
    engine = TransformersEngine(POLICY, batch_size=16, device="cpu")
    yield engine
    engine.close()


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    return Path(copytree(POLICY, tmp_path / "model"))


@pytest.fixture
def adapter_dir(tmp_path: Path) -> Path:
    directory = tmp_path / "adapter"
    directory.mkdir()
    write_adapter(directory)
    return directory


def write_adapter(directory: Path, rank: int = 4, scale: float = 0.5, **config: Any) -> None:
    generator = torch.Generator().manual_seed(5)
    tensors = {
        f"base_model.model.{LAYER}.lora_A.weight": torch.randn(rank, 128, generator=generator),
        f"base_model.model.{LAYER}.lora_B.weight": torch.randn(128, rank, generator=generator) * scale,
    }
    save_file(tensors, directory / "adapter_model.safetensors")
    shown = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 4, "lora_alpha": 8, "target_modules": [LAYER]}
    (directory / "adapter_config.json").write_text(json.dumps(shown | config))


class TestTransformers:
    def test_it_answers_each_request_in_order(self, engine: TransformersEngine) -> None:
        asked = requests(20)
        responses = engine.chat(asked)
        assert len(responses) == 20
        for response in responses:
            assert response.finish_reason in {"stop", "length"}
            assert response.tokens_in
            assert response.tokens_out
            assert response.latency_ms
            assert response.cost_usd is None
        backwards = engine.chat(asked[::-1])
        assert texts(backwards)[::-1] == texts(responses)

    def test_no_requests_have_no_answers(self, engine: TransformersEngine) -> None:
        assert engine.chat([]) == []

    def test_an_answer_does_not_depend_on_its_batch(self, engine: TransformersEngine) -> None:
        asked = requests(8, max_tokens=48)
        together = texts(engine.chat(asked))
        assert [texts(engine.chat([request]))[0] for request in asked] == together

    def test_the_seed_decides(self, engine: TransformersEngine) -> None:
        prompt = "Please do something about the bako audit."
        first, again, *others = texts(engine.chat([ask(prompt, seed) for seed in (1, 1, 2, 3, 4, 5, 2**70, -3)]))
        assert first == again
        assert len({first, *others}) > 1

    def test_temperature_0_is_greedy(self, engine: TransformersEngine) -> None:
        prompt = "Email Bako about the luso audit."
        answers = texts(engine.chat([ask(prompt, seed, temperature=0.0) for seed in range(6)]))
        narrow = texts(engine.chat([ask(prompt, seed, top_p=1e-6) for seed in range(3)]))
        assert len({*answers, *narrow}) == 1

    def test_draws_follow_the_probabilities(self) -> None:
        """Of each row's own temperature and nucleus, and only through its own seed."""
        logits = torch.tensor([0.2, 0.5, 0.05, 0.25]).log()
        for temperature, top_p, expected in (
            (1.0, 1.0, [0.2, 0.5, 0.05, 0.25]),
            (0.5, 1.0, [0.115, 0.722, 0.007, 0.180]),
            (1.0, 0.6, [0.0, 0.667, 0.0, 0.333]),
            (0.0, 1.0, [0.0, 1.0, 0.0, 0.0]),
        ):
            asked = [ask("", seed, temperature, top_p, max_tokens=2) for seed in range(4000)]
            draw = _Draw(asked, width=3, device=torch.device("cpu"), top_k=0)
            for length in (3, 4):
                scores = draw(torch.zeros(4000, length, dtype=torch.long), logits.expand(4000, 4))
                shares = torch.bincount(scores.argmax(-1), minlength=4) / 4000
                assert shares.tolist() == pytest.approx(expected, abs=0.03)

    def test_nucleus_keeps_the_smallest_set_that_reaches_top_p(self) -> None:
        probabilities = torch.tensor([[0.1, 0.5, 0.05, 0.35]] * 3)
        kept = _nucleus(probabilities, torch.tensor([[0.5], [0.6], [1.0]])) > 0
        assert kept.tolist() == [[False, True, False, False], [False, True, False, True], [True] * 4]

    def test_max_tokens_ends_each_row_by_itself(self, engine: TransformersEngine) -> None:
        short, long = engine.chat(
            [ask("Email Bako about the luso audit.", temperature=0.0, max_tokens=n) for n in (3, 64)]
        )
        assert (short.finish_reason, short.tokens_out) == ("length", 3)
        assert long.finish_reason == "stop"
        assert long.text.startswith(short.text)

    def test_a_conversation_that_does_not_fit_is_an_error_of_its_own(self, engine: TransformersEngine) -> None:
        far, near = engine.chat([ask("word " * 600), ask("Email Bako about the luso audit.")])
        assert "the model takes 512 in all" in far.error
        assert far.is_too_long
        assert near.text
        assert not near.error

    def test_a_template_that_refuses_is_an_error_of_its_own(self, model_dir: Path) -> None:
        (model_dir / "chat_template.jinja").write_text("{{ raise_exception('no system here') }}")
        (response,) = TransformersEngine(model_dir, device="cpu").chat([ask("Hi")])
        assert "no system here" in response.error

    def test_tool_calls_of_the_past_are_rendered(self, engine: TransformersEngine) -> None:
        native = Message("assistant", "", (ToolCall("1", "email.send", {"to": "Bako", "subject": "lüso"}),))
        written = Message("assistant", '{"tool": "email.send", "arguments": {"to": "Bako", "subject": "lüso"}}')
        one, other = (
            engine._encode(ChatRequest((message, Message("user", "Hi")), Sampling(), 0))
            for message in (native, written)
        )
        assert one == other

    def test_native_tool_call_blocks_are_read(self) -> None:
        text = 'Sure.\n<tool_call>\n{"name": "a", "arguments": {"x": {"y": 1}}}\n</tool_call>'
        assert read_tool_calls(text) == ("Sure.", (ToolCall("call-0", "a", {"x": {"y": 1}}),))
        for broken in (
            "<tool_call>{nope}</tool_call>",
            '<tool_call>{"name": 3, "arguments": {}}</tool_call>',
            "plain ",
        ):
            assert read_tool_calls(broken) == (broken, ())

    def test_settings_that_come_with_the_model_do_not_mix_in(self, model_dir: Path, engine: TransformersEngine) -> None:
        row = {"repetition_penalty": 5.0, "do_sample": True, "temperature": 0.1, "max_new_tokens": 2, "top_k": 1}
        (model_dir / "generation_config.json").write_text(json.dumps(row))
        asked = requests(4)
        other = TransformersEngine(model_dir, device="cpu")
        assert texts(other.chat(asked)) == texts(engine.chat(asked))


class TestTransformersLoading:
    def test_a_directory_without_a_model(self, tmp_path: Path) -> None:
        with pytest.raises(EngineError, match=r"there is no config\.json"):
            TransformersEngine(tmp_path)

    def test_pickles_are_refused(self, model_dir: Path) -> None:
        (model_dir / "model.safetensors").rename(model_dir / "pytorch_model.bin")
        with pytest.raises(EngineError, match=r"no \*\.safetensors file; pytorch_model\.bin cannot be loaded safely"):
            TransformersEngine(model_dir)

    def test_broken_weights(self, model_dir: Path) -> None:
        content = (model_dir / "model.safetensors").read_bytes()
        (model_dir / "model.safetensors").write_bytes(content[:-100])
        with pytest.raises(EngineError, match="does not load"):
            TransformersEngine(model_dir)

    def test_a_tensor_of_another_shape(self, model_dir: Path) -> None:
        weights = load_file(model_dir / "model.safetensors")
        weights[f"{LAYER}.weight"] = torch.zeros(128, 64)
        save_file(weights, model_dir / "model.safetensors", metadata={"format": "pt"})
        with pytest.raises(EngineError, match=rf"tensor {LAYER}\.weight has shape \[128, 64\].*asks for \[128, 128\]"):
            TransformersEngine(model_dir)

    def test_a_missing_tensor_is_never_made_up(self, model_dir: Path) -> None:
        weights = load_file(model_dir / "model.safetensors")
        del weights[f"{LAYER}.weight"]
        save_file(weights, model_dir / "model.safetensors", metadata={"format": "pt"})
        with pytest.raises(EngineError, match=rf"lack 1 tensors.*{LAYER}\.weight"):
            TransformersEngine(model_dir)

    def test_code_that_comes_with_a_model_is_not_run(self, model_dir: Path) -> None:
        row = json.loads((model_dir / "config.json").read_text())
        row |= {"model_type": "mine", "auto_map": {"AutoConfig": "mine.Config", "AutoModelForCausalLM": "mine.Model"}}
        (model_dir / "config.json").write_text(json.dumps(row))
        (model_dir / "mine.py").write_text("raise SystemExit('run')")
        with pytest.raises(EngineError, match="does not load"):
            TransformersEngine(model_dir)

    def test_a_tokenizer_without_a_chat_template(self, model_dir: Path) -> None:
        (model_dir / "chat_template.jinja").unlink()
        with pytest.raises(EngineError, match="no chat template"):
            TransformersEngine(model_dir)

    @pytest.mark.parametrize(("setting", "value"), [("device", "abacus"), ("dtype", "float7")])
    def test_unknown_device_or_dtype(self, setting: str, value: Any) -> None:
        with pytest.raises(EngineError, match=f"{setting} '{value}' is unknown"):
            TransformersEngine(POLICY, **{setting: value})


class TestAdapter:
    def test_it_changes_the_answers(self, adapter_dir: Path, engine: TransformersEngine) -> None:
        asked = requests(8, temperature=0.0)
        tuned = TransformersEngine(POLICY, adapter_dir, device="cpu")
        assert texts(tuned.chat(asked)) != texts(engine.chat(asked))

    def test_one_that_is_zero_changes_nothing(self, adapter_dir: Path, engine: TransformersEngine) -> None:
        write_adapter(adapter_dir, scale=0.0)
        asked = requests(8)
        assert texts(TransformersEngine(POLICY, adapter_dir, device="cpu").chat(asked)) == texts(engine.chat(asked))

    @pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # PEFT asks for it
    @pytest.mark.parametrize("stabilised", [False, True])
    def test_it_is_what_peft_makes_of_it(self, adapter_dir: Path, stabilised: bool) -> None:
        write_adapter(adapter_dir, use_rslora=stabilised)
        tuned = TransformersEngine(POLICY, adapter_dir, device="cpu")
        base = AutoModelForCausalLM.from_pretrained(POLICY, local_files_only=True)
        expected = PeftModel.from_pretrained(base, adapter_dir).merge_and_unload().state_dict()
        for name, tensor in tuned._model.state_dict().items():
            assert torch.allclose(tensor, expected[name], atol=1e-5), name

    @pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # PEFT asks for it
    def test_a_small_one_is_not_lost_in_weights_of_16_bits(self, adapter_dir: Path) -> None:
        """Half of a weight's last place is more than a lightly trained adapter adds: merged it would be gone."""
        write_adapter(adapter_dir, scale=1e-4)
        tuned = TransformersEngine(POLICY, adapter_dir, device="cpu", dtype="bfloat16")._model
        base = AutoModelForCausalLM.from_pretrained(POLICY, local_files_only=True, dtype=torch.bfloat16)
        ids = torch.arange(5, 45)[None]
        with torch.no_grad():
            plain = base(ids).logits
            beside = PeftModel.from_pretrained(base, adapter_dir).eval()(ids).logits
            found = tuned(ids).logits
        assert not torch.equal(found, plain)
        torch.testing.assert_close(found, beside, rtol=0, atol=0.05)
        assert (found - beside).float().norm() < 0.5 * (beside - plain).float().norm()

    @pytest.mark.parametrize(
        ("config", "reason"),
        [
            ({"peft_type": "IA3"}, "peft_type is 'IA3'; 'LORA' is supported"),
            ({"bias": "all"}, "bias is 'all'"),
            ({"use_dora": True}, "use_dora is True; only plain LoRA"),
            ({"modules_to_save": ["lm_head"]}, "modules_to_save is"),
            ({"auto_mapping": {"parent_library": "evil"}}, "auto_mapping is"),
            ({"init_lora_weights": "pissa"}, "init_lora_weights is 'pissa'"),
            ({"r": "4"}, "r is '4'; a whole number"),
            ({"lora_alpha": 0}, "lora_alpha is 0; a number above 0"),
            ({"target_modules": ".*q_proj"}, "target_modules is '.*q_proj'; a list"),
            ({"target_modules": ["q_proj"]}, "targets 3 modules and adapter_model.safetensors has 1"),
        ],
    )
    def test_a_configuration_that_is_not_plain_lora(
        self, adapter_dir: Path, config: dict[str, Any], reason: str
    ) -> None:
        write_adapter(adapter_dir, **config)
        with pytest.raises(EngineError) as raised:
            TransformersEngine(POLICY, adapter_dir, device="cpu")
        assert reason in str(raised.value)

    def test_another_rank_than_it_says(self, adapter_dir: Path) -> None:
        write_adapter(adapter_dir, rank=2)
        with pytest.raises(
            EngineError, match=rf"{LAYER}\.lora_A\.weight has shape \[2, 128\], the model takes \[4, 128\]"
        ):
            TransformersEngine(POLICY, adapter_dir, device="cpu")

    @pytest.mark.parametrize(
        ("tensors", "reason"),
        [
            ({"base_model.model.lm_heads.lora_A.weight": torch.zeros(4, 128)}, "belongs to no linear layer"),
            ({f"base_model.model.{LAYER}.lora_A.weight": torch.zeros(4, 128)}, "its partner"),
            ({f"base_model.model.{LAYER}.lora_A.weight": torch.full((4, 128), torch.nan)}, "infinite or undefined"),
            ({}, "holds no tensors"),
        ],
    )
    def test_weights_that_do_not_fit(self, adapter_dir: Path, tensors: dict[str, torch.Tensor], reason: str) -> None:
        save_file(tensors, adapter_dir / "adapter_model.safetensors")
        with pytest.raises(EngineError, match=reason):
            TransformersEngine(POLICY, adapter_dir, device="cpu")

    def test_files_that_are_missing_or_broken(self, adapter_dir: Path) -> None:
        (adapter_dir / "adapter_model.safetensors").write_bytes(b"pickle?")
        with pytest.raises(EngineError, match="is not a safetensors file"):
            TransformersEngine(POLICY, adapter_dir, device="cpu")
        (adapter_dir / "adapter_config.json").write_text("{")
        with pytest.raises(EngineError, match="is not JSON"):
            TransformersEngine(POLICY, adapter_dir, device="cpu")
        (adapter_dir / "adapter_config.json").unlink()
        with pytest.raises(EngineError, match=r"there is no adapter_config\.json"):
            TransformersEngine(POLICY, adapter_dir, device="cpu")


# The network engine ---------------------------------------------------------------------------------------------------

Reply = tuple[int, dict[str, str], bytes] | None


class Listening(ThreadingHTTPServer):
    request_queue_size = 128
    """Callers that connect at once; more than five are reset by the system where it is busy."""


class Server:
    """An OpenAI-compatible server whose answers a test writes."""

    def __init__(self, answer: Callable[[dict[str, Any], int], Reply], port: int = 0) -> None:
        self.seen: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.release = threading.Event()
        lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with lock:
                    outer.seen.append(body | {"_path": self.path})
                    outer.headers.append(dict(self.headers))
                    count = sum(other.get("seed") == body.get("seed") for other in outer.seen)
                reply = answer(body, count)
                if reply is None:
                    outer.release.wait(5)
                    return
                status, headers, content = reply
                self.send_response(status)
                for name, value in ({"Content-Length": str(len(content))} | headers).items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *args: Any) -> None:
                pass

        self._server = Listening(("127.0.0.1", port), Handler)
        self._server.handle_error = lambda *_: None  # type: ignore[method-assign]  # a client that leaves is normal
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        self.release.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@contextmanager
def serving(answer: Callable[[dict[str, Any], int], Reply], port: int = 0) -> Iterator[Server]:
    server = Server(answer, port)
    try:
        yield server
    finally:
        server.close()


def completion(message: dict[str, Any], **more: Any) -> Reply:
    value = {"choices": [{"message": {"role": "assistant"} | message, "finish_reason": "stop"}]} | more
    return 200, {"Content-Type": "application/json"}, json.dumps(value).encode()


def always(reply: Reply) -> Callable[[dict[str, Any], int], Reply]:
    return lambda _body, _count: reply


def echo(body: dict[str, Any], count: int) -> Reply:
    return completion(
        {"content": f"{body['messages'][-1]['content']} {body['seed']}"},
        usage={"prompt_tokens": 1000, "completion_tokens": 10},
    )


def network(url: str, **settings: Any) -> OpenAIEngine:
    return OpenAIEngine(url, "m", **({"backoff_s": 0.001, "timeout_s": 5, "patience_s": 1} | settings))


class TestOpenAI:
    def test_settings_of_the_chat_template_go_with_each_request(self) -> None:
        with serving(echo) as server:
            network(server.url).chat([ask("plain")])
            spec = {"kind": "openai", "base_url": server.url, "model": "m"}
            open_engine(spec | {"chat_template_kwargs": {"enable_thinking": False}}).chat([ask("quiet")])
        assert [body.get("chat_template_kwargs") for body in server.seen] == [None, {"enable_thinking": False}]
        with pytest.raises(EngineError, match="chat_template_kwargs is 'no'; an object is wanted"):
            open_engine(spec | {"chat_template_kwargs": "no"})

    def test_it_asks_and_reads(self) -> None:
        tools = (story.TOOLS[0],)
        request = ChatRequest((Message("user", "hi"),), Sampling(0.5, 0.9, 7), 11, tools)
        with serving(echo) as server:
            (response,) = network(server.url, api_key="secret", price_in=2.0, price_out=30.0).chat([request])
        assert response.text == "hi 11"
        assert (response.finish_reason, response.tokens_in, response.tokens_out) == ("stop", 1000, 10)
        assert response.cost_usd == pytest.approx(0.0023)
        assert response.latency_ms
        assert server.headers[0]["Authorization"] == "Bearer secret"
        assert server.seen == [
            {
                "model": "m",
                "messages": [{"role": "user", "content": "hi"}],
                "temperature": 0.5,
                "top_p": 0.9,
                "max_tokens": 7,
                "seed": 11,
                "tools": [
                    {
                        "type": "function",
                        "function": {
                            "name": "calendar_create_event",
                            "description": "Put a meeting with a person into the calendar.",
                            "parameters": {
                                "type": "object",
                                "properties": {
                                    "person": {"type": "string"},
                                    "topic": {"type": "string"},
                                    "day": {"type": "string", "enum": list(story.DAYS)},
                                },
                                "required": ["person", "topic", "day"],
                                "additionalProperties": False,
                            },
                        },
                    }
                ],
                "_path": "/v1/chat/completions",
            }
        ]

    def test_answers_come_in_the_order_of_the_requests(self) -> None:
        with serving(echo) as server:
            responses = network(server.url, concurrency=8).chat([ask("n", seed) for seed in range(40)])
        assert texts(responses) == [f"n {seed}" for seed in range(40)]
        assert "Authorization" not in server.headers[0]
        assert responses[0].cost_usd is None

    def test_native_tool_calls(self) -> None:
        calls = [
            {"id": "a", "type": "function", "function": {"name": "x", "arguments": '{"k": "ü"}'}},
            {"id": "b", "type": "function", "function": {"name": "y", "arguments": '{"k": '}},
        ]
        with serving(always(completion({"content": None, "tool_calls": calls}))) as server:
            (response,) = network(server.url).chat([ask("hi")])
        assert response.tool_calls == (ToolCall("a", "x", {"k": "ü"}), ToolCall("b", "y", '{"k": '))
        assert response.text == ""
        assert response.tokens_in is None

    def test_tools_have_names_that_openai_takes_and_their_calls_come_back_in_ours(self) -> None:
        def answer(body: dict[str, Any], count: int) -> Reply:
            names = [tool["function"]["name"] for tool in body["tools"]]
            sent = [call["function"]["name"] for row in body["messages"] for call in row.get("tool_calls", ())]
            if any(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", name) is None for name in names + sent):
                return 400, {}, b"Invalid function name"
            if "x-" in json.dumps(body["tools"]):
                return 400, {}, b"Unknown keyword"
            calls = [{"id": "c", "type": "function", "function": {"name": name, "arguments": "{}"}} for name in names]
            return completion({"content": None, "tool_calls": [*calls, calls[0] | {"function": {"name": "made.up"}}]})

        said = [ToolCall("a", "email.search_emails", {}), ToolCall("b", "made up!", {})]
        told = [Message("tool", "[]", tool_call_id=call.id, name=call.name) for call in said]
        conversation = (Message("user", "hi"), Message("assistant", "", tuple(said)), *told)
        with serving(answer) as server:
            (response,) = network(server.url).chat([ChatRequest(conversation, Sampling(), 0, tuple(DEFINITIONS))])
        assert response.error == ""
        assert [call.name for call in response.tool_calls] == [*(tool["name"] for tool in DEFINITIONS), "made.up"]

    @pytest.mark.parametrize(
        ("said", "read"),
        [
            (
                '{"tool":"email_search_emails","arguments":{"query":"ü"}}',
                call_text(SEARCH, {"query": "ü"}),
            ),
            ('{"tool":"email.search_emails","arguments":{}}', '{"tool":"email.search_emails","arguments":{}}'),
            ('{"tool":"made_up","arguments":{}}', '{"tool":"made_up","arguments":{}}'),
            ("I would call email_search_emails.", "I would call email_search_emails."),
        ],
    )
    def test_a_call_that_is_written_as_text_comes_back_in_our_names_too(self, said: str, read: str) -> None:
        with serving(always(completion({"content": said}))) as server:
            request = ChatRequest((Message("user", "hi"),), Sampling(), 0, tuple(DEFINITIONS))
            (response,) = network(server.url).chat([request])
        assert response.text == read

    def test_two_tools_that_would_have_one_name_cannot_be_asked_about(self) -> None:
        request = ChatRequest((Message("user", "hi"),), Sampling(), 0, ({"name": "a.b"}, {"name": "a_b"}))
        with serving(echo) as server, pytest.raises(EngineError, match=r"a\.b and a_b would both be called a_b"):
            network(server.url).chat([request])
        assert not server.seen

    def test_the_tools_of_a_run_are_put_into_the_servers_words_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        plain = mock.Mock(wraps=tooling.plain)
        monkeypatch.setattr(tooling, "plain", plain)
        some, others = tuple(DEFINITIONS[:3]), tuple(DEFINITIONS[3:5])
        asked = [ChatRequest((Message("user", "hi"),), Sampling(), 0, tools) for tools in (some, some, others, some)]
        with serving(echo) as server:
            network(server.url, concurrency=1).chat(asked)
        assert [len(body["tools"]) for body in server.seen] == [3, 3, 2, 3]
        assert plain.call_count == 3 + 2 + 3

    @pytest.mark.parametrize("tokens", [-1, True, 1.5, "many", 2**32 + 5])
    def test_what_cannot_be_a_count_of_tokens_is_unknown(self, tokens: Any) -> None:
        with serving(always(completion({"content": "x"}, usage={"prompt_tokens": tokens}))) as server:
            (response,) = network(server.url, price_in=2.0, price_out=30.0).chat([ask("hi")])
        assert (response.text, response.tokens_in, response.cost_usd) == ("x", None, None)

    @pytest.mark.parametrize("status", [429, 500, 503])
    def test_it_tries_again_when_that_can_help(self, status: int) -> None:
        def answer(body: dict[str, Any], count: int) -> Reply:
            return echo(body, count) if count == 3 else (status, {"Retry-After": "0"}, b"busy")

        with serving(answer) as server:
            (response,) = network(server.url).chat([ask("hi")])
        assert response.text == "hi 0"
        assert len(server.seen) == 3

    @pytest.mark.parametrize("status", [429, 503])
    def test_a_full_server_makes_it_slower_not_wrong(self, status: int) -> None:
        """It takes three at once. Sixteen ask, more often than there are retries, and all are answered."""
        under_way, most, refused = 0, 0, 0
        lock = threading.Lock()

        def answer(body: dict[str, Any], count: int) -> Reply:
            nonlocal under_way, most, refused
            with lock:
                if under_way >= 3:
                    refused += 1
                    return status, {}, b"full"
                under_way += 1
                most = max(most, under_way)
            time.sleep(0.01)
            with lock:
                under_way -= 1
            return echo(body, count)

        with serving(answer) as server:
            engine = network(server.url, concurrency=16, retries=0, patience_s=PATIENCE_S)
            assert texts(engine.chat([ask("n", seed) for seed in range(100)])) == [f"n {seed}" for seed in range(100)]
        assert most == 3
        assert 0 < refused < 200

    def test_a_server_that_is_full_for_ever_is_given_up(self) -> None:
        with serving(always((503, {}, b"full"))) as server:
            responses = network(server.url, patience_s=0.1).chat([ask("n", seed) for seed in range(40)])
        assert all("503" in response.error for response in responses)

    def test_a_server_that_comes_back_is_waited_for(self) -> None:
        with serving(echo) as server:
            engine = network(server.url, retries=0, patience_s=PATIENCE_S)
            texts(engine.chat([ask("hi")]))
            port = int(server.url.rpartition(":")[2].removesuffix("/v1"))
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(engine.chat, [ask("again")])
            time.sleep(0.1)
            assert not waiting.done()
            with serving(echo, port):
                assert texts(waiting.result(PATIENCE_S)) == ["again 0"]

    def test_what_never_works_is_unscored_and_the_others_go_on(self) -> None:
        def answer(body: dict[str, Any], count: int) -> Reply:
            return (500, {}, b"out of order") if body["seed"] == 1 else echo(body, count)

        with serving(answer) as server:
            responses = network(server.url, retries=2).chat([ask("n", seed) for seed in range(4)])
        assert [bool(response.error) for response in responses] == [False, True, False, False]
        assert "500" in responses[1].error
        assert "out of order" in responses[1].error
        assert len(server.seen) == 6

    @pytest.mark.parametrize(
        ("reply", "is_away"),
        [
            ((429, {}, b"full"), True),
            ((502, {}, b"nobody behind it"), True),
            ((503, {}, b"down"), True),
            ((400, {}, b"no such role"), False),
            ((500, {}, b"the template raised"), False),
            ((504, {}, b"the proxy waited no longer"), False),
            ((200, {}, b"[]"), False),
            (None, False),
        ],
    )
    def test_only_what_no_request_can_bring_about_is_the_servers(self, reply: Reply, is_away: bool) -> None:
        with serving(always(reply)) as server:
            (response,) = network(server.url, timeout_s=0.2, retries=0, patience_s=0.01).chat([ask("hi")])
        assert response.error
        assert response.is_away == is_away

    def test_a_server_that_went_away_is_away(self) -> None:
        def hang_up(body: dict[str, Any], count: int) -> Reply:
            raise OSError

        with serving(hang_up) as server:
            (response,) = network(server.url, retries=0).chat([ask("hi")])
        assert "the connection broke" in response.error
        assert response.is_away
        with serving(echo) as server:
            engine = network(server.url, retries=0, patience_s=0.01)
            assert not engine.chat([ask("hi")])[0].is_away
        assert engine.chat([ask("hi")])[0].is_away

    def test_a_bad_request_is_not_repeated(self) -> None:
        with serving(always((400, {}, b"no such role"))) as server:
            (response,) = network(server.url).chat([ask("hi")])
        assert "400" in response.error
        assert not response.is_too_long
        assert len(server.seen) == 1

    @pytest.mark.parametrize(
        "said",
        [
            '{"error": {"code": "context_length_exceeded", "message": "Your input exceeds the context window"}}',
            "This model's maximum context length is 512 tokens. However, you requested 530 tokens",
            "The decoder prompt (length 530) is longer than the maximum model length of 512.",
            "The prompt (total length 25938) is too long to fit into the model (context length 4096).",
            "The input (61709 tokens) is longer than the model's context length (40960 tokens).",
            "input length and `max_tokens` exceed context limit: 178959 + 64000 > 200000",
            '{"error": {"type": "exceed_context_size_error", "message": "request (530 tokens) exceeds"}}',
        ],
    )
    def test_a_conversation_that_does_not_fit_is_told_from_other_bad_requests(self, said: str) -> None:
        with serving(always((400, {}, said.encode()))) as server:
            (response,) = network(server.url).chat([ask("hi")])
        assert response.is_too_long
        assert said[:200] in response.error
        with serving(always((500, {}, said.encode()))) as server:
            (response,) = network(server.url, retries=0).chat([ask("hi")])
        assert not response.is_too_long, "a server that broke says nothing about the conversation"

    @pytest.mark.parametrize(
        "content",
        [
            b"<html>",
            b"[]",
            b"{}",
            b'{"choices": []}',
            b'{"choices": [{"message": {"content": 3}}]}',
            b'{"choices": [{"message": {"tool_calls": [{"function": {}}]}}]}',
            b"[" * 100_000,
        ],
    )
    def test_an_answer_of_another_shape_is_unscored(self, content: bytes) -> None:
        with serving(always((200, {}, content))) as server:
            (response,) = network(server.url).chat([ask("hi")])
        assert "not a chat completion" in response.error
        assert len(response.error) < 500

    def test_an_answer_that_is_too_long_is_not_read(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(http_replies, "BODY_LIMIT", 2**20)
        with serving(always((200, {}, b"x" * (3 * 2**20)))) as server:
            (response,) = network(server.url).chat([ask("hi")])
        assert "longer than 1 MiB" in response.error

    def test_an_answer_that_is_cut_short_is_unscored(self) -> None:
        with serving(always((200, {"Content-Length": "5000"}, b'{"choices"'))) as server:
            (response,) = network(server.url, retries=1).chat([ask("hi")])
        assert "the connection broke" in response.error or "not a chat completion" in response.error

    def test_silence_ends_at_the_timeout(self) -> None:
        with serving(always(None)) as server:
            (response,) = network(server.url, timeout_s=0.1, retries=1).chat([ask("hi")])
        assert response.error == "no complete answer within 0.1 s"
        assert len(server.seen) == 2

    def test_drops_do_not_prolong_the_timeout(self) -> None:
        """A server that sends a byte now and then keeps no one waiting longer."""

        class Dripping(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.wfile.write(b"HTTP/1.1 200 OK\r\n")
                for _ in range(100):
                    self.wfile.write(b"X")
                    self.wfile.flush()
                    if gone.wait(0.02):
                        return

            def log_message(self, *args: Any) -> None:
                pass

        gone = threading.Event()
        server = ThreadingHTTPServer(("127.0.0.1", 0), Dripping)
        server.handle_error = lambda *_: None  # type: ignore[method-assign]  # the client left
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            (response,) = network(f"http://127.0.0.1:{server.server_port}", timeout_s=0.2, retries=0).chat([ask("hi")])
        finally:
            gone.set()
            server.shutdown()
            thread.join()
            server.server_close()
        assert "no complete answer" in response.error

    @pytest.mark.parametrize("status", [401, 403, 404])
    def test_a_server_that_refuses_everything_cannot_be_asked(self, status: int) -> None:
        with (
            serving(always((status, {}, b"no such model"))) as server,
            pytest.raises(EngineError, match=rf"m at .* cannot be asked: .* {status} .*no such model"),
        ):
            network(server.url).chat([ask("n", seed) for seed in range(5)])

    def test_a_server_that_is_not_there_cannot_be_asked(self) -> None:
        with serving(echo) as server:
            pass
        with pytest.raises(EngineError, match="no connection"):
            network(server.url, retries=1).chat([ask("n", seed) for seed in range(5)])

    def test_a_server_that_goes_away_leaves_unscored_answers(self) -> None:
        with serving(echo) as server:
            engine = network(server.url, patience_s=0.01)
            texts(engine.chat([ask("hi")]))
        (response,) = engine.chat([ask("hi")])
        assert "no connection" in response.error

    def test_a_redirect_is_not_followed(self) -> None:
        with (
            serving(always((307, {"Location": "http://elsewhere/v1"}, b""))) as server,
            pytest.raises(EngineError, match=r"307 .* to http://elsewhere/v1, which is not followed"),
        ):
            network(server.url).chat([ask("hi")])

    @pytest.mark.parametrize("url", ["", "file:///etc/passwd", "http://", "http://a:b@c/v1", "http://h:99999/v1"])
    def test_a_wrong_address_is_refused(self, url: str) -> None:
        with pytest.raises(EngineError, match="base_url"):
            OpenAIEngine(url, "m")

    def test_a_key_that_would_break_out_of_its_header_is_refused(self) -> None:
        with pytest.raises(EngineError, match="API key"):
            OpenAIEngine("http://h/v1", "m", "a\r\nX: y")


def test_a_small_model_leaves_the_next_its_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(transformers_engine, "_THREADS", 2)
    TransformersEngine(POLICY, device="cpu").close()
    assert torch.get_num_threads() == 1
    monkeypatch.setattr(transformers_engine, "SMALL", 0)
    TransformersEngine(POLICY, device="cpu").close()
    assert torch.get_num_threads() == 2
    torch.set_num_threads(1)


class TestOpenEngine:
    def test_transformers(self, adapter_dir: Path) -> None:
        spec = {"kind": "transformers", "path": str(POLICY), "adapter": str(adapter_dir), "device": "cpu"}
        engine = open_engine(spec)
        assert texts(engine.chat([ask("Email Bako about the luso audit.")]))
        engine.close()

    def test_openai(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("STORY_API_KEY", "secret")
        monkeypatch.setenv("STORY_API_KEY_HOSTS", "127.0.0.1")
        with serving(echo) as server:
            spec = {"kind": "openai", "base_url": server.url, "model": "m", "api_key_env": "STORY_API_KEY"}
            assert texts(open_engine(spec).chat([ask("hi")])) == ["hi 0"]
        assert server.headers[0]["Authorization"] == "Bearer secret"

    @pytest.mark.parametrize(
        ("spec", "reason"),
        [
            ({}, "kind None is unknown; one of transformers, openai"),
            ({"kind": "transformers"}, "lacks 'path'"),
            ({"kind": "openai", "base_url": "http://h/v1"}, "lacks 'model'"),
            ({"kind": "openai", "base_url": "http://h/v1", "model": "m", "adapter": "x"}, "'adapter' is unknown"),
            ({"kind": "transformers", "path": 3}, "path is 3; text is wanted"),
            ({"kind": "transformers", "path": "p", "batch_size": "8"}, "batch_size is '8'; a number"),
            (
                {"kind": "openai", "base_url": "http://h/v1", "model": "m", "api_key_env": "DATABASE_URL"},
                "a name that ends in _API_KEY",
            ),
            (
                {"kind": "openai", "base_url": "http://h/v1", "model": "m", "api_key_env": "UNSET_API_KEY"},
                "UNSET_API_KEY, which should hold the API key, is not set",
            ),
        ],
    )
    def test_a_wrong_endpoint_is_refused(self, spec: dict[str, Any], reason: str) -> None:
        with pytest.raises(EngineError) as raised:
            open_engine(spec)
        assert reason in str(raised.value)
