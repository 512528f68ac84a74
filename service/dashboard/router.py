"""All pages."""

from __future__ import annotations

from fastapi import APIRouter

from service.dashboard.assets import router as assets
from service.dashboard.batches import router as batches
from service.dashboard.comparing import router as comparing
from service.dashboard.datasets import router as datasets
from service.dashboard.jobs import router as jobs
from service.dashboard.models import router as models
from service.dashboard.overview import router as overview
from service.dashboard.signing_in import router as signing_in
from service.dashboard.trials import router as trials

router = APIRouter(include_in_schema=False)
for part in (assets, signing_in, overview, jobs, models, datasets, comparing, batches, trials):
    router.include_router(part)
