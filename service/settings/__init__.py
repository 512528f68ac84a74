"""Settings of every process, read from the environment (``QUANTMILL_...``)."""

from __future__ import annotations

import ipaddress
import os
import re
from functools import lru_cache
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit
from urllib.request import url2pathname

from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SecretsSettingsSource, SettingsConfigDict

from service.contracts.quota import Quota
from service.cores import available_cores
from service.egress.addresses import parse_allowed
from service.egress.attempts import parse_schedule
from service.server_urls import driver_url, with_password
from service.settings.places import MOST_OBJECT_BYTES, Places
from service.settings.upkeep import Upkeep

_ORIGIN = re.compile(r"https?://(\[[0-9a-f:]+\]|[a-z0-9]([a-z0-9.-]*[a-z0-9])?)(:[0-9]{1,5})?")
_PREFIX = "QUANTMILL_"
_MIB = 1024**2
_GIB = 1024**3


def _listed(text: str) -> tuple[str, ...]:
    """What stands between commas."""
    return tuple(one.strip() for one in text.split(",") if one.strip())


class Settings(Places, Upkeep, BaseSettings):
    """One record for the API, the worker and the reconciler.

    Empty locations are filled in from ``data_dir``, so that a service needs no setting at all on one host.
    """

    model_config = SettingsConfigDict(env_prefix=_PREFIX, extra="ignore", frozen=True, env_ignore_empty=True)

    host: str = "127.0.0.1"
    port: int = Field(default=8000, ge=0, le=65535)
    metrics_host: str = Field(default="127.0.0.1", description="Address on which every process serves its metrics.")
    metrics_port: int = Field(
        default=0,
        ge=0,
        le=65535,
        description="Port on which a process serves its metrics for Prometheus, without a key; 0: none. `up` uses this "
        "one and the next three.",
    )
    api_key: SecretStr | None = Field(
        default=None,
        description="A key of the default tenant with all permissions; create others with `keys create`.",
    )
    key_pepper: SecretStr | None = Field(
        default=None,
        description="Pepper for hashing the secrets of keys; the same on all hosts. Default: a file in data_dir, "
        "if the database is SQLite.",
    )
    log_format: Literal["text", "json"] = Field(
        default="text", description="Format of the log on standard error: lines of text, or one JSON object per line."
    )
    open: bool = Field(
        default=False, description="Without QUANTMILL_API_KEY, serve requests on loopback without a key."
    )
    allowed_hosts: str = Field(
        default="",
        description="Host names, besides those of loopback, that a service on loopback accepts; separated by commas.",
    )
    trusted_proxies: str = Field(
        default="127.0.0.1,::1",
        description="Networks and addresses of proxies whose X-Forwarded-For and X-Forwarded-Proto headers are "
        "trusted; separated by commas.",
    )
    public_url: str = Field(
        default="",
        description="Public origin of the service for browsers, such as https://quant.example; used in links.",
    )
    cors_origins: str = Field(
        default="",
        description="Origins whose pages may call the service with their own keys (CORS), such as "
        "https://dash.example; separated by commas.",
    )

    egress_allowed: str = Field(
        default="",
        description="Networks and hosts outside the public internet that the service may call; separated by commas.",
    )

    webhook_seconds: float = Field(
        default=15.0, gt=0, description="Seconds that a receiver of events or hand-overs has to respond."
    )
    webhook_slots: int = Field(
        default=16,
        ge=1,
        le=64,
        description="Maximum number of concurrent deliveries of one reconciler; a tenant may use half of them.",
    )
    webhook_endpoint_slots: int = Field(
        default=4, ge=1, le=64, description="Maximum number of concurrent deliveries to one receiver."
    )
    webhook_retry_seconds: str = Field(
        default="5,30,120,600,1800,3600,10800,21600,43200",
        description="Seconds to wait after each failed attempt of a delivery or hand-over, separated by commas; "
        "after the last one it has failed.",
    )
    webhook_failing_seconds: float = Field(
        default=24 * 3600.0, gt=0, description="Seconds after which a receiver with failures only is disabled."
    )

    quota: Quota = Field(
        default=Quota(), description="Default limits of tenants without their own, as JSON. Default: none."
    )
    max_upload_bytes: int = Field(default=8 * _GIB, ge=1)
    max_body_bytes: int = Field(default=4 * _MIB, ge=1024, description="Maximum size of a JSON body in bytes.")
    min_free_bytes: int = Field(
        default=256 * _MIB, ge=0, description="Minimum free disk space in bytes; below it, uploads are rejected."
    )
    upload_idle_seconds: float = Field(
        default=60.0, gt=0, description="Seconds without data after which an upload is aborted."
    )
    ping_seconds: float = Field(
        default=15.0, gt=0, description="Seconds without an event after which an event stream sends a ping."
    )
    publish_seconds: float = Field(default=1.0, gt=0, description="Seconds to wait for the broker per message.")

    api_lock_seconds: float = Field(
        default=2.0,
        gt=0,
        description="Seconds that the API waits for a database lock, and again for its turn to write.",
    )
    api_answer_seconds: float = Field(
        default=3.0,
        gt=0,
        description="Maximum seconds for one PostgreSQL statement of the API; after that, it responds with 503.",
    )
    api_writers: int = Field(
        default=12, ge=1, le=32, description="Maximum number of concurrent API requests that write to the database."
    )
    schema_wait_seconds: float = Field(
        default=0.0, ge=0, description="Seconds that a process waits at its start for the database to be migrated."
    )
    connection_idle_seconds: float = Field(
        default=10.0, gt=0, description="Seconds after which a connection without a request is closed."
    )
    body_seconds: float = Field(default=60.0, gt=0, description="Seconds within which a JSON body must arrive.")
    request_seconds: float = Field(
        default=120.0,
        gt=0,
        description="Seconds after which a request without a response receives a 503; not for uploads, downloads "
        "and streams.",
    )
    reading_seconds: float = Field(
        default=60.0,
        gt=0,
        description="Seconds after which a client that does not read its response is disconnected.",
    )
    max_connections: int = Field(
        default=2000, ge=1, description="Maximum number of concurrent requests of one API process."
    )
    max_connections_per_address: int = Field(
        default=1000, ge=1, description="Maximum number of concurrent requests from one address."
    )
    address_requests_per_second: float = Field(
        default=50.0,
        ge=0,
        allow_inf_nan=False,
        description="Mean rate of requests without a valid key from one address (of IPv6: one /64 network), with "
        "bursts of ten seconds' worth; shared by all API processes if the broker is Redis. 0: no limit.",
    )

    lease_seconds: float = Field(default=60.0, gt=0)
    renew_seconds: float = Field(default=10.0, gt=0)
    reconcile_seconds: float = Field(default=2.0, gt=0)
    redispatch_seconds: float = Field(
        default=10.0, gt=0, description="Age in seconds at which a message is considered lost."
    )
    deaf_seconds: float = Field(
        default=60.0,
        gt=0,
        description="Seconds that released jobs may wait while a worker has a free slot but receives no messages; "
        "after that, the worker ends and is restarted.",
    )
    job_memory_bytes: int | None = Field(
        default=None,
        ge=64 * _MIB,
        description="Memory limit of a job in bytes. Default: a share of the machine's memory, by slots.",
    )
    host_slots: int = Field(
        default=0,
        ge=0,
        description="Number of slots of all workers that share the machine's memory. Default: worker_slots.",
    )
    extra_bytes: int = Field(
        default=16 * _GIB, ge=0, description="Maximum total size of a job's files in addition to its model, in bytes."
    )
    checkpoint_bytes: int = Field(
        default=16 * _GIB,
        ge=0,
        description="Maximum size of a job's checkpoints between attempts, in bytes; 0 keeps none.",
    )
    cache_bytes: int = Field(
        default=4 * _GIB,
        ge=0,
        description="Maximum size of cache_dir in bytes; the least recently used entries are deleted first. 0: no "
        "cache.",
    )
    job_deadline_seconds: float = Field(default=24 * 3600.0, gt=0)
    inspection_seconds: float = Field(
        default=60.0,
        gt=0,
        description="Maximum CPU time, and wall-clock time, of an inspection of a small file, in seconds; one "
        "sixth more per 100 MB of a model, one half more per 100 MB of a dataset.",
    )
    inspection_slots: int = Field(
        default=4,
        ge=1,
        description="Concurrent inspections in `up`; with several, a slow one does not block the others, and one "
        "slot is reserved for tenants that have none running.",
    )
    allow_pt2: bool = Field(
        default=False, description="Accept torch.export archives (pt2). Loading one runs code of its author."
    )
    sandbox: Literal["auto", "require", "off"] = Field(
        default="auto",
        description="Kernel controls that confine runners. auto: those that are available; require: the worker "
        "does not start unless all required ones are available; off: none.",
    )
    spare_runners: bool = Field(
        default=True,
        description="Keep a runner process ready for the next job of each slot without GPUs, if the slot has at "
        "least 2 GiB of memory.",
    )
    worker_slots: int = Field(default=1, ge=1)
    threads: int = Field(default=0, ge=0, description="Threads per job; 0: cores // slots.")
    pin_cores: bool = Field(default=False, description="Bind the jobs of each slot to separate cores.")
    short_slots: int = Field(
        default=1,
        ge=0,
        description="Slots of a worker that are reserved for short jobs; one slot always accepts all jobs.",
    )
    short_job_bytes: int = Field(
        default=128 * _MIB, ge=0, description="Maximum total size of model and data of a short job, in bytes."
    )
    short_job_samples: int = Field(default=512, ge=0, description="Maximum total number of samples of a short job.")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Arguments, the environment, then the files of ``secrets_dir``."""
        folder = os.environ.get(f"{_PREFIX}SECRETS_DIR")
        if not folder or not Path(folder).is_dir():  # one that is not there is refused below
            return init_settings, env_settings
        return init_settings, env_settings, SecretsSettingsSource(settings_cls, secrets_dir=folder)

    @property
    def hosts(self) -> tuple[str, ...]:
        """``allowed_hosts``, one by one, and that of the public URL."""
        public = urlsplit(self.public_url).hostname
        return (*_listed(self.allowed_hosts), *([public] if public else []))

    @property
    def signing_secret(self) -> str:
        """What cursors are signed with, and, without a pepper, tokens of streams: processes that share it agree."""
        return self.api_key.get_secret_value() if self.api_key else self.database_url

    @property
    def proxies(self) -> tuple[str, ...]:
        """``trusted_proxies``, one by one."""
        return _listed(self.trusted_proxies)

    @property
    def origins(self) -> tuple[str, ...]:
        """``cors_origins``, one by one."""
        return _listed(self.cors_origins)

    @field_validator("cors_origins")
    @classmethod
    def _check_cors_origins(cls, text: str) -> str:
        for origin in _listed(text):
            if not _ORIGIN.fullmatch(origin):
                raise ValueError(
                    f"{origin!r} is not an origin: use only scheme and host, such as https://dash.example:8443"
                )
        return text

    @field_validator("public_url")
    @classmethod
    def _check_public_url(cls, text: str) -> str:
        if text and not _ORIGIN.fullmatch(text):
            raise ValueError(f"{text!r} is not an origin: use only scheme and host, such as https://quant.example")
        return text

    @field_validator("trusted_proxies")
    @classmethod
    def _check_trusted_proxies(cls, text: str) -> str:
        for network in _listed(text):
            ipaddress.ip_network(network)
        return text

    @field_validator("egress_allowed")
    @classmethod
    def _check_egress_allowed(cls, text: str) -> str:
        parse_allowed(text)
        return text

    @field_validator("webhook_retry_seconds")
    @classmethod
    def _check_webhook_retry_seconds(cls, text: str) -> str:
        parse_schedule(text)
        return text

    @field_validator("secrets_dir")
    @classmethod
    def _check_secrets_dir(cls, folder: Path | None) -> Path | None:
        try:
            is_folder = folder is None or folder.is_dir()
        except OSError:  # no name that a folder could have
            is_folder = False
        if not is_folder:
            raise ValueError(f"{folder} is not a folder")
        return folder

    @model_validator(mode="after")
    def _fill_locations(self) -> Settings:
        data_dir = self.data_dir.expanduser().absolute()
        unset = Path()
        if self.storage_url.startswith("file://"):
            if self.storage_dir != unset:
                raise ValueError("set QUANTMILL_STORAGE_URL or QUANTMILL_STORAGE_DIR to a folder, not both")
            object.__setattr__(self, "storage_dir", Path(url2pathname(urlsplit(self.storage_url).path)))
            object.__setattr__(self, "storage_url", "")
        filled: dict[str, object] = {
            "data_dir": data_dir,
            "database_url": driver_url(
                with_password(self.database_url, self.database_password) or f"sqlite:///{data_dir / 'service.db'}"
            ),
            "broker_url": (
                ""
                if self.broker_url.startswith("filesystem://")
                else with_password(self.broker_url, self.broker_password)
            ),
            "storage_dir": (
                data_dir / "store" if self.storage_dir == unset else self.storage_dir.expanduser()
            ).absolute(),
            "scratch_dir": (
                data_dir / "scratch" if self.scratch_dir == unset else self.scratch_dir.expanduser()
            ).absolute(),
            "cache_dir": (data_dir / "cache" if self.cache_dir == unset else self.cache_dir.expanduser()).absolute(),
            "threads": self.threads or max(1, available_cores() // self.worker_slots),
        }
        if self.storage_url and self.max_upload_bytes > MOST_OBJECT_BYTES:
            raise ValueError(f"max_upload_bytes must be at most {MOST_OBJECT_BYTES} with a bucket")
        if self.renew_seconds >= self.lease_seconds:
            raise ValueError("renew_seconds must be smaller than lease_seconds, otherwise every lease would expire")
        for name, value in filled.items():
            object.__setattr__(self, name, value)
        own = self.scratch_dir if self.checkpoint_dir == unset else self.checkpoint_dir
        object.__setattr__(self, "checkpoint_dir", own.expanduser().absolute())
        return self

    @classmethod
    def secret_variables(cls) -> tuple[str, ...]:
        """Names of the variables that hold keys, or addresses with passwords in them."""
        prefix = cls.model_config["env_prefix"]
        fields = cls.model_fields.items()
        urls = {name for name in cls.model_fields if name.endswith("_url")} - {"public_url", "storage_url"}
        secret = [name for name, field in fields if "SecretStr" in str(field.annotation) or name in urls]
        return tuple(f"{prefix}{name}".upper() for name in secret)

    @property
    def keyless(self) -> bool:
        """True if whoever reaches the API may use it."""
        return self.open and self.api_key is None

    @property
    def embedded_database(self) -> bool:
        """True if the database is a file of this host."""
        return self.database_url.startswith("sqlite")

    def make_folders(self) -> None:
        """Create every local folder that the settings name, but for two; what lies in data_dir is its owner's alone.

        The cache is made by its first user; a checkpoint_dir of its own is a folder on shared storage, which must be
        there: one made where that storage is not mounted would look like it.
        """
        folders = [self.data_dir, self.storage_dir, self.scratch_dir]
        for folder in folders:
            folder.mkdir(parents=True, exist_ok=True)
        _keep_private(self.data_dir)


def _keep_private(folder: Path) -> None:
    """Take the folder from others; one that is not ours is its owner's business."""
    found = folder.stat()
    if found.st_uid == os.geteuid() and found.st_mode & 0o077:
        folder.chmod(0o700)


@lru_cache(maxsize=1)
def get_settings() -> Settings:
    """The settings of this process, read once."""
    return Settings()
