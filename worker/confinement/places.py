"""Files that a runner may access: its interpreter, its inputs, and its own folders.

Whatever is not named here does not exist for it beyond its name: not the store, the database, other scratch folders,
the homes of users, the configuration below /etc, or the processes below /proc. Rules of Landlock only ever add, so
there is none for a folder that holds more than a runner may have.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from worker.launcher import EXECUTE, IOCTL_DEV, READ, READ_DIR, READ_FILE, TRUNCATE, WRITE, WRITE_FILE

# Path, rights, and whether it has to be there.
Rule = tuple[str, int, bool]

PACKAGE_ROOT = Path(__file__).resolve().parents[2]
# What a runner imports of ours.
_PACKAGES = ("service", "worker", "quantmill")
_PACKAGES_FOLDER = ".packages"

# Libraries, data of the C library, and what numeric libraries read of the machine to choose their kernels.
_SYSTEM_READ = (
    "/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/share/zoneinfo", "/usr/share/locale",
    "/etc/ld.so.cache", "/etc/localtime", "/etc/locale.alias", "/etc/ssl/openssl.cnf", "/opt/rocm", "/sys/devices",
    "/sys/bus", "/sys/class", "/sys/fs/cgroup",
    "/proc/self", "/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/vmstat", "/proc/version", "/proc/loadavg",
    "/proc/sys/kernel/osrelease", "/proc/sys/vm/overcommit_memory", "/dev/zero", "/dev/random", "/dev/urandom",
)  # fmt: skip
# The second: by it a stage's own peak of memory is told apart from that of the stages before.
_SYSTEM_WRITE = ("/dev/null", "/proc/self/clear_refs")
# Executables of the kernel's own making need the program that loads them, too.
_LOADERS = ("/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1")
_LOADERS_OF_MUSL = ("/lib", ("ld-musl-*.so.1",))
# Drivers of GPUs talk by requests to these devices. Those of /dev/dri show pictures as well, and a server without any
# GPU to compute on may have them: they go with AMD's.
_DEVICES, _DEVICES_OF_AMD = ("nvidia*", "kfd", "dxg"), ("dri",)
_DRIVER_READ = (
    "/usr/share/nvidia", "/etc/nvidia", "/sys/module", "/sys/kernel/mm", "/proc/driver", "/proc/devices",
    "/proc/modules", "/proc/sys/vm",
)  # fmt: skip
_DRIVER_LIBRARIES = ("/usr/local", ("cuda*", "nvidia"))


@dataclass(frozen=True)
class Places:
    """What one runner reaches beside its scratch folder and the system."""

    readable: tuple[Path, ...] = ()  # files, or folders with all that is below them
    writable: tuple[Path, ...] = ()  # folders

    def __add__(self, other: Places) -> Places:
        """Both together."""
        return Places(self.readable + other.readable, self.writable + other.writable)


def rules_for(command: Sequence[str], scratch: Path, places: Places, *, gpus: bool) -> list[Rule]:
    """The rules of Landlock for one runner; all paths absolute.

    Args:
        command: what is executed; the files that it names may be read.
        scratch: its own folder.
        places: what else it may reach.
        gpus: it may use those of this machine.
    """
    named = [part for part in command[1:] if part.startswith("/") and Path(part).is_file()]
    return [
        *_system(),
        *(_gpus() if gpus else ()),
        (command[0], EXECUTE | READ_FILE, True),
        *((part, READ_FILE, True) for part in named),
        *((str(path), READ, True) for path in places.readable),
        *((str(path), WRITE, True) for path in (scratch, *places.writable)),
    ]


def rules_before(command: Sequence[str], scratch_root: Path, places: Places) -> list[Rule]:
    """The rules for a runner that has no job yet; whatever one may need is among them, for they can only be narrowed.

    Rules hold on to inodes, and the kernel makes those below /proc anew while such a runner waits: here they name
    folders that stay.

    Args:
        command: as for ``rules_for``.
        scratch_root: the folder in which the job's own will be.
        places: folders in which all lies that a job may have to reach.
    """
    own = () if _is_installed() else ((str(PACKAGE_ROOT), READ_DIR, False),)
    proc = (("/proc", READ, False), ("/proc/self", READ | WRITE_FILE | TRUNCATE, False))
    return [*rules_for(command, scratch_root, places, gpus=False), *proc, *own]


def has_gpus() -> bool:
    """True if this machine has some that a runner could be let to."""
    return next(_gpus(), None) is not None


def import_root(scratch: Path) -> Path:
    """The folder from which a runner imports our packages.

    Where they are installed, that is their own. A checkout holds much else, and often a data directory, and whoever
    imports from a folder has to list it: there it is a folder in ``scratch`` with links to the packages.
    """
    if _is_installed():
        return PACKAGE_ROOT
    folder = scratch / _PACKAGES_FOLDER
    folder.mkdir(exist_ok=True)
    for name in _PACKAGES:
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(PACKAGE_ROOT / name)
    return folder


def _is_installed() -> bool:
    return PACKAGE_ROOT.is_relative_to(Path(sys.prefix).resolve())


@cache
def _system() -> tuple[Rule, ...]:
    own = {sys.prefix, str(Path(sys.base_prefix) / "lib"), str(Path(sys.exec_prefix) / "lib")}
    libraries = os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    packages = () if _is_installed() else (str(PACKAGE_ROOT / name) for name in _PACKAGES)
    loaders = (*_LOADERS, *_matching(*_LOADERS_OF_MUSL))
    return (
        *_each((*_SYSTEM_READ, *sorted(own), *packages, *filter(os.path.isabs, libraries)), READ),
        *_each(_SYSTEM_WRITE, READ_FILE | WRITE_FILE | TRUNCATE),
        *_each(loaders, READ_FILE | EXECUTE),
    )


def _gpus() -> Iterator[Rule]:
    devices = list(_matching("/dev", _DEVICES))
    if not devices:
        return
    if "/dev/kfd" in devices:
        devices += _matching("/dev", _DEVICES_OF_AMD)
    yield from _each(devices, READ | WRITE_FILE | IOCTL_DEV)
    yield from _each(("/dev/shm",), WRITE)  # noqa: S108 - drivers share memory between their threads there
    yield from _each((*_DRIVER_READ, *_matching(*_DRIVER_LIBRARIES)), READ)


def _matching(folder: str, patterns: Iterable[str]) -> Iterator[str]:
    return (str(path) for pattern in patterns for path in Path(folder).glob(pattern))


def _each(paths: Iterable[str], rights: int) -> Iterator[Rule]:
    return ((path, rights, False) for path in paths)
