"""`manage.py add_version`: make a version of weights of any size, in a directory of this machine or on a model hub."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import Project, User
from flywheel.agents.artifacts import ALLOWED, store
from flywheel.agents.models import Artifact
from flywheel.agents.references import find_agent, find_version
from flywheel.agents.registration import make_version
from flywheel.agents.version_content import TRANSFORMERS, VersionContent
from flywheel.core.network import model_hub
from flywheel.edge.refusals import Refused
from flywheel.system import env


class Command(BaseCommand):
    help = "Make a version of an agent from a directory of weights (safetensors, config and tokenizer files)."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--project", required=True)
        parser.add_argument("--agent", required=True)
        parser.add_argument("--by", required=True, help="user name of the member in whose name it is made")
        where = parser.add_mutually_exclusive_group(required=True)
        where.add_argument("--weights", default="", help="directory of the model")
        where.add_argument(
            "--hub", default="", help="name on the hub that FLYWHEEL_HUB allows, such as Qwen/Qwen3-0.6B"
        )
        parser.add_argument("--revision", default="main", help="commit, branch or tag on the hub; kept as its commit")
        parser.add_argument("--adapter", default="", help="directory of a LoRA adapter")
        parser.add_argument("--base-model", default="", help="its name as people say it; that of --like otherwise")
        parser.add_argument(
            "--like", default="", help="number of the version whose prompt, tools and sampling it takes"
        )
        parser.add_argument("--note", default="")

    def handle(self, *args: Any, **options: Any) -> None:
        project = Project.objects.filter(slug=options["project"]).first()
        if project is None:
            raise CommandError(f"there is no project {options['project']!r}")
        actor = User.objects.filter(username=options["by"], memberships__project=project).first()
        if actor is None:
            raise CommandError(f"the project has no member {options['by']!r}")
        try:
            agent = find_agent(project, options["agent"])
            like = find_version(project, f"{agent.name}@{options['like']}") if options["like"] else None
            copied = VersionContent.of(like) if like else VersionContent(base_model="", endpoint={})
            name, note = options["hub"], options["note"]
            if name:
                with _fetched(name, options["revision"]) as (directory, commit):
                    weights = _stored(directory, "model")
                note = note or f"{name} at {commit[:12]}"
            else:
                weights = _stored(options["weights"], "model")
            content = replace(
                copied,
                base_model=options["base_model"] or name or copied.base_model,
                endpoint={"kind": TRANSFORMERS},
                weights=weights,
                adapter=_stored(options["adapter"], "adapter") if options["adapter"] else None,
            )
            by = Actor(actor, "manage.py add_version")
            version, _ = make_version(agent=agent, actor=by, content=content, parent=like, note=note)
        except Refused as error:
            raise CommandError(str(error)) from error
        self.stdout.write(str(version))


@contextmanager
def _fetched(name: str, revision: str) -> Iterator[tuple[str, str]]:
    """A directory with a model of the hub, as long as it is needed, and its commit. Nothing that could run is fetched.

    Raises CommandError.
    """
    if not (hub := env.hub()):
        raise CommandError(model_hub.NOT_ALLOWED)
    with tempfile.TemporaryDirectory(prefix="flywheel-hub-") as place:
        try:
            commit = model_hub.fetch(hub, name, revision, Path(place), sorted(ALLOWED))
        except model_hub.HubError as error:
            raise CommandError(f"--hub: {error}") from error
        yield place, commit


def _stored(directory: str, kind: str) -> Artifact:
    if not Path(directory).is_dir():
        raise CommandError(f"{directory} is no directory")
    return store(Path(directory), kind)
