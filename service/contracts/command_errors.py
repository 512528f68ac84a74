"""Errors of the command line and how it ends, and errors whose answers carry headers."""

from __future__ import annotations

from enum import IntEnum

from service.contracts.errors import QuantmillError


class AddressError(QuantmillError, code="address-unavailable", title="The address cannot be listened on", status=500):
    """Another process uses the address or port, or it needs more permissions. Choose another with --port."""


class DataDirInUseError(QuantmillError, code="data-dir-in-use", title="The data directory is in use", status=500):
    """Another service runs on this data directory. Stop it, or use another --data-dir."""


class NoServiceDataError(QuantmillError, code="no-service-data", title="There is no service data", status=500):
    """The data directory contains no database. Check --data-dir, or start the service once to create it."""


class DataDirNotEmptyError(
    QuantmillError, code="data-dir-not-empty", title="The data directory is not empty", status=500
):
    """A backup is restored only into an empty data directory. Give another --data-dir."""


class BackupUnsupportedError(
    QuantmillError, code="backup-unsupported", title="This installation is backed up by other means", status=500
):
    """The files to back up or restore are not in a single data directory."""


class BackupPlaceError(QuantmillError, code="backup-place", title="Not a backup folder", status=500):
    """The folder contains no backup, is in use, or holds other files. Use a new folder, or that of a backup."""


class BackupVersionError(QuantmillError, code="backup-version", title="The backup is of a newer version", status=500):
    """A newer version of Quantmill wrote the backup. Restore it with that version."""


class BackupDamagedError(QuantmillError, code="backup-damaged", title="The backup is damaged", status=500):
    """A file of the backup is missing, or its digest differs from the one recorded. Restore another backup."""


class MigrationBlockedError(QuantmillError, code="migration-blocked", title="The database is in use", status=503):
    """A long transaction kept a table from `quantmill migrate`. End it and run the command again."""


class StartError(QuantmillError, code="start-failed", title="The service did not start", status=500):
    """The service exited or did not answer in time while it started. Read its log; `quantmill doctor` checks the
    installation.
    """


class DemoError(QuantmillError, code="demo-failed", title="The demo failed", status=500):
    """A step of the demo failed; the error names it. `quantmill doctor` checks the installation."""


class FileAccessError(QuantmillError, code="file-access", title="A file cannot be read or written", status=500):
    """A path does not exist, is not accessible, or its disk is full. Check the path and its permissions."""


class SystemRefusalError(QuantmillError, code="system-refusal", title="The operating system refused", status=500):
    """The operating system refused a connection, a process or a thread. Check limits with ulimit -a."""


class EngineMissingError(QuantmillError, code="engine-missing", title="The engine is not installed", status=500):
    """The command needs the engine, which is not installed. Install it: pip install 'quantmill[worker]'."""


class SandboxIncompleteError(QuantmillError, code="sandbox-incomplete", title="The sandbox is incomplete", status=500):
    """Required isolation of the runner is not available on this machine."""


class InvalidSettingsError(QuantmillError, code="invalid-settings", title="A setting is not valid", status=500):
    """A setting from the environment or the command line is not valid."""


class InvalidServerError(QuantmillError, code="invalid-server", title="The server's address is not valid", status=422):
    """The address has no scheme or host. Write it like http://127.0.0.1:8000."""


class ProvenanceError(
    QuantmillError, code="provenance-mismatch", title="The report is not that of the model", status=422
):
    """The report was made for other bytes than those of the model. Give model and report of the same run."""


class ExitCode(IntEnum):
    """Exit codes of ``quantmill``. They stay as they are; docs/cli.md lists them."""

    DONE = 0
    ERROR = 1  # told with a code, a place and a hint
    USAGE = 2
    GATE_FAILED = 3
    GATE_UNDECIDED = 4
    WAIT_TIMEOUT = 5
    NOT_VERIFIED = 6
    INTERNAL = 70  # a fault of ours, as in sysexits.h
    INTERRUPTED = 130


# Errors that have a number of their own, by code.
EXITS_BY_CODE = {
    "wait-timeout": ExitCode.WAIT_TIMEOUT,
    "not-verified": ExitCode.NOT_VERIFIED,
    "attestation-unreadable": ExitCode.NOT_VERIFIED,
    "not-reproduced": ExitCode.NOT_VERIFIED,
}
GATE_EXITS = {"fail": ExitCode.GATE_FAILED, "undecided": ExitCode.GATE_UNDECIDED}


class HttpError(QuantmillError):
    """An error whose answer carries headers of its own."""

    def headers(self) -> dict[str, str]:
        """Headers of the answer."""
        return {}


class TransientError(HttpError, status=503):
    """It cannot be done right now; asking again later may help."""

    retry_after_seconds = 1

    def headers(self) -> dict[str, str]:
        """Says when to ask again."""
        return {"Retry-After": str(self.retry_after_seconds)}
