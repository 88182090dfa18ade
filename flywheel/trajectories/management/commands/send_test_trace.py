"""`manage.py send_test_trace`: one realistic trace through the real endpoint, and back out of the database."""

import json
import time
from collections.abc import Callable
from typing import Any

import urllib3
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import transaction
from django.urls import reverse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from flywheel.accounts.actors import Actor
from flywheel.accounts.management.commands.create_key import system_account
from flywheel.accounts.models import ApiKey, Project, Scope
from flywheel.accounts.project_settings import api_keys
from flywheel.system import env
from flywheel.trajectories.formats.semantics import otlp_traces
from flywheel.trajectories.ingest.onboarding.sample_trace import SENT_BY, SPANS, episode, to_json
from flywheel.trajectories.models import Trajectory

READABLE_WITHIN_S = 10.0
TIMEOUT_S = 15.0


class Command(BaseCommand):
    help = "Send one trace to the endpoint, wait until it can be read, and say what was answered and how long it took."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--project", help="slug of the project; needed where there are several and no key is given")
        parser.add_argument("--endpoint", help="base address, as agents use it (default: this installation's own)")
        parser.add_argument("--key", help="an API key of scope ingest; without one, one is made and revoked again")
        protocols = ("http/protobuf", "http/json", "grpc")
        parser.add_argument("--protocol", choices=protocols, default=protocols[0], help="default: %(default)s")

    def handle(self, *args: Any, **options: Any) -> None:
        protocol: str = options["protocol"]
        endpoint = (options["endpoint"] or _own_address(protocol)).rstrip("/")
        made: ApiKey | None = None
        text: str = options["key"] or ""
        project = _project_of(text, options["project"])
        if not text:
            made, text = _make_key(project)
            self.stdout.write(f"made the key “{made.name}” for project {project.slug}; it is revoked when this ends")
        try:
            self._send(project, endpoint, protocol, text)
        finally:
            if made is not None:
                api_keys.revoke(key=made, actor=Actor(made.created_by, SENT_BY))

    def _send(self, project: Project, endpoint: str, protocol: str, key: str) -> None:
        request, trace_id = episode()
        send = _by_grpc if protocol == "grpc" else _by_http
        started = time.monotonic()
        answer = send(request, endpoint, protocol, key)
        answered = time.monotonic()
        self.stdout.write(f"{endpoint} answered: {answer}, after {(answered - started) * 1000:.0f} ms")
        _until(lambda: Trajectory.objects.filter(project=project, trace_id=trace_id, step_count=SPANS).exists())
        readable = time.monotonic() - started
        self.stdout.write(f"readable after {readable * 1000:.0f} ms, all {SPANS} spans, in project {project.slug}:")
        path = reverse("trajectories:detail", args=[project.slug, trace_id])
        self.stdout.write(f"  {_own_address('http/protobuf') if protocol == 'grpc' else endpoint}{path}")


def _own_address(protocol: str) -> str:
    address = "127.0.0.1" if env.bind() in ("0.0.0.0", "::") else env.bind()  # noqa: S104 it compares
    address = f"[{address}]" if ":" in address else address
    return f"{address}:{env.grpc_port() or 4317}" if protocol == "grpc" else f"http://{address}:{env.port()}"


def _project_of(key: str, slug: str | None) -> Project:
    """The project to read back from: the key's, or the one that is named, or the only one."""
    found = ApiKey.objects.select_related("project").filter(public=key.split("_")[1]).first() if "_" in key else None
    if found is not None and (slug is None or found.project.slug == slug):
        return found.project
    if found is not None:
        raise CommandError(f"this key is of project {found.project.slug}, not of {slug}")
    if key and slug is None:
        raise CommandError("this installation does not know the key; --project says where to look for the trace")
    rows = Project.objects.filter(slug=slug) if slug else Project.objects.all()
    projects = list(rows.order_by("slug")[:20])
    if len(projects) != 1:
        known = ", ".join(Project.objects.order_by("slug").values_list("slug", flat=True)[:20]) or "none yet"
        raise CommandError(
            f"there is no project {slug!r}; there is {known}" if slug else f"--project is one of {known}"
        )
    return projects[0]


@transaction.atomic
def _make_key(project: Project) -> tuple[ApiKey, str]:
    actor = system_account(project, [Scope.INGEST])
    made = api_keys.make(project=project, actor=Actor(actor, SENT_BY), name="test trace", scopes=[Scope.INGEST], days=1)
    return made.key, made.text


def _by_http(request: ExportTraceServiceRequest, endpoint: str, protocol: str, key: str) -> str:
    is_json = protocol == "http/json"
    body = json.dumps(to_json(request)).encode() if is_json else request.SerializeToString()
    headers = {"Authorization": f"Bearer {key}", "Content-Type": otlp_traces.JSON if is_json else otlp_traces.PROTOBUF}
    try:
        answer = urllib3.PoolManager(timeout=TIMEOUT_S, retries=False).request(
            "POST", f"{endpoint}/v1/traces", body=body, headers=headers
        )
    except urllib3.exceptions.HTTPError as error:
        raise CommandError(f"{endpoint} cannot be reached: {error}") from None
    said = answer.data.decode(errors="replace")[:500]
    if answer.status != 200:
        raise CommandError(f"{endpoint} answered {answer.status} {said}")
    kind = answer.headers.get("Content-Type", "").partition(";")[0]
    return f"200 {said if is_json else _partial(answer.data)} ({kind})"


def _by_grpc(request: ExportTraceServiceRequest, endpoint: str, protocol: str, key: str) -> str:
    try:
        import grpc
    except ModuleNotFoundError:
        raise CommandError("--protocol grpc wants the extra `grpc`: pip install -e '.[train,grpc]'") from None
    target = endpoint.removeprefix("http://").removeprefix("https://")
    secure = endpoint.startswith("https://")
    with grpc.secure_channel(target, grpc.ssl_channel_credentials()) if secure else grpc.insecure_channel(target) as to:
        export = to.unary_unary("/opentelemetry.proto.collector.trace.v1.TraceService/Export", _registered_method=False)
        try:
            answer = export(
                request.SerializeToString(), metadata=(("authorization", f"Bearer {key}"),), timeout=TIMEOUT_S
            )
        except grpc.RpcError as error:
            raise CommandError(f"{endpoint} answered {error.code().name}: {error.details()}") from None
    return f"OK {_partial(answer)}"


def _partial(body: bytes) -> str:
    """Say how many spans of an accepted request were rejected, and why."""
    answer = ExportTraceServiceResponse.FromString(body)
    if not answer.HasField("partial_success"):
        return "and nothing was rejected"
    told = answer.partial_success
    return f"but {told.rejected_spans} spans were rejected: {told.error_message}"


def _until(is_there: Callable[[], bool]) -> None:
    deadline = time.monotonic() + READABLE_WITHIN_S
    while not is_there():
        if time.monotonic() > deadline:
            raise CommandError(
                f"it was accepted and cannot be read after {READABLE_WITHIN_S:.0f} s:"
                " is the endpoint another installation's?"
            )
        time.sleep(0.02)
