"""The application: routers, middleware, error handlers, and the state that they share."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import anyio
import anyio.to_thread
from fastapi import FastAPI
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from service import errors, openapi
from service.artifacts.router import router as artifacts
from service.attestations.router import router as attestations
from service.audit.router import router as audit
from service.batches.router import router as batches
from service.comparison.router import router as comparison
from service.contracts.base import VERSION
from service.dashboard.pages import error_page
from service.dashboard.router import router as dashboard
from service.datasets.router import router as datasets
from service.deps import AppState
from service.docs.guide import router as guide
from service.docs.router import router as docs
from service.hand_overs.router import router as hand_overs
from service.health.router import router as health
from service.inspections.router import router as inspections
from service.jobs.router import router as jobs
from service.keys.router import router as keys
from service.limiting import AddressMiddleware, ConcurrencyMiddleware, LimitMiddleware
from service.middleware import CompressionMiddleware, RequestIdMiddleware
from service.models.router import router as models
from service.monitoring.requests import MeasuringMiddleware
from service.monitoring.router import router as monitoring
from service.names.aliases.router import routers as aliases
from service.origins import OriginMiddleware, PublicUrlMiddleware, shared
from service.presets.router import router as presets
from service.problems.router import router as problems
from service.quarantine.router import router as quarantine
from service.queues.router import router as queues
from service.quotas.router import router as quotas
from service.reports.router import router as reports
from service.schedules.router import router as schedules
from service.settings import Settings, get_settings
from service.targets.router import router as targets
from service.tracing import REQUEST_SPANS, exporting
from service.uploads.router import router as uploads
from service.webhooks.router import router as webhooks


def create_app(settings: Settings | None = None) -> FastAPI:
    """The ASGI application.

    Args:
        settings: default: from the environment. The database must have been migrated.
    """
    state = AppState.from_settings(settings or get_settings())

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        # What the first thread loads is loaded while there are files to be had.
        await anyio.to_thread.run_sync(state.keyring.remembered, None)
        with exporting("api"):
            yield
        state.close()

    app = FastAPI(
        title="Quantmill",
        version=VERSION,
        description=openapi.DESCRIPTION,
        responses=openapi.PROBLEM_RESPONSES,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        generate_unique_id_function=lambda route: route.name,
        telemetry=REQUEST_SPANS,
    )
    app.state.app = state
    resources = (uploads, models, datasets, inspections, jobs, batches, comparison, queues, reports, artifacts)
    others = (schedules, webhooks, quarantine, quotas, audit, presets, targets, problems, docs, guide)
    # /v1/keys/signing goes before /v1/keys/{key_id}
    for router in (*resources, hand_overs, *aliases, attestations, keys, health, monitoring, *others, dashboard):
        app.include_router(router)
    errors.install(app, error_page)
    openapi.install(app)
    # the last one added is the first to see a request
    app.add_middleware(CompressionMiddleware)
    app.add_middleware(
        LimitMiddleware,
        max_body_bytes=state.settings.max_body_bytes,
        max_files_bytes=state.settings.max_upload_bytes,
        body_seconds=state.settings.body_seconds,
        idle_seconds=state.settings.upload_idle_seconds,
        request_seconds=state.settings.request_seconds,
    )
    app.add_middleware(AddressMiddleware)
    app.add_middleware(
        ConcurrencyMiddleware,
        total=state.settings.max_connections,
        per_address=state.settings.max_connections_per_address,
    )
    app.add_middleware(shared, origins=state.settings.origins)
    if state.settings.public_url:
        app.add_middleware(PublicUrlMiddleware, public_url=state.settings.public_url)
    app.add_middleware(OriginMiddleware, allowed_hosts=state.settings.hosts, origins=state.settings.origins)
    app.add_middleware(RequestIdMiddleware)
    app.add_middleware(MeasuringMiddleware)
    app.add_middleware(cast(Any, ProxyHeadersMiddleware), trusted_hosts=list(state.settings.proxies))
    return app
