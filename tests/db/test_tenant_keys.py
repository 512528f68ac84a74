"""Whose a row is, and what it names: every table says it, and what does not stands here with its reason."""

from __future__ import annotations

from sqlalchemy import ForeignKeyConstraint

from service.files.repository import NAMING_COLUMNS
from service.tables import Base
from service.tables.base import of_own_tenant

# Tables without tenant_id.
OF_NOBODY = {
    "audit_heads": "one chain for the whole installation",
    "damaged_files": "by its digest a file is stored once, for all tenants whose rows name it",
    "estimate_fits": "factors learned from the jobs of all", "lease_rounds": "the same of all reconcilers",
    "scrub_passes": "verifies those files",
    "signing_keys": "the installation signs, for all tenants", "tenants": "its id is the tenant's",
    "upload_parts": "of an upload, which says whose it is",
    "workers": "belong to the installation, and take the jobs of all",
}  # fmt: skip
# Keys that carry no tenant, though both of their tables do.
BY_THE_JOB = dict.fromkeys(
    ("fk_artifacts_job_id_attempt_reports", "fk_jobs_report_job_id_reports", "fk_reports_job_id_attempt_jobs"),
    "both rows are of the same job, and each names its tenant",
)
# Keys to what has no id: its name, with the tenant.
BY_THE_NAME = {"fk_alias_moves_tenant_id_names", "fk_aliases_tenant_id_names"}
# Columns that name a row by its id, without a key that says so.
LOOSE = {
    "alias_moves.noun_id": "outlives the model or dataset",
    "attestations.key_id": "of the installation, not of a tenant; the key stays known",
    "batch_members.job_id": "outlives the job, which then counts as gone",
    "jobs.report_job_id": "the job's own id, as the database computes it", "quarantines.job_id": "outlives the job",
    "quarantines.model_id": "outlives the model", "schedule_runs.job_id": "outlives the job",
    "schedule_runs.model_id": "outlives the model", "upload_parts.upload_id": "goes with the upload",
}  # fmt: skip
# Ids of what is no row.
NO_ROWS = {
    "api_keys.pepper_id", "audit_events.request_id", "batches.request_id", "deleted_jobs.job_id",
    "hand_overs.pepper_id", "jobs.request_id", "new_audit_events.request_id",
    "signing_keys.pepper_id", "webhook_deliveries.event_id", "webhook_endpoints.pepper_id",
}  # fmt: skip
# Digests of something else than the bytes of a stored file, or notes about files that name none.
NO_FILES = {
    "damaged_files.sha256": "what is known of a file; gone with it",
    "idempotency_keys.request_sha256": "of a request", "idempotency_keys.sent_sha256": "the same",
    "inspections.config_sha256": "of a config",
    "job_estimates.model_sha256": "of a model as a whole, by which its earlier jobs are found",
    "job_timings.model_sha256": "the same; it stays when the model goes",
    "uploads.expected_sha256": "what a client says before the bytes are there",
}  # fmt: skip
TABLES = Base.metadata.tables


def keys() -> list[ForeignKeyConstraint]:
    return [key for table in TABLES.values() for key in table.foreign_key_constraints]


def test_every_table_says_whose_its_rows_are() -> None:
    without = {name for name, table in TABLES.items() if "tenant_id" not in table.columns}
    assert without == {*OF_NOBODY}
    assert all(not table.columns["tenant_id"].nullable for name, table in TABLES.items() if name not in without)


def test_every_key_carries_the_tenant() -> None:
    loose = []
    for key in keys():
        assert not {key.table.name, key.referred_table.name} & {*OF_NOBODY}
        column = key.column_keys[-1]
        own = of_own_tenant(key.table.name, column, key.referred_table.name)
        if key.name in BY_THE_NAME:
            pairs = {(element.parent.name, element.column.name) for element in key.elements}
            assert pairs == {(name, name) for name in ("tenant_id", "noun", "name")}
        elif (own.name, own.column_keys) != (key.name, key.column_keys):
            loose.append(key.name)
        else:
            assert [element.target_fullname.split(".")[1] for element in key.elements] == ["tenant_id", "id"]
            assert not key.deferrable, "what is another's is refused at once"
    assert sorted(map(str, loose)) == sorted(BY_THE_JOB)


def columns(ending: str) -> set[str]:
    found = ((name, column.name) for name, table in TABLES.items() for column in table.columns)
    return {f"{table}.{column}" for table, column in found if column.endswith(ending)}


def test_every_column_that_names_a_stored_file_is_known_to_who_collects_them() -> None:
    naming = [f"{column.class_.__tablename__}.{column.key}" for column in NAMING_COLUMNS]
    assert {*naming} | {*NO_FILES} == columns("sha256")
    assert not {*naming} & {*NO_FILES}


def test_keys_without_a_tenant_are_between_rows_of_one_job() -> None:
    to_jobs = {key.table.name for key in keys() if key.column_keys == ["tenant_id", "job_id"]} | {"jobs"}
    for key in (key for key in keys() if key.name in BY_THE_JOB):
        assert {key.table.name, key.referred_table.name} <= to_jobs
        pairs = {(element.parent.name, element.column.name) for element in key.elements}
        assert ("attempt", "attempt") in pairs
        ((own, other),) = pairs - {("attempt", "attempt")}
        assert {own, other} <= {"job_id", "report_job_id"}


def test_whatever_names_a_row_has_a_key() -> None:
    naming = {name for name in columns("_id") if not name.endswith((".tenant_id", ".worker_id"))}
    held = {f"{key.table.name}.{key.column_keys[-1]}" for key in keys() if key.name not in BY_THE_JOB}
    assert naming - held == {*LOOSE} | NO_ROWS
