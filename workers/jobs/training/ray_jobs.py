"""Trainers as jobs of a Ray cluster, through the REST interface of Ray Jobs; nothing of Ray is imported.

The job runs the command of a local trainer on the same run directory, which the cluster's machines have by the same
path; it checks that first. With FLYWHEEL_RAY_STORAGE they share nothing but that storage: the run's directory is put
there, the job fetches it and puts there what it makes (`stored_job`), and this side brings that back (`FollowedJob`).

A job's id is made of the run and a number, and the cluster refuses an id that it has: so who asks twice, or comes after
an owner that died, finds the job that is there and follows it on. A job that is over has had its turn, and the next
start takes the next number. It is told no key and no secret; with a storage, only the key that signs the checkpoints of
its own run.
"""

import hashlib
import json
import os
import shlex
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from django.conf import settings

from flywheel.core.network.http_exchange import exchange
from flywheel.system import env
from workers.jobs.training import trainer_process
from workers.jobs.training.trainer_process import CANCEL_GRACE_S, TrainingFailed
from workers.trainers.run import run_directory
from workers.trainers.run.run_failures import TrainingError
from workers.trainers.stored import run_storage, stored_job
from workers.trainers.stored.followed_job import FollowedJob
from workers.trainers.stored.run_storage import Storage, StorageError
from workers.trainers.stored.stored_job import EXIT_STORAGE, NOTICE

T = TypeVar("T")
LOOK_EVERY_S = 2.0
CALL_S = 10.0
"""Time that the cluster may take for one answer."""
AWAY_S = 300.0
"""Time that a cluster may be away before a run that wants it fails."""
SETTLE_S = 60.0
"""Time that a file which another machine has written may take to be seen here."""
LOCK_S = 60
STORED_GRACE_S = 900.0
"""Time to save and stop where a checkpoint goes through a storage."""
OVER = ("SUCCEEDED", "FAILED", "STOPPED")
LOST = "LOST"
"""Our word for a job that the cluster had and has no more, as after a restart of its head."""
PASSED = ("FLYWHEEL_MODEL_MEMORY", "FLYWHEEL_SANDBOX_WITHOUT")


class Away(Exception):
    """The cluster did not answer, or with an error of its own."""


