"""HTTP route of the API server's metrics, for operators."""

from __future__ import annotations

from fastapi import APIRouter, Depends, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from service.deps import AppDep, get_principal, reading

router = APIRouter(tags=["service"])


@router.get(
    "/metrics",
    dependencies=[Depends(get_principal)],
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "Metrics"}},
)
@reading
def metrics(app: AppDep) -> Response:
    """Get the metrics of this API process and of the installation, in Prometheus text format. For operators."""
    return Response(generate_latest(app.metrics), media_type=CONTENT_TYPE_LATEST, headers={"Cache-Control": "no-store"})
