"""Settings of every process, read from the environment (``QUANTMILL_...``)."""

from __future__ import annotations

import ipaddress
import os
import re
from functools import lru_cache
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from service.contracts.quota import Quota
from service.cores import available_cores
from service.egress.addresses import parse_allowed
from service.egress.attempts import parse_schedule

_ORIGIN = re.compile(r"https?://(\[[0-9a-f:]+\]|[a-z0-9]([a-z0-9.-]*[a-z0-9])?)(:[0-9]{1,5})?")
_MIB = 1024**2
_GIB = 1024**3


def _listed(text: str) -> tuple[str, ...]:
    """What stands between commas."""
    return tuple(one.strip() for one in text.split(",") if one.strip())


class Settings(BaseSettings):
    """One record for the API, the worker and the reconciler.

    Empty locations are filled in from ``data_dir``, so that a service needs no setting at all on one host.
    """

    model_config = SettingsConfigDict(env_prefix="QUANTMILL_", extra="ignore", frozen=True, env_ignore_empty=True)

    data_dir: Path = Field(default=Path(".quantmill"), description="Home of everything kept on local disk.")
    database_url: str = Field(default="", description="Default: SQLite in data_dir.")
    broker_url: str = Field(
        default="", description="Of Redis, mostly. Default: none; workers ask the database for jobs themselves."
    )
    storage_dir: Path = Field(default=Path(), description="Content-addressed files. Default: data_dir/store.")
    scratch_dir: Path = Field(default=Path(), description="Working folders of attempts. Default: data_dir/scratch.")
    cache_dir: Path = Field(default=Path(), description="What jobs computed, for later ones. Default: data_dir/cache.")
    checkpoint_dir: Path = Field(
        default=Path(),
        description="What a job has finished, for its next attempt; on storage that all workers share, for one on any "
        "host. Of this installation alone. Default: scratch_dir.",
    )

    host: str = "127.0.0.1"
    port: int = Field(default=8000, ge=0, le=65535)
    api_key: SecretStr | None = Field(
        default=None,
        description="A key of the default tenant that may do everything; `keys create` makes others.",
    )
    key_pepper: SecretStr | None = Field(
        default=None,
        description="What the secrets of keys are hashed with; the same on all hosts. Default: a file in data_dir, "
        "where the database is SQLite.",
    )
    open: bool = Field(default=False, description="Without QUANTMILL_API_KEY, serve loopback to whoever has no key.")
    allowed_hosts: str = Field(
        default="", description="Names by which a service on loopback is reached besides those of loopback, by commas."
    )
    trusted_proxies: str = Field(
        default="127.0.0.1,::1",
        description="Networks and addresses of proxies whose X-Forwarded-For and X-Forwarded-Proto are believed, by "
        "commas.",
    )
    public_url: str = Field(
        default="", description="Under which browsers reach the service, such as https://quant.example; in links."
    )
    cors_origins: str = Field(
        default="",
        description="Origins whose pages may use the service with keys of theirs, such as https://dash.example, "
        "by commas.",
    )

    egress_allowed: str = Field(
        default="", description="Networks and hosts beyond the public internet that the service may call, by commas."
    )

    webhook_seconds: float = Field(
        default=15.0, gt=0, description="Time that a receiver of events or hand-overs has to answer."
    )
    webhook_slots: int = Field(
        default=16, ge=1, le=64, description="Deliveries that one reconciler has under way; a tenant has half of them."
    )
    webhook_endpoint_slots: int = Field(default=4, ge=1, le=64, description="Deliveries under way to one receiver.")
    webhook_retry_seconds: str = Field(
        default="5,30,120,600,1800,3600,10800,21600,43200",
        description="Pauses after each failure of a delivery or hand-over, by commas; then it has failed.",
    )
    webhook_failing_seconds: float = Field(
        default=24 * 3600.0, gt=0, description="Time after which a receiver that only fails is sent nothing more."
    )
    webhook_retention_seconds: float = Field(
        default=30 * 24 * 3600.0, gt=0, description="Age at which a delivery is forgotten, sent or not."
    )

    schedule_run_retention_seconds: float = Field(
        default=90 * 24 * 3600.0, gt=0, description="Age at which a run of a schedule is forgotten, once it has ended."
    )

    quota: Quota = Field(
        default=Quota(), description="Limits of tenants that have none of their own, as JSON. Default: none."
    )
    max_upload_bytes: int = Field(default=8 * _GIB, ge=1)
    max_body_bytes: int = Field(default=4 * _MIB, ge=1024, description="Largest JSON body.")
    min_free_bytes: int = Field(default=256 * _MIB, ge=0, description="Disk floor: below it uploads are refused.")
    upload_idle_seconds: float = Field(default=60.0, gt=0, description="Silence after which an upload is cut off.")
    upload_expiry_seconds: float = Field(default=24 * 3600.0, gt=0)
    idempotency_seconds: float = Field(default=7 * 24 * 3600.0, gt=0)
    ping_seconds: float = Field(default=15.0, gt=0, description="Silence after which an event stream sends a ping.")
    publish_seconds: float = Field(default=1.0, gt=0, description="Time that the broker is given per message.")

    api_lock_seconds: float = Field(
        default=2.0, gt=0, description="Time that the API waits for a lock of the database, and again for its turn."
    )
    api_answer_seconds: float = Field(
        default=3.0, gt=0, description="Time that the API gives PostgreSQL for one statement; then it answers 503."
    )
    api_writers: int = Field(default=12, ge=1, le=32, description="Requests of the API that write at a time.")
    schema_wait_seconds: float = Field(
        default=0.0, ge=0, description="Time that a process waits at its start for the database to be migrated."
    )
    connection_idle_seconds: float = Field(
        default=10.0, gt=0, description="Silence after which a connection without a request is closed."
    )
    body_seconds: float = Field(default=60.0, gt=0, description="Time in which a JSON body must have arrived.")
    request_seconds: float = Field(
        default=120.0,
        gt=0,
        description="Time after which a request without an answer gets a 503; not uploads, downloads and streams.",
    )
    reading_seconds: float = Field(
        default=60.0,
        gt=0,
        description="Time that a client may take nothing of an answer that waits for it, before it is cut off.",
    )
    max_connections: int = Field(default=2000, ge=1, description="Requests that one API process serves at a time.")
    max_connections_per_address: int = Field(default=1000, ge=1, description="Requests at a time from one address.")

    lease_seconds: float = Field(default=60.0, gt=0)
    renew_seconds: float = Field(default=10.0, gt=0)
    reconcile_seconds: float = Field(default=2.0, gt=0)
    redispatch_seconds: float = Field(default=10.0, gt=0, description="Age after which a message counts as lost.")
    deaf_seconds: float = Field(
        default=60.0,
        gt=0,
        description="Time that jobs lie released beside a free slot of a worker that no message reaches, before it "
        "ends, to be started anew.",
    )
    job_memory_bytes: int | None = Field(
        default=None, ge=64 * _MIB, description="Default: a share of what the machine has, by slots."
    )
    host_slots: int = Field(
        default=0, ge=0, description="Slots of all workers that share the machine's memory. Default: worker_slots."
    )
    extra_bytes: int = Field(default=16 * _GIB, ge=0, description="Files of a job beside its model, together.")
    checkpoint_bytes: int = Field(
        default=16 * _GIB, ge=0, description="Finished work that is kept between attempts, per job; 0 keeps none."
    )
    cache_bytes: int = Field(
        default=4 * _GIB, ge=0, description="Size of cache_dir; the least recently used go first. 0: no cache."
    )
    job_deadline_seconds: float = Field(default=24 * 3600.0, gt=0)
    inspection_seconds: float = Field(
        default=60.0,
        gt=0,
        description="CPU time, and time on the clock, of one inspection of a small file; a sixth of it more per 100 MB "
        "of a model, half of it per 100 MB of a dataset.",
    )
    inspection_slots: int = Field(
        default=4,
        ge=1,
        description="Inspections at a time that `up` runs: one that is slow holds up nobody. One of several is kept "
        "for tenants that have none running.",
    )
    job_retention_seconds: float | None = Field(
        default=None, gt=0, description="Time after its end at which a job is forgotten. Default: never."
    )
    audit_retention_seconds: float | None = Field(
        default=None, gt=0, description="Age at which a row of the audit is forgotten. Default: never."
    )
    progress_retention_seconds: float = Field(
        default=30 * 24 * 3600.0, gt=0, description="Time after its job's end at which a progress event is dropped."
    )
    garbage_age_seconds: float = Field(
        default=24 * 3600.0, ge=0, description="Age below which a stored file that no row names is left alone."
    )
    trash_seconds: float = Field(
        default=3600.0, ge=0, description="Time between a stored file's removal and the end of its bytes."
    )
    scrub_bytes_per_second: int = Field(
        default=8 * _MIB, ge=0, description="Pace of the background verification of stored files; 0: none."
    )
    scrub_period_seconds: float = Field(
        default=7 * 24 * 3600.0, gt=0, description="Time from the beginning of one such pass to that of the next."
    )
    allow_pt2: bool = Field(
        default=False, description="Accept archives of torch.export: loading one runs its author's code."
    )
    sandbox: Literal["auto", "require", "off"] = Field(
        default="auto",
        description="Controls of the kernel that hold runners: those that are here; all, or the worker does not start; "
        "none.",
    )
    spare_runners: bool = Field(
        default=True,
        description="Keep a runner ready for the next job of each slot without GPUs, where that has 2 GiB or more.",
    )
    worker_slots: int = Field(default=1, ge=1)
    threads: int = Field(default=0, ge=0, description="Threads per job; 0 means cores // slots.")
    pin_cores: bool = Field(default=False, description="Bind the jobs of each slot to cores of its own.")
    short_slots: int = Field(
        default=1, ge=0, description="Slots of a worker that take short jobs alone; one slot is always left for all."
    )
    short_job_bytes: int = Field(default=128 * _MIB, ge=0, description="Model and data of a short job, together.")
    short_job_samples: int = Field(default=512, ge=0, description="Samples of a short job, together.")

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
                raise ValueError(f"{origin!r} is no origin: write scheme and host alone, as https://dash.example:8443")
        return text

    @field_validator("public_url")
    @classmethod
    def _check_public_url(cls, text: str) -> str:
        if text and not _ORIGIN.fullmatch(text):
            raise ValueError(f"{text!r} is no origin: write scheme and host alone, as https://quant.example")
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

    @model_validator(mode="after")
    def _fill_locations(self) -> Settings:
        data_dir = self.data_dir.expanduser().absolute()
        unset = Path()
        filled: dict[str, object] = {
            "data_dir": data_dir,
            "database_url": driver_url(self.database_url or f"sqlite:///{data_dir / 'service.db'}"),
            "broker_url": "" if self.broker_url.startswith("filesystem://") else self.broker_url,
            "storage_dir": (
                data_dir / "store" if self.storage_dir == unset else self.storage_dir.expanduser()
            ).absolute(),
            "scratch_dir": (
                data_dir / "scratch" if self.scratch_dir == unset else self.scratch_dir.expanduser()
            ).absolute(),
            "cache_dir": (data_dir / "cache" if self.cache_dir == unset else self.cache_dir.expanduser()).absolute(),
            "threads": self.threads or max(1, available_cores() // self.worker_slots),
        }
        if self.renew_seconds >= self.lease_seconds:
            raise ValueError("renew_seconds must be smaller than lease_seconds, or every lease would expire")
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
        urls = {name for name in cls.model_fields if name.endswith("_url")} - {"public_url"}
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


def driver_url(url: str) -> str:
    """Name psycopg 3 as the driver of a plain PostgreSQL URL."""
    for prefix in ("postgres://", "postgresql://"):
        if url.startswith(prefix):
            return "postgresql+psycopg://" + url.removeprefix(prefix)
    return url


@lru_cache(maxsize=1)
def get_settings() -> Settings:
    """The settings of this process, read once."""
    return Settings()
