"""A vLLM server of the run's own, on the device that it trains on (`rollouts: colocate`).

It ends with the trainer, however that ends. It is asked with a key that was made for it, which is nowhere but in the
two processes. On a GPU both share the memory: while the trainer learns, the server sleeps, with its weights in the
machine's memory and its cache given up. Why so: docs/design/rollouts.md.
"""

import json
import secrets
import socket
import time
import urllib.request
from contextlib import ExitStack
from typing import Any

import torch

from flywheel.core.network.key_hosts import VLLM_KEY
from workers.processes import vllm_process
from workers.processes.vllm_process import CannotServe
from workers.trainers.run.run_directory import Run
from workers.trainers.run.run_failures import TrainingError

LOG = "vllm.log"
START_S = 900.0
"""How long it may take to start: a large base is read, and kernels are compiled for the GPU."""
ASIDE_S = 300.0
"""How long its weights may take to the machine's memory, or back."""
SLOTS, KEPT = 1, 2
"""Adapters in a batch, and in memory: the one that is sampled, and the next while it is loaded."""


class OwnServer:
    def __init__(self, run: Run) -> None:
        """Start it, and wait until it answers. Raises TrainingError of kind sampler."""
        self.url, self.key = f"http://127.0.0.1:{_free_port()}", secrets.token_urlsafe(32)
        self.is_asleep = False
        self.sleeps = on_gpu()
        self._open = ExitStack()
        self._log = self._open.enter_context((run.path / LOG).open("a+b"))
        self._direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # to this machine, past any proxy
        began = time.monotonic()
        run.event("sampler", message=f"vLLM starts for this run, which may take {START_S:.0f} s")
        try:
            self._server = self._open.enter_context(
                vllm_process.started(self._command(run), self._environment(run), self._log)
            )
            vllm_process.wait(self._server, self.url, self._log, START_S)
        except CannotServe as error:
            self._open.close()
            raise TrainingError("sampler", f"{error}\nAll of it is in {LOG}; put that right, then resume") from error
        except BaseException:
            self._open.close()
            raise
        run.event("sampler", message=f"vLLM is ready after {time.monotonic() - began:.0f} s")

    def check(self) -> None:
        """Raise TrainingError where it has ended."""
        if self._server.poll() is not None:
            raise TrainingError(
                "sampler",
                f"the run's own vLLM server is gone: {vllm_process.ending(self._server, self._log)}\nAll of it is in "
                f"{LOG}. The last checkpoint is kept: resume, and the run starts another",
            )

    def sleep(self) -> None:
        """Have it give its memory back, on a GPU; it answers nothing until it is woken. Raises TrainingError."""
        if self.sleeps and not self.is_asleep:
            self._post("/sleep?level=1")
            self.is_asleep = True

    def wake(self) -> None:
        """Raises TrainingError."""
        if self.is_asleep:
            torch.cuda.empty_cache()  # vLLM can only take what the trainer does not keep for later
            told = self._post("/wake_up")
            if told.get("status") != "awake":
                raise TrainingError("sampler", f"the run's own vLLM server does not wake up: it says {told}")
            self.is_asleep = False

    def close(self) -> None:
        self._open.close()

    def _command(self, run: Run) -> list[str]:
        """Raises CannotServe."""
        spec = run.spec
        rank = next(each for each in vllm_process.RANKS if each >= spec.rank)
        words = vllm_process.command(spec.base.path, spec.served_base, self.url, rank=rank, slots=SLOTS, kept=KEPT)
        if vllm_process.is_cpu_build() == self.sleeps:
            here, there = ("GPU", "CPUs") if self.sleeps else ("CPU", "GPUs")
            raise CannotServe(
                f"the run trains on a {here}, and vLLM is installed here in its build for {there}: install the other "
                "one, or launch the run with another device or with rollouts trainer"
            )
        if not self.sleeps:
            return words
        share = spec.settings["vllm_memory_share"]
        # Of a long context it takes as much as its share has room for.
        return [*words, "--gpu-memory-utilization", f"{share:g}", "--max-model-len", "auto", "--enable-sleep-mode"]

    def _environment(self, run: Run) -> dict[str, str]:
        told = vllm_process.environment(run.spec.base.path) | {VLLM_KEY: self.key}
        return told | ({"VLLM_SERVER_DEV_MODE": "1"} if self.sleeps else {})  # without it there is no /sleep

    def _post(self, path: str) -> dict[str, Any]:
        try:
            with self._direct.open(self.url + path, b"", timeout=ASIDE_S) as answer:
                return dict(json.loads(answer.read()))
        except (OSError, ValueError) as error:
            self.check()
            raise TrainingError("sampler", f"the run's own vLLM server does not take {path}: {error}") from error


def on_gpu() -> bool:
    return torch.cuda.is_available()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
