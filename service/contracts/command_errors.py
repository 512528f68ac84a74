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


class EngineMissingError(QuantmillError):
    """The command needs the engine, which is not installed."""

    code = "engine-missing"
    title = "The engine is not installed"
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