class RayTrainer:
    """A trainer on a run directory that is a job of the cluster. `key` is the run's, the same for every owner."""

    def __init__(self, key: str, module: str, place: Path, processes: int = 1) -> None:
        self.key, self.module, self.place, self.processes = key, module, place, processes
        self.number, self.status, self.message = 1, "", ""
        self._heard = time.monotonic()
        self._reached = self._heard
        self._next = self._next_bring = 0.0
        (place / "trainer.log").touch()
        self.stored = self._through_storage(env.ray_storage())

    @property
    def job(self) -> str:
        return f"{self.key}-a{self.number}"

    @property
    def name(self) -> str:
        return f"Ray job {self.job}"

    @property
    def ending(self) -> str:
        """The way it ended, in words."""
        return f"as {self.name}, which is {self.status}: {self.message or 'Ray gives no reason'}"

    @property
    def grace_s(self) -> float:
        return STORED_GRACE_S if self.stored else CANCEL_GRACE_S

    def is_alive(self) -> bool:
        """Whether it runs or waits to. It is begun here, where it is not there yet. Raises TrainingFailed."""
        if self.status not in (*OVER, LOST) and time.monotonic() >= self._next:
            try:
                self._look()
                self._heard = time.monotonic()
            except Away as error:
                if time.monotonic() - self._heard > AWAY_S:
                    raise TrainingFailed("ray_away", self._away(error)) from error
            self._next = time.monotonic() + (LOOK_EVERY_S if self.status else 0.0)
        if self.status not in (*OVER, LOST):
            if self.status and time.monotonic() >= self._next_bring and self._bring():
                self._next_bring = time.monotonic() + LOOK_EVERY_S
            return True
        if not self._is_seen():
            return True
        if self.status == "FAILED":
            self._explain()
        return False

    def stop(self) -> None:
        """Have the job ended. Raises TrainingFailed where the cluster does not confirm it."""
        deadline = time.monotonic() + AWAY_S / 5
        problem: Exception | None = None
        while time.monotonic() < deadline:
            try:
                found = self._ask()
                if found is None or found["status"] in OVER:
                    self.status = found["status"] if found else LOST
                    self._bring_the_rest()
                    return
                self._call("POST", f"/api/jobs/{quote(self.job)}/stop")
            except Away as error:
                problem = error
            time.sleep(0.5)
        raise TrainingFailed("ray_away", f"{self.name} was not stopped; {self._away(problem or 'it goes on')}")

    def leave(self) -> None:
        """Leave the job to the next owner, who finds it by its id."""

    def _look(self) -> None:
        found, is_asked_to_stop = self._ask(), (self.place / "CANCEL").exists()
        if found is None and self.status:
            self.status, self.message = LOST, "the cluster knows it no more"
        elif found is None and is_asked_to_stop:
            # Should a forgotten one live, its folder has to stay: it is asked to stop there.
            self.status = LOST if self.stored and self.stored.folder else "STOPPED"
        elif found is None:
            self._begin()
        elif not self.status and found["status"] in OVER and not self._has_brought(found["folder"]):
            return
        elif not self.status and found["status"] in OVER and not self._is_complete():
            self._leave_over()
        else:
            self._take(found["folder"])
            self.status, self.message = found["status"], str(found.get("message") or "")[:500]
            if self.status == "PENDING" and is_asked_to_stop:
                self._call("POST", f"/api/jobs/{quote(self.job)}/stop")

    def _ask(self) -> dict[str, Any] | None:
        """The cluster's word on the job; None where it knows none. Raises Away."""
        code, body = self._call("GET", f"/api/jobs/{quote(self.job)}")
        if code == 404:
            return None
        try:
            found = json.loads(body)
            told = found.get("metadata") or {}
            return {
                "status": str(found["status"]),
                "message": found.get("message"),
                "folder": str(told.get("flywheel_folder", "")),
            }
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Away(f"it answers {code} {body[:200]!r}, which is not Ray's") from error

    def _begin(self) -> None:
        """Submit the job; with a storage, put what it needs there first."""
        if self.stored is None:
            self._submit(self._command(), {}, {})
            return
        if self.stored.folder and not self._has_left_lost_job():
            return
        given = self._through(lambda stored: stored.give(f"a{self.number}"))
        if given is None:
            return
        self._heard = time.monotonic()  # much may have been put there meanwhile
        told = {run_storage.KEY_VARIABLE: self.stored.key.hex()}
        self._submit(self._stored_command(given), told, {"flywheel_folder": self.stored.folder})

    def _leave_over(self) -> None:
        """Go on from a job that is over: it has had its number."""
        if self.stored is not None:
            (self.place / "result.json").unlink(missing_ok=True)
            self._forget()
        self.number += 1

    def _has_left_lost_job(self) -> bool:
        """Whether all is here of a job that Ray does not know any more, and which did not complete the run."""
        if not self._through(FollowedJob.leave):
            return False
        if self._is_complete():
            self.status = "SUCCEEDED"
            return False
        (self.place / "result.json").unlink(missing_ok=True)
        return True

    def _submit(self, command: str, told: dict[str, str], noted: dict[str, str]) -> None:
        device = env.ray_device()
        passed = {name: os.environ[name] for name in PASSED if name in os.environ}
        body = {
            "submission_id": self.job,
            "entrypoint": command,
            "entrypoint_num_cpus": self.processes,
            "entrypoint_num_gpus": self.processes if device == "cuda" else 0,
            "runtime_env": {
                "env_vars": {
                    "PYTHONUNBUFFERED": "1",
                    **passed,
                    **told,
                    **({} if device == "cuda" else {"CUDA_VISIBLE_DEVICES": ""}),
                }
            },
            "metadata": {"flywheel_run": self.place.name, **noted},
        }
        code, answer = self._call("POST", "/api/jobs/", body)
        text = answer.decode(errors="replace")
        if code >= 400 and "already exists" not in text:
            raise TrainingFailed("ray_refused", f"Ray refuses {self.job} with {code}: {text[:500]}")
        self.status = "PENDING"

    def _command(self) -> str:
        """The job's shell command: look whether code and directory are the ones that we see, then train."""
        spec, code = self.place / "spec.json", settings.BASE_DIR
        seen = hashlib.sha256(spec.read_bytes()).hexdigest()
        ours = run_directory.command(self.module, self.place, self.processes, wait_lock=LOCK_S)
        checks = {
            f"cd {_quoted(code)} && test -x {_quoted(sys.executable)}": f"{sys.executable} and {code} are not on this "
            "machine; install Flywheel there by the same paths",
            f"echo {_quoted(f'{seen}  {spec}')} | sha256sum --check --status": f"{spec} is not on this machine as it "
            "is on the worker; share FLYWHEEL_HOME by the same path, or set FLYWHEEL_RAY_STORAGE",
        }
        lines = [_check(check, why) for check, why in checks.items()]
        return "\n".join([*lines, f"exec {shlex.join(ours)} >> {_quoted(self.place / 'trainer.log')} 2>&1"])

    def _stored_command(self, given: str) -> str:
        """The same where only the storage is shared: the machine's own Flywheel does it."""
        assert self.stored is not None
        program, where = stored_job.__name__, self.stored.storage.url
        asked = ["--storage", where, "--folder", self.stored.folder, "--given", given]
        shared = ["--processes", str(self.processes), self.module]
        return "\n".join(
            [
                _check(
                    f"python -c 'import {program}'",
                    "`python` of Ray's jobs has no Flywheel on this machine; install the worker's version of "
                    "flywheel[train] for it",
                ),
                f"exec python -m {program} {shlex.join([*asked, *shared])}",
            ]
        )

    def _explain(self) -> None:
        """Raise TrainingFailed where a job that failed said that it cannot work there at all."""
        try:
            log = json.loads(self._call("GET", f"/api/jobs/{quote(self.job)}/logs")[1])["logs"]
            lines = [line for line in str(log).splitlines() if line.strip()]
        except (Away, ValueError, KeyError, TypeError):
            return
        for line in lines:
            if line.startswith(NOTICE):
                raise TrainingFailed("ray_storage", line.removeprefix(NOTICE)[:1000])
        if lines:
            self.message = f"{self.message.splitlines()[0] if self.message else 'FAILED'} {lines[-1]}"[:500]

    def _is_complete(self) -> bool:
        return bool(trainer_process.result_of(self.place).get("status") == "completed")

    def _is_seen(self) -> bool:
        """Whether all that an ended job made has come here. Raises TrainingFailed where the result of one that
        succeeded does not."""
        if not self._bring():
            return False
        if self.status != "SUCCEEDED" or (self.place / "result.json").exists():
            if self.status in OVER:
                self._forget()
            return True
        if time.monotonic() - self._heard > SETTLE_S:
            where = "in the storage" if self.stored else "here; share FLYWHEEL_HOME with the cluster"
            raise TrainingFailed("ray_storage", f"{self.name} succeeded, and left no result {where}")
        return False

    def _through_storage(self, url: str) -> FollowedJob | None:
        try:
            return FollowedJob(Storage(url), self.key, self.place) if url else None
        except StorageError as error:
            raise TrainingFailed("ray_storage", str(error)) from error

    def _through(self, act: Callable[[FollowedJob], T]) -> T | None:
        """Return what comes of it; None while the storage is away. Raises TrainingFailed for other problems."""
        assert self.stored is not None
        try:
            done = act(self.stored)
        except TrainingError as error:
            raise TrainingFailed(error.kind, error.message) from error
        except (StorageError, OSError) as error:
            is_away = isinstance(error, StorageError) and error.may_pass
            if is_away and time.monotonic() - self._reached < AWAY_S:
                return None
            raise TrainingFailed("ray_storage", f"{error}. Resume the run once this is put right") from error
        self._reached = time.monotonic()
        return done

    def _take(self, folder: str) -> None:
        if self.stored is None:
            return
        if not folder:
            raise TrainingFailed("ray_storage", f"{self.name} was begun without FLYWHEEL_RAY_STORAGE; resume the run")
        try:
            self.stored.take(folder)
        except (StorageError, OSError) as error:
            raise TrainingFailed("ray_storage", str(error)) from error

    def _bring(self) -> bool:
        """Bring what is new in the storage here. Answers whether everything is here."""
        return self.stored is None or bool(self._through(FollowedJob.follow))

    def _has_brought(self, folder: str) -> bool:
        """The same of a former owner's job that is over."""
        if self.stored is None or not self.stored.is_new(folder):
            return True
        self._take(folder)
        return self._bring()

    def _bring_the_rest(self) -> None:
        """As much as comes within a minute; a resumed run finds what is left."""
        deadline = time.monotonic() + SETTLE_S
        with suppress(TrainingFailed):
            while not self._bring() and time.monotonic() < deadline:
                time.sleep(0.5)

    def _forget(self) -> None:
        """Remove what a job that is over, and of which everything is here, has in the storage."""
        if self.stored is not None:
            with suppress(StorageError, OSError):
                self.stored.forget()

    def _away(self, problem: object) -> str:
        minutes = f"{AWAY_S / 60:.0f} minutes"
        return (
            f"the Ray cluster at {env.ray_address() or 'FLYWHEEL_RAY_ADDRESS, which is not set,'} has not answered for "
            f"{minutes}: {problem}. Resume the run when it does; it goes on with its job {self.job}, if that still runs"
        )

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> tuple[int, bytes]:
        """Status below 500, and body. Raises Away for all else."""
        content = None if body is None else json.dumps(body).encode()
        try:
            reply, answer = exchange(
                method,
                env.ray_address() + path,
                content,
                {"Content-Type": "application/json"},
                connect_s=CALL_S / 2,
                deadline=time.monotonic() + CALL_S,
            )
        except (OSError, HTTPException, ValueError) as error:
            raise Away(str(error) or type(error).__name__) from error
        if reply.status >= 500 and b"already exists" not in answer:
            raise Away(f"it answers {reply.status}: {answer[:300].decode(errors='replace')}")
        return reply.status, answer


def _check(check: str, why: str) -> str:
    return f"{check} || {{ echo {_quoted(NOTICE + why)}; exit {EXIT_STORAGE}; }}"


def _quoted(value: object) -> str:
    return shlex.quote(str(value))
