"""`python -m workers.programs.vllm_server`, which `make serve` starts: vLLM in an environment of its own, with one base
and LoRA.

When it is ready, the adapters of live versions of this base are loaded; Ctrl-C stops all.
"""

import argparse
import json
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import django

from flywheel.server.supervisor import Stop, raise_stop
from flywheel.system import env, postgres
from workers.engines.tool_calls import response_template_of
from workers.processes import vllm_process
from workers.processes.vllm_process import CannotServe

PORT = 8100
CHAT = [
    "--enable-auto-tool-choice",
    # An answer that must be JSON is compact: between two of its tokens a weak judge would write spaces for ever.
    "--structured-outputs-config",
    json.dumps({"backend": "xgrammar", "disable_any_whitespace": True}),
]
"""What it is told for whoever asks it in messages."""
NESTED = ("<function=", "<arg_key>")
"""What stands within `<tool_call>` where it is not JSON."""


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
    parser.add_argument(
        "--max-lora-rank", type=int, default=64, choices=vllm_process.RANKS, help="the greatest rank of an adapter"
    )
    parser.add_argument("more", nargs="*", help="after --: what vLLM is to be told besides")
    return parser.parse_args()


def _serve(options: argparse.Namespace) -> None:
    from django.conf import settings

    from flywheel.agents.artifacts import digest_of
    from flywheel.evals.serving.loaded_adapters import LOADED, SLOTS, base_name

    base = _base_of(options.version, options.project) if options.version else Path(settings.REFERENCE_POLICY)
    url = f"http://127.0.0.1:{_port(options)}"
    name = base_name(digest_of(base))
    with tempfile.TemporaryDirectory(prefix="flywheel-tokenizer-") as aside, tempfile.TemporaryFile() as log:
        words = vllm_process.command(base, name, url, rank=options.max_lora_rank, slots=SLOTS, kept=LOADED)
        _run([*words, *CHAT, *reading(base, Path(aside)), *options.more], base, name, url, log)


def _run(words: list[str], base: Path, name: str, url: str, log: Any) -> None:
    """Serve until it is ended. Raises CannotServe."""
    with vllm_process.started(words, vllm_process.environment(base), log) as server:
        try:
            print("vLLM starts, which takes a minute or more", file=sys.stderr, flush=True)
            vllm_process.wait(server, url, log)
            live = "".join(f", {name}" for name in _load_live(url))
            print(
                f"vLLM is ready: {name}{live} at {url}. For evals on it start Flywheel with FLYWHEEL_VLLM_URL={url}",
                flush=True,
            )
            server.wait()
            raise CannotServe(f"vLLM is gone: {vllm_process.ending(server, log)}")
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_IGN)  # it is being ended


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


def _load_live(url: str) -> list[str]:
    """The names of the live versions that it answers for from now on; none where there is no database yet."""
    from django.db import Error

    from flywheel.evals.serving import loaded_adapters

    try:
        return loaded_adapters.load_live(url)
    except Error as error:
        print(f"flywheel: no adapter of a live version is loaded, the database is away: {error}", file=sys.stderr)
        return []


if __name__ == "__main__":
    main()
