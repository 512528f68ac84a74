"""A real S3-compatible server from PyPI, in the environment that ``make mlflow`` makes. It checks no signature.

Without that environment tests that need it are skipped; with CI=true they fail instead.
"""

from __future__ import annotations

import json
import secrets
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.fault.harness.servers import free_port
from tests.support.mlflow_server import HOME, is_there, serving
from tests.support.patience import PATIENCE_SECONDS
from tests.worker.running import environment

BUCKET = "results"
# boto3 makes the bucket and signs; it knows nothing of this project.
_SIGN = """
import json, sys, boto3
from botocore.config import Config
given = json.loads(sys.argv[1])
s3 = boto3.client("s3", endpoint_url=given["url"], region_name="eu-central-1", aws_access_key_id="who",
                  aws_secret_access_key="key-of-this-test", config=Config(signature_version="s3v4"))
if given["bucket"] not in {found["Name"] for found in s3.list_buckets()["Buckets"]}:
    s3.create_bucket(Bucket=given["bucket"], CreateBucketConfiguration={"LocationConstraint": "eu-central-1"})
sign = lambda name, seconds: s3.generate_presigned_url(
    "put_object", Params={"Bucket": given["bucket"], "Key": name, "ContentType": "application/onnx"},
    ExpiresIn=seconds)
print(json.dumps({name: sign(name, 3600) for name in given["names"]}))
"""


@dataclass(frozen=True)
class Bucket:
    """A bucket of a running server."""

    url: str
    port: int

    def presigned(self, folder: Path, *names: str) -> dict[str, str]:
        """URLs to put objects by, with ``Content-Type: application/onnx``."""
        given = json.dumps({"url": self.url, "bucket": BUCKET, "names": names})
        done = subprocess.run(
            [str(HOME / "bin" / "python"), "-P", "-c", _SIGN, given],
            cwd=folder, env=environment(PYTHONPATH=""), capture_output=True, text=True, timeout=PATIENCE_SECONDS,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        urls: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
        return urls

    def variables(self, port: int | None = None) -> dict[str, str]:
        """What a process is told of the server, or of a proxy before it."""
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port or self.port}",
            "AWS_ACCESS_KEY_ID": "who", "AWS_SECRET_ACCESS_KEY": "key-of-this-test", "AWS_REGION": "us-east-1",
        }  # fmt: skip

    def make(self) -> str:
        """A new bucket; its URL for ``QUANTMILL_STORAGE_URL``."""
        name = f"files-{secrets.token_hex(6)}"
        httpx.put(f"{self.url}/{name}", trust_env=False).raise_for_status()
        return f"s3://{name}/installation"

    def stored(self, name: str) -> httpx.Response:
        """The object as the server has it."""
        return httpx.get(f"{self.url}/{BUCKET}/{name}", trust_env=False, auth=None, headers=_ANYBODY)


# The server asks for a key of readers, whichever it is.
_CREDENTIAL = "Credential=who/20260101/eu-central-1/s3/aws4_request"
_ANYBODY: dict[str, Any] = {"Authorization": f"AWS4-HMAC-SHA256 {_CREDENTIAL}, SignedHeaders=host, Signature=0"}


def s3_trouble() -> str | None:
    """Why there is no S3 to test with; None if there is."""
    if (HOME / "bin" / "moto_server").exists() and (HOME / ".installed").exists():
        return None
    return f"no server of S3 in {HOME.name}: make mlflow installs it"


@contextmanager
def s3_server(folder: Path) -> Iterator[Bucket]:
    """A server without TLS on loopback."""
    port = free_port()
    bucket = Bucket(f"http://127.0.0.1:{port}", port)
    command = ["moto_server", "-H", "127.0.0.1", "-p", str(port)]
    with serving(folder, "s3", command, lambda: is_there(f"{bucket.url}/moto-api/"), PYTHONPATH=""):
        yield bucket
