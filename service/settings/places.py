"""Where things are: the database, the broker, files, and folders of a host."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, Field, SecretStr, field_validator

_STORAGE_SCHEMES = ("file", "s3", "gs", "az")
# Where the providers of buckets have their secrets.
PROVIDER_SECRETS = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_TOKEN",
    "AZURE_CLIENT_SECRET",
    "AZURE_STORAGE_MASTER_KEY",
    "AZURE_STORAGE_SAS_KEY",
    "AZURE_STORAGE_TOKEN",
    "AZURE_STORAGE_ACCOUNT_KEY",
    "AZURE_STORAGE_ACCESS_KEY",
    "AZURE_STORAGE_CLIENT_SECRET",
    "AZURE_STORAGE_SAS_TOKEN",
    "GOOGLE_SERVICE_ACCOUNT_KEY",
)
_GIB = 1024**3
# S3 takes at most 10,000 parts of an object; see ``service.storage.objects`` for their size.
MOST_OBJECT_BYTES = 75 * _GIB


class Places(BaseModel):
    """Settings of places; empty ones are filled in from ``data_dir``."""

    data_dir: Path = Field(default=Path(".quantmill"), description="Folder for all data on the local disk.")
    database_url: str = Field(default="", repr=False, description="URL of the database. Default: SQLite in data_dir.")
    database_password: SecretStr | None = Field(
        default=None, description="Password of the database, as it is: inserted into database_url, percent-encoded."
    )
    broker_url: str = Field(
        default="",
        repr=False,
        description="URL of the message broker, usually Redis. Default: none; workers poll the database for jobs.",
    )
    broker_password: SecretStr | None = Field(
        default=None, description="Password of the broker, as it is: inserted into broker_url, percent-encoded."
    )
    secrets_dir: Path | None = Field(
        default=None,
        description="Folder of files that are named like settings and hold their values, such as "
        "quantmill_key_pepper; the environment takes precedence.",
    )
    storage_url: str = Field(
        default="",
        description="Where files are stored: file:///FOLDER, or a bucket: s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, "
        "az://CONTAINER/PREFIX. Credentials and endpoint are those of the provider's own variables, such as "
        "AWS_ACCESS_KEY_ID and AWS_ENDPOINT_URL. Default: storage_dir.",
    )
    storage_dir: Path = Field(
        default=Path(),
        description="Folder of the content-addressed file store; with a bucket, the folder of this host's copies. "
        "Default: data_dir/store.",
    )
    storage_cache_bytes: int = Field(
        default=16 * _GIB,
        ge=0,
        description="With a bucket: maximum size of this host's copies of stored files that no job is using, in "
        "bytes; the least recently used are deleted first.",
    )
    storage_signed_url_seconds: int = Field(
        default=0,
        ge=0,
        le=7 * 24 * 3600,
        description="With a bucket: seconds for which a signed URL of an artifact is valid; clients that ask for it "
        "(?redirect=true) download directly from the bucket. 0: no signed URLs.",
    )
    scratch_dir: Path = Field(
        default=Path(), description="Folder for the working folders of attempts. Default: data_dir/scratch."
    )
    cache_dir: Path = Field(
        default=Path(), description="Folder where jobs cache results for later jobs. Default: data_dir/cache."
    )
    checkpoint_dir: Path = Field(
        default=Path(),
        description="Folder where a job's checkpoints are kept for its next attempt; on storage that all workers "
        "share, the next attempt can run on any host. Must not be shared with another installation. "
        "Default: scratch_dir.",
    )

    @field_validator("storage_url")
    @classmethod
    def _check_storage_url(cls, url: str) -> str:
        scheme, _, place = url.partition("://")
        if url and (scheme not in _STORAGE_SCHEMES or not place.strip("/")):
            raise ValueError(f"{url!r} is not a storage URL: use file:///FOLDER, s3://, gs:// or az:// and a name")
        if scheme == "file" and not place.startswith("/"):
            raise ValueError(f"{url!r} has no absolute path: use file:///FOLDER")
        return url
