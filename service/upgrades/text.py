"""A plan for the terminal and as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from service.db import MIGRATION_LOCK_SECONDS
from service.upgrades.plan import BYTES_PER_SECOND, ROWS_PER_SECOND, Plan, PlannedRevision, Step

_MIB = 2**20
_NONE = "  nothing"


def as_json(plan: Plan) -> dict[str, Any]:
    """The plan with all its figures."""
    found = asdict(plan)
    for told, revision in zip(found["revisions"], plan.revisions, strict=True):
        told["old_processes"] = _old(revision) if plan.dialect == "postgresql" else None
        for step, of in zip(told["steps"], revision.steps, strict=True):
            step |= {**step.pop("change"), "blocks": of.change.blocks, "is_online": of.change.is_online}
    return found


def as_text(plan: Plan) -> str:
    """The plan in lines."""
    if plan.current is None:
        return f"The database is empty: `quantmill migrate` creates the schema {plan.head}."
    if not plan.revisions:
        return f"The schema is at {plan.current}: there is nothing to do."
    lines = [f"{len(plan.revisions)} pending, from {plan.current} to {plan.head}"]
    for revision in plan.revisions:
        lines += ["", f"{revision.revision}: {revision.title}", *(_line(plan, step) for step in revision.steps)]
        if not revision.steps and not revision.reads_rows:
            lines.append(_NONE)
        if revision.reads_rows:
            lines.append("  then changes that depend on the rows that it reads")
        if plan.dialect == "postgresql":
            lines.append(f"  processes of the version before {_old(revision)}")
    return "\n".join([*lines, "", _basis(plan)])


def _line(plan: Plan, step: Step) -> str:
    told = [step.change.words]
    if plan.dialect == "postgresql":
        told.append(_locks(step))
    if step.rows is not None or step.size_bytes is not None:
        told.append(_size(step))
    if plan.dialect == "postgresql":
        told.append(_time(step))
    return "  " + "; ".join(filter(None, told))


def _locks(step: Step) -> str:
    change = step.change
    told = "nobody uses it yet" if change.on_new_table else "no lock on a table"
    if change.lock is not None:
        told = f"{change.lock}, blocks {change.blocks}"
    if change.also_locks:
        told += f"; SHARE ROW EXCLUSIVE on {', '.join(change.also_locks)} for a moment, blocks writes"
    return told


def _size(step: Step) -> str:
    rows = "rows not counted yet" if step.rows is None else f"{step.rows} rows"
    return rows if step.size_bytes is None else f"{rows}, {step.size_bytes / _MIB:.1f} MiB"


def _time(step: Step) -> str:
    if step.seconds is None:
        return "time not known"
    return "instant" if step.change.work == "none" else f"about {step.seconds:.1f} s"


def _old(revision: PlannedRevision) -> str:
    """What processes of the version before can do from then on."""
    found = {step.change.old for step in revision.steps}
    if revision.reads_rows:
        return "may be refused or fail: that depends on the rows"
    if "fail" in found:
        return "fail where they use what is gone or changed: stop them first"
    return "may be refused rows that a new constraint does not take" if "may be refused" in found else "keep working"


def _basis(plan: Plan) -> str:
    if plan.dialect == "sqlite":
        size = "" if plan.file_bytes is None else f" The file has {plan.file_bytes / _MIB:.1f} MiB."
        return f"SQLite: one write lock is held for all of it; reads go on, writes wait.{size}"
    rates = ", ".join(f"{work} {rate / 1e6:g} MB/s" for work, rate in BYTES_PER_SECOND.items())
    return (
        f"Times are estimates, at {rates}, {ROWS_PER_SECOND:g} changed rows/s, of sizes as counted last. "
        f"A lock is waited for {MIGRATION_LOCK_SECONDS:g} s at a time; others pass in between."
    )
