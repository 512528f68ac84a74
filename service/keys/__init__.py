"""API keys: who may send requests, for which tenant, and with which scope."""
