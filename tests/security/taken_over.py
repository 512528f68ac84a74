"""A worker with a runner that was taken over: surroundings worth a theft, and what became of every try.

Run as a script it is that worker: ``python -m tests.security.taken_over FOLDER MODE START`` starts ``hostile.py`` in a
sandbox of this mode, afresh or as a spare runner, and prints its answers.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from service.settings import Settings
from tests.security.older_kernel import numbers
from tests.support.patience import PATIENCE_SECONDS
from tests.worker.workbench import WAITS, spare_pid
from worker import sandbox
from worker.spares import Spares

HERE = Path(__file__).parent
HOSTILE, OLDER_KERNEL = HERE / "hostile.py", HERE / "older_kernel.py"
SECRET = "canary-of-another-tenant"
INPUT = "what the job is given"


@dataclass(frozen=True)
class Surroundings:
    """What the runner aims at: everything in a folder, and a process that has done nothing to anybody."""

    folder: Path
    bystander: subprocess.Popen[bytes]

    def tries(
        self, *, mode: str = "auto", lacking: Sequence[str] = (), only: Sequence[str] = (), start: str = "fresh"
    ) -> dict[str, str]:
        """What became of every try, by its name; ``lacking``: what the kernel does not have, see ``older_kernel``."""
        task_file = self.folder / "scratch" / "task.json"
        task_file.write_text(json.dumps({**json.loads(task_file.read_text()), "only": list(only)}))
        worker = [sys.executable, "-m", __spec__.name, str(self.folder), mode, start]
        command = [sys.executable, str(OLDER_KERNEL), numbers(*lacking), *worker]
        environment = {"QUANTMILL_API_KEY": SECRET, "PYTHONPATH": str(HERE.parents[1])}
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
        )
        assert done.returncode == 0, done.stderr
        answers: dict[str, str] = json.loads(done.stdout)
        return answers

    def undisturbed(self) -> None:
        """Nobody and nothing around the runner was touched."""
        assert self.bystander.poll() is None
        assert (self.folder / "canary").read_text() == SECRET
        assert (self.folder / "store" / "input").read_text() == INPUT
        assert (self.folder / "store").stat().st_mode & 0o777 == 0o700
        assert {path.name for path in (self.folder / "store").iterdir()} == {"input", "other"}
        assert not (self.folder / "planted").exists()
        assert all(path.stat().st_nlink == 1 for path in (self.folder / "store").iterdir())


@contextmanager
def surroundings(folder: Path, user: int | None = None) -> Iterator[Surroundings]:
    """A store, files of others, servers on every kind of address, and a process that minds its own business."""
    scratch, store = folder / "scratch", folder / "store"
    for made in (scratch, store):
        made.mkdir(mode=0o700)
    (folder / "canary").write_text(SECRET)
    (store / "other").write_text(SECRET)
    (store / "input").write_text(INPUT)
    (scratch / "input").symlink_to(store / "input")
    with ExitStack() as stack:
        bystander = stack.enter_context(subprocess.Popen(["/bin/sleep", "600"], user=user, group=user))
        stack.callback(bystander.kill)
        addresses = {name: stack.enter_context(_server(*where)) for name, where in _servers(folder).items()}
        aim = {
            "secrets": {"canary": str(folder / "canary"), "a file of the store": str(store / "other")},
            "folders": {"store": str(store)},
            "input": str(scratch / "input"),
            "target": str(store / "input"),
            "outside": str(folder),
            "package": sandbox.__file__,
            "addresses": addresses,
            "bystander": bystander.pid,
        }
        (scratch / "task.json").write_text(json.dumps(aim))
        if user is not None:
            for path in (folder, *folder.rglob("*")):
                os.chown(path, user, user, follow_symlinks=False)
        yield Surroundings(folder, bystander)


def _servers(folder: Path) -> dict[str, tuple[int, int, Any]]:
    return {
        "TCP on loopback": (socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0)),
        "TCP on loopback of version 6": (socket.AF_INET6, socket.SOCK_STREAM, ("::1", 0)),
        "UDP on loopback": (socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 0)),
        "a UNIX socket of a path": (socket.AF_UNIX, socket.SOCK_STREAM, str(folder / "socket")),
        "an abstract UNIX socket": (socket.AF_UNIX, socket.SOCK_STREAM, f"\0quantmill-{os.getpid()}-{folder.name}"),
    }


@contextmanager
def _server(family: int, kind: int, address: Any) -> Iterator[tuple[int, int, Any]]:
    """A listening socket; family, kind and address as the runner takes them (an abstract name begins with @)."""
    with socket.socket(family, kind) as server:
        server.bind(address)
        if kind == socket.SOCK_STREAM:
            server.listen()
        name = server.getsockname()
        yield family, kind, "@" + name[1:].decode() if isinstance(name, bytes) else name


def main(folder: Path, mode: sandbox.Mode, start: str) -> None:
    scratch = folder / "scratch"
    places = sandbox.Places(readable=(folder / "store" / "input",))
    limits = sandbox.SandboxLimits(memory_bytes=1 << 30, gpus=False)
    ours = sandbox.Sandbox((sys.executable, "-P", str(WAITS), str(HOSTILE)), mode=mode)
    if start == "fresh":
        process = ours.start(scratch / "task.json", scratch=scratch, limits=limits, places=places)
    else:
        # Before it has a job all of the folder is open to it, which is more than a spare runner has.
        spares = Spares(ours, Settings(data_dir=folder, scratch_dir=folder), first_seconds=0.0)
        pid = spare_pid(spares)
        process = spares.take(scratch / "task.json", scratch=scratch, limits=limits, places=places)
        assert process.pid == pid
    said = [line.message for line in process.remaining_lines(PATIENCE_SECONDS) if line.line == "log"]
    process.close()
    assert process.returncode == 0, process.stderr_tail()
    print(json.dumps(dict(message.split(": ", 1) for message in said)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])  # type: ignore[arg-type]
