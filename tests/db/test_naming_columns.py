"""Every column that names a stored file is known to who collects them."""

from __future__ import annotations

from service.files.repository import NAMING_COLUMNS
from service.tables import Base

# Digests of something else than the bytes of a stored file, or notes about files that name none.
NO_NAMES = {
    "damaged_files.sha256": "what is known of a file; gone with it",
    "idempotency_keys.request_sha256": "of a request",
    "inspections.config_sha256": "of a config",
    "job_estimates.model_sha256": "of a model as a whole, by which its earlier jobs are found",
    "job_timings.model_sha256": "the same; it stays when the model goes",
    "uploads.expected_sha256": "what a client says before the bytes are there",
}


def test_every_column_that_names_a_stored_file_is_known() -> None:
    digests = {
        f"{table.name}.{column.name}"
        for table in Base.metadata.sorted_tables
        for column in table.columns
        if column.name.endswith("sha256")
    }
    naming = [f"{column.class_.__tablename__}.{column.key}" for column in NAMING_COLUMNS]
    assert {*naming} | {*NO_NAMES} == digests
    assert not {*naming} & {*NO_NAMES}
    assert len(naming) == len(set(naming))
