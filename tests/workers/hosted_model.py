"""Somebody else's server: a model of a few thousand weights behind `POST /v1/completions` with a key, which tells of
given tokens what vLLM tells."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

KEY, MODEL = "sk-of-somebody-else", "big-model"
Spoil = Callable[[dict[str, Any]], Any]
"""What is done to an answer before it is sent; an HTTP status in its place is sent alone."""


class HostedModel:
    def __init__(self, weights: Path, port: int = 0) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.model: Any = AutoModelForCausalLM.from_pretrained(weights)
        self.tokenizer: Any = AutoTokenizer.from_pretrained(weights)
        self.asked: list[list[int]] = []
        self.keys: set[str] = set()
        self.room: int | None = 512
        self.spoil: Spoil = lambda answer: answer
        self._lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                row = {"id": MODEL} | ({"max_model_len": outer.room} if outer.room else {})
                self._reply(200, {"data": [row]})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with outer._lock:
                    outer.keys.add(self.headers.get("Authorization", ""))
                    found = outer.spoil(outer.answer(body)) if self.path == "/v1/completions" else 404
                if isinstance(found, int):
                    self._reply(found, {"error": f"not with {self.headers['Authorization']}"})
                else:
                    self._reply(200, found)

            def _reply(self, status: int, value: Any) -> None:
                content = json.dumps(value).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *args: Any) -> None: ...

        self._http = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._http.daemon_threads = True
        self.port = self._http.server_port
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    @property
    def endpoint(self) -> dict[str, Any]:
        """As a version has it."""
        return {"kind": "openai", "base_url": f"http://127.0.0.1:{self.port}/v1", "model": MODEL}

    def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        import torch

        assert (body["model"], body["max_tokens"], body["prompt_logprobs"]) == (MODEL, 1, 0)
        tokens = body["prompt"]
        self.asked.append(tokens)
        with torch.no_grad():
            chances = torch.log_softmax(self.model(torch.tensor([tokens])).logits[0], -1)
        rows = [
            {str(token): {"logprob": float(chances[place, token]), "decoded_token": self.tokenizer.decode([token])}}
            for place, token in enumerate(tokens[1:])
        ]
        usage = {"prompt_tokens": len(tokens), "completion_tokens": 1}
        return {"model": MODEL, "choices": [{"text": "x", "prompt_logprobs": [None, *rows]}], "usage": usage}

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


@contextmanager
def hosted_model(weights: Path, port: int = 0) -> Iterator[HostedModel]:
    server = HostedModel(weights, port)
    try:
        yield server
    finally:
        server.close()


def better(weights: Path, place: Path) -> Path:
    """A model of the same tokens that says other things."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(weights)
    drawn = torch.Generator().manual_seed(5)
    for weight in model.parameters():
        weight.data += 0.3 * weight.data.std() * torch.randn(weight.shape, generator=drawn) if weight.dim() > 1 else 0
    model.save_pretrained(place)
    AutoTokenizer.from_pretrained(weights).save_pretrained(place)
    return place
