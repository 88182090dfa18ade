"""Engines: how a policy is asked. `open_engine` makes the one that a version's endpoint describes.

    {"kind": "transformers", "path": DIRECTORY, "adapter": DIRECTORY, "batch_size", "device", "dtype",
     "chat_template_kwargs"}
    {"kind": "openai", "base_url": URL, "model": NAME, "api_key_env": NAME OF A VARIABLE, "timeout_s", "concurrency",
     "price_in", "price_out", "price_cached", "chat_template_kwargs"}

Who has found the key already gives it as `api_key` (`workers.policies.endpoint_keys`).

Only `kind`, and `path` or `base_url` and `model`, are needed. Prices are dollars per million tokens. A key is named by
the environment variable that holds it, so that a stored endpoint never holds a secret; the variable's name must end in
`_API_KEY`, so that an endpoint cannot send another secret of this process to a server of its choice, and the key goes
only to hosts that the operator has bound it to (`core.network.key_hosts`).
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flywheel.core.envs.policy_rollouts import Engine, EngineError
from flywheel.core.network import key_hosts

_OPTIONS: dict[str, dict[str, Any]] = {
    "transformers": {
        "path": str,
        "adapter": str,
        "batch_size": int,
        "device": str,
        "dtype": str,
        "chat_template_kwargs": dict,
    },
    "openai": {
        "base_url": str,
        "model": str,
        "api_key_env": str,
        "api_key": str,
        "timeout_s": (int, float),
        "concurrency": int,
        "price_in": (int, float),
        "price_out": (int, float),
        "price_cached": (int, float),
        "chat_template_kwargs": dict,
    },
}
_NEEDED = {"transformers": ("path",), "openai": ("base_url", "model")}


def open_engine(spec: Mapping[str, Any]) -> Engine:
    """The engine that `spec` describes, ready to be asked. Raises EngineError for a spec or policy that is wrong."""
    kind, options = _checked(spec)
    if kind == "transformers":
        # Loads torch: only where a policy is asked in this process.
        from workers.engines.transformers_engine import TransformersEngine

        path, adapter = Path(options.pop("path")), options.pop("adapter", None)
        return TransformersEngine(path, Path(adapter) if adapter else None, **options)
    from workers.engines.openai_engine import OpenAIEngine

    key = options.pop("api_key", "") or _key(options.pop("api_key_env", ""), options["base_url"])
    return OpenAIEngine(options.pop("base_url"), options.pop("model"), key, **options)


def _key(variable: str, base_url: str) -> str:
    if not variable:
        return ""
    if not variable.endswith("_API_KEY"):
        raise EngineError(f"api_key_env is {variable!r}; a name that ends in _API_KEY is wanted")
    if not os.environ.get(variable):
        raise EngineError(f"the environment variable {variable}, which should hold the API key, is not set")
    if problem := key_hosts.refusal(variable, base_url):
        raise EngineError(problem)
    return os.environ[variable]


def _checked(spec: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    kind: Any = spec.get("kind")
    if kind not in _OPTIONS:
        raise EngineError(f"endpoint kind {kind!r} is unknown; one of {', '.join(_OPTIONS)} is wanted")
    options = {name: value for name, value in spec.items() if name != "kind" and value is not None}
    for name, value in options.items():
        wanted = _OPTIONS[kind].get(name)
        if wanted is None:
            raise EngineError(f"endpoint option {name!r} is unknown for {kind}; known: {', '.join(_OPTIONS[kind])}")
        if isinstance(value, bool) or not isinstance(value, wanted):
            kind_of = {str: "text", dict: "an object"}.get(wanted, "a number")
            raise EngineError(f"endpoint option {name} is {value!r}; {kind_of} is wanted")
    for name in _NEEDED[kind]:
        if not options.get(name):
            raise EngineError(f"the endpoint lacks {name!r}, which {kind} needs")
    return kind, options
