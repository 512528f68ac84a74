"""The principal of a request: binds statements to its tenant and audit entries to its key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Scope = Literal["read", "submit", "manage", "admin", "operator"]
# In this order; each allows what those before it allow. An admin is one of a tenant; an operator runs the installation.
SCOPES: tuple[Scope, ...] = get_args(Scope)
_RANKS: dict[str, int] = {scope: rank for rank, scope in enumerate(SCOPES)}
DEFAULT_TENANT = "default"
# Actors that no row of a key stands for.
INSTALLATION_KEY = "installation-key"
LOCAL_KEY = "local-key"
NO_KEY = "no-key"
COMMAND_LINE = "command-line"
# Characters of the id of the pepper by which secrets are kept.
PEPPER_ID_LENGTH = 16
# What the service does of its own accord.
SERVICE = "service"


@dataclass(frozen=True)
class Principal:
    """Who asks."""

    tenant_id: str  # whose resources are seen and made
    actor: str  # id of the key, or one of the words above
    scope: Scope  # the highest that the key has
    address: str = ""  # of the client; behind a proxy that is not trusted the proxy's
    request_id: str = ""  # of the request

    def may(self, scope: Scope) -> bool:
        """Whether the key's scope allows what needs ``scope``; one that only a newer version knows allows nothing."""
        return _RANKS.get(self.scope, -1) >= _RANKS.get(scope, len(SCOPES))
