"""The forms of a new agent and of a new version."""

import json
import shlex
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from django import forms

from flywheel.agents import artifacts, model_archives
from flywheel.agents.models import Agent, Artifact, Version
from flywheel.agents.registration import artifacts_of
from flywheel.agents.version_content import (
    DEFAULT_SAMPLING,
    KINDS,
    MAX_TOKENS,
    OPENAI,
    PROGRAM,
    TRANSFORMERS,
    WAYS,
    VersionContent,
)
from flywheel.agents.weights.hub_versions import HubSource
from flywheel.core.traces.call_forms import LABELS
from flywheel.system import env

UPLOAD, HUB = "upload", "hub"
SERVER = ("base_url", "model", "api_key_env", "price_in", "price_out")
HIDDEN = ("timeout_s", "concurrency", "batch_size", "device", "dtype")
TEMPLATE = ("chat_template_kwargs",)
OF_PROGRAM = ("way", "url", "code", "timeout_s", "concurrency")


class AgentForm(forms.Form):
    name = forms.CharField(max_length=100)
    description = forms.CharField(required=False, widget=forms.Textarea(attrs={"rows": 3}))


class _PrettyJSON(forms.JSONField):
    """JSON that a person reads and edits: indented."""

    def prepare_value(self, value: Any) -> Any:
        return value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)


class _OneLineJSON(forms.JSONField):
    """JSON in a line; nothing where there is none."""

    def prepare_value(self, value: Any) -> Any:
        return "" if value is None else super().prepare_value(value)


class _Files(forms.FileField):
    """Several files of one field; cleaned to a list of them."""

    widget = type("_FilesInput", (forms.FileInput,), {"allow_multiple_selected": True})

    def clean(self, data: Any, initial: Any = None) -> Any:
        given = data if isinstance(data, list | tuple) else [data] if data else []
        return [super(_Files, self).clean(one, initial) for one in given]


