"""Health: liveness, readiness and version."""
