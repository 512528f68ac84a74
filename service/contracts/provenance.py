"""Where a quantized model came from, as its file says it itself: a few entries of ONNX ``metadata_props``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pydantic import Field

from service.contracts.base import Contract
from service.contracts.report import Manifest

PREFIX = "quantmill."


class Provenance(Contract):
    """Provenance recorded in the file of a quantized model."""

    source_sha256: str = Field(description="SHA-256 of the float model's file, including its external data.")
    config_sha256: str = Field(description="SHA-256 of the resolved config.")
    engine_version: str = Field(description="Version of the engine that created the file.")
    target: str = Field(description="Target of the quantization.")
    manifest_sha256: str = Field(description="SHA-256 of the report's manifest.")

    @classmethod
    def of(cls, manifest: Manifest) -> Provenance:
        """What a model of this manifest says.

        Raises:
            ValueError: the manifest is of a version that had no digests.
        """
        if manifest.config_sha256 is None or manifest.manifest_sha256 is None:
            raise ValueError("the manifest has no digests")
        return cls(
            source_sha256=manifest.model_sha256,
            config_sha256=manifest.config_sha256,
            engine_version=manifest.engine_version,
            target=manifest.config.target,
            manifest_sha256=manifest.manifest_sha256,
        )

    @classmethod
    def of_entries(cls, entries: Mapping[str, str]) -> Provenance | None:
        """From a model's metadata; None if it does not say all of it."""
        found = {name: entries.get(PREFIX + name) for name in cls.model_fields}
        return None if None in found.values() else cls.model_validate(found)

    def entries(self) -> dict[str, str]:
        """As a model's metadata, in order of name."""
        return {PREFIX + name: str(value) for name, value in sorted(self.model_dump().items())}

    def differences(self, manifest: Manifest) -> Iterator[str]:
        """In words, each entry that a report's manifest tells otherwise; none: the report is this model's.

        A manifest of an older version has no digests; what it does not tell is not compared.
        """
        told = {
            "source_sha256": manifest.model_sha256,
            "config_sha256": manifest.config_sha256,
            "engine_version": manifest.engine_version,
            "target": manifest.config.target,
            "manifest_sha256": manifest.manifest_sha256,
        }
        for name, value in told.items():
            if value is not None and value != getattr(self, name):
                yield f"{name} is {getattr(self, name)} in the model and {value} in the report"