class VersionForm(forms.Form):
    base_model = forms.CharField(max_length=300)
    kind = forms.ChoiceField(choices=list(KINDS.items()), widget=forms.RadioSelect)
    way = forms.ChoiceField(choices=list(WAYS.items()), widget=forms.RadioSelect, required=False)
    url = forms.CharField(max_length=500, required=False)
    command = forms.CharField(max_length=4000, required=False)
    code = forms.CharField(max_length=300, required=False)
    timeout_s = forms.FloatField(required=False)
    concurrency = forms.IntegerField(required=False)
    base_url = forms.CharField(max_length=500, required=False)
    model = forms.CharField(max_length=300, required=False)
    api_key_env = forms.CharField(max_length=100, required=False)
    price_in = forms.FloatField(min_value=0, max_value=10_000, required=False)
    price_out = forms.FloatField(min_value=0, max_value=10_000, required=False)
    weights = forms.ChoiceField(required=False)
    weights_files = _Files(required=False)
    hub_name = forms.CharField(max_length=201, required=False)
    hub_revision = forms.CharField(max_length=100, required=False)
    adapter = forms.ChoiceField(required=False)
    adapter_files = _Files(required=False)
    system_prompt = forms.CharField(required=False, strip=False, widget=forms.Textarea(attrs={"rows": 8}))
    tools = _PrettyJSON(
        required=False, widget=forms.Textarea(attrs={"rows": 16, "class": "code", "spellcheck": "false"})
    )
    form = forms.ChoiceField(choices=[("", "native, or as its chat template has it"), *LABELS.items()], required=False)
    temperature = forms.FloatField(min_value=0, max_value=5)
    top_p = forms.FloatField(min_value=0, max_value=1)
    max_tokens = forms.IntegerField(min_value=1, max_value=MAX_TOKENS)
    chat_template_kwargs = _OneLineJSON(
        required=False, widget=forms.TextInput(attrs={"class": "code", "spellcheck": "false", "autocomplete": "off"})
    )
    note = forms.CharField(max_length=300, required=False)

    def __init__(self, agent: Agent, like: Version | None, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.like = like
        self.stored = {artifact.digest: artifact for artifact in artifacts_of(agent.project)}
        for name, kind in (("weights", "model"), ("adapter", "adapter")):
            field = self.fields[name]
            assert isinstance(field, forms.ChoiceField)
            kept = [(one.digest, _named(one)) for one in self.stored.values() if one.kind == kind]
            field.choices = [("", "none"), *kept, (UPLOAD, "upload files")]
            if name == "weights" and env.hub():
                field.choices = [*field.choices, (HUB, f"fetch from {env.hub()}")]
        for name, label in (("weights_files", "Files of the weights"), ("adapter_files", "Files of the adapter")):
            accepted = ",".join((*sorted(artifacts.ALLOWED), *model_archives.ENDINGS))
            self.fields[name].widget.attrs |= {"accept": accepted, "multiple": True, "aria-label": label}

    @classmethod
    def start(cls, agent: Agent, like: Version | None) -> "VersionForm":
        """An empty form, or one that says what a version says."""
        if like is None:
            return cls(agent, None, initial={"kind": TRANSFORMERS, "way": "http", "tools": [], **DEFAULT_SAMPLING})
        return cls(
            agent,
            like,
            initial={
                **DEFAULT_SAMPLING,
                **like.sampling,
                "way": "http",
                **like.endpoint,
                "command": shlex.join(like.endpoint.get("command", ())),
                "base_model": like.base_model,
                "weights": like.weights.digest if like.weights else "",
                "adapter": like.adapter.digest if like.adapter else "",
                "system_prompt": like.system_prompt,
                "tools": like.tools,
                "form": like.form,
            },
        )

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or {}
        files: Sequence[Any] = [*cleaned.get("weights_files", ()), *cleaned.get("adapter_files", ())]
        if sum(file.size or 0 for file in files) > model_archives.MAX_BYTES:
            limit = model_archives.MAX_BYTES // 1024 // 1024
            raise forms.ValidationError(
                f"More than {limit} MB of files; store a model of that size with manage.py add_version on the server."
            )
        return cleaned

    def clean_command(self) -> list[str]:
        """Its words, as a shell would part them."""
        try:
            return shlex.split(self.cleaned_data["command"])
        except ValueError as error:
            raise forms.ValidationError(f"its quotes do not fit ({error})") from None

    @property
    def is_of_hub(self) -> bool:
        """Whether a worker has to fetch its weights first."""
        return bool(self.cleaned_data["kind"] == TRANSFORMERS and self.cleaned_data["weights"] == HUB)

    def source(self) -> HubSource:
        """Return where on the hub they are."""
        cleaned = self.cleaned_data
        return HubSource(cleaned["hub_name"].strip(), cleaned["hub_revision"].strip() or "main")

    def content(self) -> VersionContent:
        """Return the version's content. Stores what was uploaded. Raises artifacts.ArtifactError."""
        cleaned = self.cleaned_data
        return VersionContent(
            base_model=cleaned["base_model"],
            endpoint=self._endpoint(),
            weights=self._artifact("weights", "model"),
            adapter=self._artifact("adapter", "adapter"),
            # Browsers send line ends as CRLF; a prompt that was only looked at must stay what it was.
            system_prompt=cleaned["system_prompt"].replace("\r\n", "\n"),
            tools=cleaned["tools"] or [],
            sampling={name: cleaned[name] for name in DEFAULT_SAMPLING},
            form=cleaned["form"] or (None if self.like is None or self.like.form else ""),
        )

    def _endpoint(self) -> dict[str, Any]:
        """Read the endpoint from the form; options not shown stay as they are in the version that is copied."""
        cleaned = self.cleaned_data
        copied = self.like.endpoint if self.like and self.like.endpoint.get("kind") == cleaned["kind"] else {}
        endpoint = {"kind": cleaned["kind"], **{name: copied[name] for name in HIDDEN if name in copied}}
        shown = {
            TRANSFORMERS: TEMPLATE,
            OPENAI: (*SERVER, *TEMPLATE),
            PROGRAM: (*OF_PROGRAM, *SERVER),
        }[cleaned["kind"]]
        if cleaned["kind"] == PROGRAM:
            endpoint = {"kind": PROGRAM}
            shown = tuple(name for name in shown if name != "url" or cleaned["way"] == "http")
            if cleaned["way"] == "command":
                endpoint["command"] = cleaned["command"]
        return endpoint | {name: cleaned[name] for name in shown if cleaned[name] not in ("", None, {})}

    def _artifact(self, field: str, kind: str) -> Artifact | None:
        chosen = self.cleaned_data[field]
        if chosen != UPLOAD:
            return self.stored.get(chosen)
        return keep_files(self.cleaned_data[f"{field}_files"], kind)


def keep_files(files: Sequence[Any], kind: str) -> Artifact:
    """Store uploaded files (Django's `UploadedFile`), or those of an archive, as an artifact. Raises
    artifacts.ArtifactError."""
    if len(files) == 1 and (files[0].name or "").lower().endswith(model_archives.ENDINGS):
        return model_archives.store_archive(files[0], kind)
    with tempfile.TemporaryDirectory(prefix="flywheel-upload-") as place:
        directory = Path(place) / "upload"
        directory.mkdir()
        for file in files:
            name = Path(file.name or "").name  # Django cuts paths off already; once more costs nothing
            if not name or name.startswith("."):
                raise artifacts.ArtifactError(f"{file.name!r} is no file name")
            with (directory / name).open("xb") as target:
                for chunk in file.chunks():
                    target.write(chunk)
        return artifacts.store(directory, kind)


def _named(artifact: Artifact) -> str:
    return (
        f"{artifact} · {len(artifact.manifest)} files · {artifact.size / 1e6:.1f} MB · {artifact.created_at:%Y-%m-%d}"
    )
