"""Targets of a request: checked and encrypted before they are stored, until they have been used."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from service.egress.addresses import parse_allowed
from service.egress.resolving import refuse_destination, system_resolver
from service.egress.urls import Destination
from service.hand_overs.schemas import (
    MOST_URL_CHARACTERS,
    HandOverTarget,
    HandOverUnavailableError,
    HandOverUnreadableError,
    PutTarget,
    plain,
)
from service.ids import new_id
from service.sealing import SealBrokenError, Vault
from service.settings import Settings

# URLs and headers of hand-overs: kept encrypted until they have been used.


@dataclass(frozen=True, repr=False)
class SecretTarget:
    """Where a hand-over goes: what its client gave, and nobody else is to see."""

    url: str
    headers: dict[str, str]


class HandOverVault(Vault):
    """Encrypts and decrypts targets."""

    purpose = b"quantmill hand-overs v1"
    about = "The URLs of hand-overs are"
    unavailable = HandOverUnavailableError

    def seal(self, hand_over_id: str, target: SecretTarget) -> str:
        """What is stored of a target."""
        return self.sealer.seal(hand_over_id, json.dumps({"url": target.url, "headers": target.headers}))

    def open(self, hand_over_id: str, sealed: str) -> SecretTarget:
        """The target that was stored.

        Raises:
            HandOverUnreadableError: it was encrypted under another pepper or for another hand-over, or is damaged.
        """
        try:
            found: dict[str, Any] = json.loads(self.sealer.open(hand_over_id, sealed))
        except SealBrokenError:
            raise HandOverUnreadableError(
                "The URL of the hand-over is damaged, or was stored with a different QUANTMILL_KEY_PEPPER.",
                hint="Set the pepper that it was stored with, or create the hand-over again with its URL.",
            ) from None
        return SecretTarget(found["url"], found["headers"])


# For all names of a request; one that takes longer is looked at again before anything is sent.
_RESOLVE_SECONDS = 2.0


@dataclass(frozen=True)
class NewHandOver:
    """A hand-over that may be stored; ``host`` may be shown, what is ``sealed`` may not."""

    id: str
    kind: str
    artifact: str | None
    condition: str
    host: str
    sealed: str
    pepper_id: str


def refuse_inside(settings: Settings, targets: Sequence[HandOverTarget], pointer: str) -> None:
    """Let no hand-over go to where nothing is sent, as far as names tell it now; it takes seconds.

    Args:
        settings: have the allow-list.
        targets: of a request.
        pointer: where they stand in it.

    Raises:
        EgressError: of a URL's form, or of an address of its host; points at the URL.
    """
    _destinations(settings, targets, pointer, names=True)


def prepared(
    settings: Settings, targets: Sequence[HandOverTarget], pointer: str, *, names: bool = False
) -> tuple[NewHandOver, ...]:
    """The targets as they are stored, their URLs judged.

    Args:
        settings: have the allow-list and the pepper.
        targets: of a request.
        pointer: where they stand in it.
        names: judge the addresses of names, too, which takes seconds; else only once something is sent.

    Raises:
        HandOverUnavailableError: the installation has no pepper.
        EgressError: of a URL's form, or of its address; points at the URL.
    """
    if not targets:
        return ()
    destinations = _destinations(settings, targets, pointer, names=names)
    vault, found = HandOverVault.of(settings), []
    ids = sorted(new_id("hov") for _ in targets)  # in the order in which they are asked for
    for hand_over_id, target, destination in zip(ids, targets, destinations, strict=True):
        place = SecretTarget(target.url.get_secret_value(), plain(target.headers))
        found.append(
            NewHandOver(
                id=hand_over_id,
                kind=target.kind,
                artifact=target.artifact if isinstance(target, PutTarget) else None,
                condition=target.when,
                host=destination.authority,
                sealed=vault.seal(hand_over_id, place),
                pepper_id=vault.pepper_id,
            )
        )
    return tuple(found)


def _destinations(
    settings: Settings, targets: Sequence[HandOverTarget], pointer: str, *, names: bool
) -> list[Destination]:
    allowed, ends = parse_allowed(settings.egress_allowed), time.monotonic() + _RESOLVE_SECONDS
    return [
        refuse_destination(
            target.url.get_secret_value(),
            allowed,
            system_resolver if names else None,
            max(0.0, ends - time.monotonic()),
            pointer=f"{pointer}/{number}/url",
            most_characters=MOST_URL_CHARACTERS,
        )
        for number, target in enumerate(targets)
    ]
