"""Batches: the list, and one batch as its members come."""

from __future__ import annotations

from functools import partial

from fastapi import APIRouter, Request, Response

from service.batches import service
from service.batches.schemas import BatchMemberOut
from service.batches.views import batch_out, is_live
from service.dashboard import tradeoffs
from service.dashboard.forms import latency_of
from service.dashboard.listing import Words, one_page
from service.dashboard.pages import PageRoute, add_act, page
from service.deps import AppDep, PrincipalDep
from service.http import CursorParameter

router = APIRouter(route_class=PageRoute, include_in_schema=False)
_LIMIT = 50


@router.get("/batches")
async def list_batches(
    request: Request,
    app: AppDep,
    principal: PrincipalDep,
    name: Words = "",
    cursor: CursorParameter = None,
) -> Response:
    """Batches, newest first."""
    found, next_query = await one_page(
        request,
        app,
        f"batches|{principal.tenant_id}|{name}",
        cursor,
        lambda after: service.list_page(app, principal.tenant_id, name=name or None, after=after, limit=_LIMIT),
    )
    return page(request, "batches.html.jinja", batches=found, name_filter=name, next_query=next_query)


@router.get("/batches/{batch_id}")
async def get_batch(request: Request, batch_id: str, app: AppDep, principal: PrincipalDep) -> Response:
    """One batch: how its members stand, the best of each model, and the front so far."""
    view = await app.reads.run(lambda: service.get(app, principal.tenant_id, batch_id))
    batch = batch_out(view)
    done = [one for one in batch.members if one.figures is not None]
    return page(
        request,
        "batch.html.jinja",
        batch=batch,
        live=any(map(is_live, batch.members)),
        share=1.0 - sum(map(is_live, batch.members)) / max(1, len(batch.members)),
        again=any(one.state in ("failed", "canceled") for one in batch.members),
        compared=[one.job_id for one in done][:20],
        member_words=member_words,
        latency_of=latency_of,
        model_words={one.model: model_words(one) for one in batch.members},
        tradeoff=tradeoffs.of_jobs(
            (member_words(one), f"/jobs/{one.job_id}", one.figures) for one in done if one.figures is not None
        ),
    )


def member_words(member: BatchMemberOut) -> str:
    """What a member is called beside others."""
    config = "" if member.config is None else f", config {member.config}"
    return f"{model_words(member)}, {member.preset or 'no preset'}{config}"


def model_words(member: BatchMemberOut) -> str:
    """What a member's model is called."""
    return member.model if member.model_name is None else f"{member.model_name}@{member.model_version}"


# Cancel its queued jobs, ask its running ones to stop.
add_act(router, "/batches/{batch_id}/cancel", service.cancel)
# Give each member that has failed or was canceled a new job.
add_act(router, "/batches/{batch_id}/retry-failed", partial(service.retry_failed, key=None))
# Delete a batch that has ended; its jobs stay.
add_act(router, "/batches/{batch_id}/delete", service.remove, "/batches")
