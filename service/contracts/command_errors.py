"""Errors of the commands, which never come over HTTP. They stand here so that the catalog lists every code there is."""

from __future__ import annotations

from service.contracts.errors import QuantmillError


class AddressError(QuantmillError):
    """The address cannot be listened on."""

    code = "address-unavailable"
    title = "The address cannot be listened on"
    status = 500


class DataDirInUseError(QuantmillError):
    """Another embedded service runs on this data directory."""

    code = "data-dir-in-use"
    title = "The data directory is in use"
    status = 500


class DataDirNotEmptyError(QuantmillError):
    """A backup is restored into an empty place only."""

    code = "data-dir-not-empty"
    title = "The data directory is not empty"
    status = 500


class BackupUnsupportedError(QuantmillError):
    """What is to be copied, or to be put back, is not in one data directory."""

    code = "backup-unsupported"
    title = "This installation is backed up by other means"
    status = 500


class BackupPlaceError(QuantmillError):
    """The folder cannot take a backup, or holds none."""

    code = "backup-place"
    title = "The folder is none for a backup"
    status = 500


class BackupVersionError(QuantmillError):
    """The backup is of a version that this one does not know."""

    code = "backup-version"
    title = "The backup is of a newer version"
    status = 500


class BackupDamagedError(QuantmillError):
    """The backup is not what was written."""

    code = "backup-damaged"
    title = "The backup is damaged"
    status = 500


class StartError(QuantmillError):
    """The service did not come up."""

    code = "start-failed"
    title = "The service did not start"
    status = 500


class DemoError(QuantmillError):
    """A step of the demo did not work."""

    code = "demo-failed"
    title = "The demo failed"
    status = 500


class FileAccessError(QuantmillError):
    """A file cannot be read or written."""

    code = "file-access"
    title = "A file cannot be read or written"
    status = 500


class SystemRefusalError(QuantmillError):
    """The operating system refused something that is no file: a connection, a process, a thread."""

    code = "system-refusal"
    title = "The operating system refused"
    status = 500


class EngineMissingError(QuantmillError):
    """The command needs the engine, which is not installed."""

    code = "engine-missing"
    title = "The engine is not installed"
    status = 500


class SandboxIncompleteError(QuantmillError):
    """Controls that runners must have are not to be had here."""

    code = "sandbox-incomplete"
    title = "The sandbox is incomplete"
    status = 500


class InvalidSettingsError(QuantmillError):
    """A setting from the environment or the command line is not valid."""

    code = "invalid-settings"
    title = "A setting is not valid"
    status = 500


class InvalidServerError(QuantmillError):
    """The address of a service is not spelled as one."""

    code = "invalid-server"
    title = "The server's address is not valid"
    status = 422


class ProvenanceError(QuantmillError):
    """A report belongs to another model."""

    code = "provenance-mismatch"
    title = "The report is not that of the model"
    status = 422
