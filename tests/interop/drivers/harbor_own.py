"""In an interpreter with Harbor: read an exported task, and let Harbor's oracle and its idle agent try it.

`harbor_own.py TASK ROOT PYTHON`. Docker is not needed: the image is a folder below ROOT, in which commands run on this
machine with the Python named, whose libraries are those that the Dockerfile installs.
"""

import asyncio
import json
import os
import shutil
import sys
from pathlib import Path

from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.models.task.task import Task
from harbor.models.trial.config import TrialConfig
from harbor.trial.trial import Trial

task_dir, root, python = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve(), sys.argv[3]
INSIDE = ("/app", "/tests", "/logs", "/solution", "/opt", "/installed-agent")


class Folder(BaseEnvironment):
    """A container that is a folder: its absolute paths lie below it."""

    @staticmethod
    def type() -> str:
        return "folder"

    def _validate_definition(self) -> None:
        assert (self.environment_dir / "Dockerfile").is_file()

    @property
    def own(self) -> Path:
        return root / self.session_id

    def at(self, path: str) -> Path:
        return self.own / str(path).lstrip("/")

    async def start(self, force_build: bool) -> None:
        for name in INSIDE:
            self.at(name).mkdir(parents=True, exist_ok=True)
        for name in ("verifier", "agent", "artifacts"):
            self.at(f"/logs/{name}").mkdir(exist_ok=True)
        shutil.copytree(self.environment_dir / "flywheel_env", self.at("/opt/flywheel/flywheel_env"))
        self.at("/app/transcript.jsonl").touch()
        command = self.own / "bin/environment"
        command.parent.mkdir()
        command.write_text(f'#!/bin/sh\nPYTHONPATH="{self.at("/opt/flywheel")}" exec python3 -m flywheel_env "$@"\n')
        command.chmod(0o755)
        interpreter = self.own / "bin/python3"
        interpreter.write_text(f'#!/bin/sh\nexec {python} "$@"\n')
        interpreter.chmod(0o755)

    async def stop(self, delete: bool) -> None:
        pass

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        self.at(target_path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source_path, self.at(target_path))

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        shutil.copytree(source_dir, self.at(target_dir), dirs_exist_ok=True)

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        Path(target_path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(self.at(source_path), target_path)

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        shutil.copytree(self.at(source_dir), target_dir, dirs_exist_ok=True)

    async def exec(self, command: str, cwd: str | None = None, env: dict | None = None, **_: object) -> ExecResult:
        for name in INSIDE:
            command = command.replace(f"{name}/", f"{self.at(name)}/").replace(f" {name} ", f" {self.at(name)} ")
        surroundings = {
            "PATH": f"{self.own / 'bin'}:/usr/bin:/bin",
            "FLYWHEEL_TRANSCRIPT": str(self.at("/app/transcript.jsonl")),
            "FLYWHEEL_VERIFIER_LOGS": str(self.at("/logs/verifier")),
            "FLYWHEEL_HOME_IN_IMAGE": str(self.at("/opt/flywheel")),
            **(env or {}),
        }
        pipe = asyncio.subprocess.PIPE
        ran = await asyncio.create_subprocess_shell(
            command, cwd=self.at(cwd or "/app"), env=surroundings, stdout=pipe, stderr=pipe
        )
        out, err = await ran.communicate()
        if os.environ.get("SHOW"):
            print(command, "->", ran.returncode, out.decode()[-500:], err.decode()[-500:], file=sys.stderr)
        return ExecResult(stdout=out.decode(), stderr=err.decode(), return_code=ran.returncode)


async def main() -> None:
    task = Task(task_dir)
    print("RESULT " + json.dumps({"agent": "", "name": task.name, "instruction": len(task.instruction)}))
    for agent in ("oracle", "nop"):
        config = TrialConfig.model_validate(
            {
                "task": {"path": str(task_dir)},
                "trials_dir": str(root / "trials"),
                "agent": {"name": agent},
                "environment": {"import_path": "harbor_own:Folder"},
            }
        )
        trial = await Trial.create(config)
        found = await trial.run()
        rewards = found.verifier_result.rewards if found.verifier_result else None
        error = found.exception_info.exception_message if found.exception_info else ""
        print("RESULT " + json.dumps({"agent": agent, "rewards": rewards, "error": error}))


if __name__ == "__main__":
    asyncio.run(main())
