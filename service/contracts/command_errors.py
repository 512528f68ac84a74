"""Errors of the command line and how it ends, and errors whose answers carry headers."""

from __future__ import annotations

from enum import IntEnum

from service.contracts.errors import QuantmillError


class AddressError(QuantmillError, code="address-unavailable", title="The address cannot be listened on", status=500):
    """The address cannot be listened on."""


class DataDirInUseError(QuantmillError, code="data-dir-in-use", title="The data directory is in use", status=500):
    """Another embedded service runs on this data directory."""


class NoServiceDataError(QuantmillError, code="no-service-data", title="There is no service data", status=500):
    """The data directory contains no database."""


class DataDirNotEmptyError(
    QuantmillError, code="data-dir-not-empty", title="The data directory is not empty", status=500
):
    """A backup is restored into an empty place only."""


class BackupUnsupportedError(
    QuantmillError, code="backup-unsupported", title="This installation is backed up by other means", status=500
):
    """What is to be copied, or to be put back, is not in one data directory."""


class BackupPlaceError(QuantmillError, code="backup-place", title="Not a backup folder", status=500):
    """The folder cannot be used for a backup, or contains none."""


class BackupVersionError(QuantmillError, code="backup-version", title="The backup is of a newer version", status=500):
    """The backup is of a version that this one does not know."""


class BackupDamagedError(QuantmillError, code="backup-damaged", title="The backup is damaged", status=500):
    """The backup is not what was written."""


class StartError(QuantmillError, code="start-failed", title="The service did not start", status=500):
    """The service did not come up."""


class DemoError(QuantmillError, code="demo-failed", title="The demo failed", status=500):
    """A step of the demo did not work."""


class FileAccessError(QuantmillError, code="file-access", title="A file cannot be read or written", status=500):
    """A file cannot be read or written."""


class SystemRefusalError(QuantmillError, code="system-refusal", title="The operating system refused", status=500):
    """The operating system refused a connection, a process or a thread."""


class EngineMissingError(QuantmillError, code="engine-missing", title="The engine is not installed", status=500):
    """The command needs the engine, which is not installed."""


class SandboxIncompleteError(QuantmillError, code="sandbox-incomplete", title="The sandbox is incomplete", status=500):
    """Controls that runners must have are not to be had here."""


class InvalidSettingsError(QuantmillError, code="invalid-settings", title="A setting is not valid", status=500):
    """A setting from the environment or the command line is not valid."""


class InvalidServerError(QuantmillError, code="invalid-server", title="The server's address is not valid", status=422):
    """The address of a service is not spelled as one."""


class ProvenanceError(
    QuantmillError, code="provenance-mismatch", title="The report is not that of the model", status=422
):
    """A report belongs to another model."""


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
