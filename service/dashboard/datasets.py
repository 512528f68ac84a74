"""Datasets: the list, and one dataset with what validation has found in it."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from service.contracts.dataset import ArraySummary
from service.dashboard.dataset_figures import content
from service.dashboard.listing import Words
from service.dashboard.nouns import Edit, Filters, change_routes, kin, listing, with_typed
from service.dashboard.pages import PageRoute, page
from service.datasets import service
from service.datasets.views import dataset_in_list, dataset_out
from service.deps import AppDep, AppState, PrincipalDep
from service.http import CursorParameter
from service.names.kinds import DATASETS
from service.names.service import identify
from service.principal import Principal

router = APIRouter(route_class=PageRoute, include_in_schema=False)
_ARRAYS = 200


@router.get("/datasets")
async def list_datasets(
    request: Request,
    app: AppDep,
    principal: PrincipalDep,
    search: Words = "",
    status: Words = "",
    name: Words = "",
    tag: Words = "",
    cursor: CursorParameter = None,
) -> Response:
    """Datasets by name, each with its versions; the newest first."""
    filters = Filters(search, status, name, tag)
    rows, context = await listing(request, app, principal.tenant_id, DATASETS, filters, cursor)
    return page(request, "datasets.html.jinja", datasets=[dataset_in_list(row) for row in rows], **context)


@router.get("/datasets/{ref}")
async def get_dataset(request: Request, ref: str, app: AppDep, principal: PrincipalDep) -> Response:
    """One dataset, by its id or by a reference."""
    return await _show(request, app, principal, ref, None)


async def _show(request: Request, app: AppState, principal: Principal, ref: str, edit: Edit | None) -> Response:
    """The page of a dataset; ``edit`` has what a form of it has wrong."""
    shown = await app.reads.run(lambda: _facts(app, principal.tenant_id, ref, edit))
    return page(request, "dataset.html.jinja", status=shown["edit"].status, **shown)


def _facts(app: AppState, tenant_id: str, ref: str, edit: Edit | None) -> dict[str, Any]:
    """What the template takes.

    Raises:
        DatasetNotFoundError: the tenant has no such dataset.
    """
    row = service.get(app, tenant_id, identify(app, DATASETS, tenant_id, ref))
    versions, aliases = kin(app, DATASETS, tenant_id, row)
    dataset = dataset_out(row)
    arrays = [] if dataset.summary is None else list(dataset.summary.arrays.items())
    return {
        "noun": dataset,
        "dataset": dataset,
        "versions": [dataset_in_list(one) for one in versions],
        "aliases": aliases,
        "edit": with_typed(edit, Edit.of(row)),
        "arrays": [(name, array, shape_words(array)) for name, array in arrays[:_ARRAYS]],
        "content": content(dataset.summary),
        "arrays_more": max(0, len(arrays) - _ARRAYS),
        "preprocessing": dataset.preprocessing.model_dump(mode="json", exclude_defaults=True),
    }


def shape_words(array: ArraySummary) -> str:
    """The shape, with the least and the greatest length where samples differ."""
    if array.shortest is None or array.longest is None:
        return " × ".join("any" if length is None else str(length) for length in array.shape)
    lengths = [
        str(low) if low == high else f"{low} to {high}" for low, high in zip(array.shortest, array.longest, strict=True)
    ]
    return " × ".join([str(array.shape[0]), *lengths])


router.include_router(change_routes(DATASETS, _show))
