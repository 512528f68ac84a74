"""Dependencies of endpoints: the application state (settings, database, store, dispatcher) and the principal."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import wraps
from typing import Annotated, ParamSpec, TypeVar, cast

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from prometheus_client import CollectorRegistry
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from starlette.datastructures import FormData

from service.contracts.quota import Quota
from service.db import Database
from service.dispatch.broker import on_redis, redis_client
from service.dispatch.dispatcher import Dispatcher, open_dispatcher
from service.files import repository as files
from service.forms import FIELDS_BYTES, keep_form
from service.health.service import ReadinessProbe
from service.keys import cookies, scopes
from service.keys.keyring import Holder, Keyring
from service.keys.schemas import KeyNeededError, ScopeMissingError
from service.logs import bind
from service.monitoring.collectors import registry_of
from service.notifier import ChangeFeed, Notifier
from service.principal import Principal
from service.quotas import service as quotas
from service.quotas.addresses import AddressRates
from service.quotas.buckets import SharedTokens
from service.quotas.rates import RateMeter, Room
from service.settings import Settings
from service.storage import StorageFullError, Store
from service.storage.opening import open_store
from service.threads import Asker, ServiceBusyError, Threads, asker
from service.timeouts import DatabaseTimeouts
from service.uploads.writer import RunningDigests

# Reading calls to the database at a time.
READERS = 24
# Bodies that are looked into at a time: whoever sends costly ones waits for others of the kind.
CHECKERS = 4
# Reports that are compared or rendered at a time, which may take many seconds; and how long others wait for that.
HEAVY_READERS, HEAVY_WAIT_SECONDS = 4, 30.0
# Connections to the database beside those of the threads: of /readyz, which looks twice, of the notifier, and a spare.
OWN_CONNECTIONS = 4
# How long a new one may take.
CONNECT_SECONDS = 2.0
# Uploads whose bytes are read again, hashed or made durable at a time, which takes as long as the disk does.
DISK_WORKERS = 8
# Names that clients give are resolved by so many at a time: who gives slow ones keeps nobody else waiting.
LOOKUPS = 4
# Event streams, and the parameter by which browsers that cannot send a key read them.
STREAM_PATH, STREAM_TOKEN = "/events", "token"
# An IPv6 address that holds an IPv4 one.
_ADDRESS_CHARS = 45
BEARER = HTTPBearer(auto_error=False, description="An API key: QUANTMILL_API_KEY, or a key created with POST /v1/keys.")
log = logging.getLogger(__name__)
_Asked = ParamSpec("_Asked")
_Told = TypeVar("_Told")


@dataclass(frozen=True)
class AppState:
    """Everything that one API process shares between requests; ``opened_at`` is a moment of the monotonic clock.

    ``reads`` and ``writes`` are the threads for calls to the database: writers that wait for a lock keep no reader
    waiting. ``checks`` are those that compute on bodies of requests, ``heavy`` on reports; ``disk`` those that end
    uploads; ``lookups`` those that resolve names. None can take the connections of another.
    """

    settings: Settings
    database: Database
    store: Store
    dispatcher: Dispatcher | None
    notifier: Notifier
    readiness: ReadinessProbe
    keyring: Keyring
    reads: Threads
    writes: Threads
    checks: Threads
    heavy: Threads
    disk: Threads
    lookups: Threads
    metrics: CollectorRegistry
    tokens: SharedTokens | None
    addresses: AddressRates
    upload_digests: RunningDigests = field(default_factory=RunningDigests)
    meters: dict[str, RateMeter] = field(default_factory=dict)
    opened_at: float = field(default_factory=time.monotonic)

    @classmethod
    def from_settings(cls, settings: Settings) -> AppState:
        """Open everything that the settings name."""
        settings.make_folders()
        database = Database(settings.database_url, timeouts=_timeouts(settings))
        store = open_store(settings, may_begin=lambda: _names_no_file(database))
        return cls.over(settings, database, store, open_dispatcher(settings, database))

    @classmethod
    def over(cls, settings: Settings, database: Database, store: Store, dispatcher: Dispatcher | None) -> AppState:
        """A app over what is open already."""
        reads = Threads(READERS, settings.api_answer_seconds)
        tokens = _open_tokens(settings)
        return cls(
            settings=settings,
            database=database,
            store=store,
            dispatcher=dispatcher,
            notifier=Notifier(ChangeFeed(database), database, reads),
            readiness=ReadinessProbe(settings, database, store, dispatcher),
            keyring=Keyring(settings, database, tokens),
            reads=reads,
            writes=Threads(settings.api_writers, settings.api_lock_seconds),
            checks=Threads(CHECKERS, settings.api_answer_seconds),
            heavy=Threads(HEAVY_READERS, HEAVY_WAIT_SECONDS),
            disk=Threads(DISK_WORKERS, math.inf),
            lookups=Threads(LOOKUPS, settings.api_answer_seconds),
            metrics=registry_of(settings, "api", database),
            tokens=tokens,
            addresses=AddressRates(settings.address_requests_per_second, tokens),
        )

    def dispatch(self) -> None:
        """Have jobs that were just committed released soon; never waits and never fails."""
        if self.dispatcher is not None:
            self.dispatcher.wake()

    def meter_of(self, tenant_id: str) -> RateMeter:
        """What the tenant does; made anew for one that has done nothing yet in this process."""
        return self.meters.setdefault(tenant_id, RateMeter(self.settings.quota, tenant_id, self.tokens))

    def close(self) -> None:
        """Let go of connections and threads."""
        if self.dispatcher is not None:
            self.dispatcher.close()
        if self.tokens is not None:
            self.tokens.close()
        self.database.close()


def _open_tokens(settings: Settings) -> SharedTokens | None:
    """Where all API processes count; None: without a Redis, each for itself."""
    if not on_redis(settings):
        return None
    from service.quotas.shared import STEP_SECONDS, RedisTokens  # loads redis

    secret = settings.key_pepper.get_secret_value() if settings.key_pepper else settings.signing_secret
    return RedisTokens(redis_client(settings, STEP_SECONDS), secret)


def _names_no_file(database: Database) -> bool:
    """Whether this is an installation in which nothing was ever stored, or everything was deleted."""
    with database.read() as session:
        return not files.list_named(session, limit=1)


def _timeouts(settings: Settings) -> DatabaseTimeouts:
    """Of the API server: a client is told soon that it has to come back."""
    return DatabaseTimeouts(
        lock_seconds=settings.api_lock_seconds,
        answer_seconds=settings.api_answer_seconds,
        connect_seconds=CONNECT_SECONDS,
        pool_seconds=settings.api_lock_seconds,
        writers=settings.api_writers,
        connections=READERS + CHECKERS + HEAVY_READERS + settings.api_writers + OWN_CONNECTIONS,
        pause_seconds=1.0,
    )


async def get_app(request: Request) -> AppState:
    """The app of the application that serves the request."""
    return cast(AppState, request.app.state.app)


AppDep = Annotated[AppState, Depends(get_app)]


def reading(endpoint: Callable[_Asked, _Told]) -> Callable[_Asked, Awaitable[_Told]]:
    """Call an endpoint that reads, and has the state as ``app``, in the threads for that.

    FastAPI would take its own, which are as many as there are connections, and ask for nobody's turn.
    """

    @wraps(endpoint)
    async def called(*given: _Asked.args, **named: _Asked.kwargs) -> _Told:
        app = cast(AppState, named["app"])
        return await app.reads.run(lambda: endpoint(*given, **named))

    return called


async def get_principal(
    request: Request, app: AppDep, credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(BEARER)]
) -> Principal:
    """Whom the request's key stands for; looked up once per request.

    Raises:
        KeyNeededError: no key, or none that is good.
        TooManyWrongKeysError: too many of these from the client's address.
        ScopeMissingError: the key may not do this.
        RateError: the tenant sends more than it may.
        AddressRateError: the client's address sends too many requests without a good key.
        GuardMissingError: a browser's session that changes something, and not from a page of its own.
    """
    known: Principal | None = getattr(request.state, "principal", None)
    if known is not None:
        return known
    holder, session = await _holder(request, app, None if credentials is None else credentials.credentials)
    if holder is None:
        await app.addresses.count(address_of(request))
        raise KeyNeededError(
            "The request has no valid API key.",
            hint="Send 'Authorization: Bearer KEY' with a valid API key.",
            header="Authorization",
        )
    principal = Principal(
        holder.tenant_id,
        holder.actor,
        holder.scope,
        address=address_of(request),
        request_id=request.state.request_id,
    )
    bind({"tenant_id": principal.tenant_id})
    asker.set(Asker(principal.tenant_id, request.scope["route"].path))
    # the guard of a form with files stands within it: only who may send it has it read
    in_files = session is not None and cookies.guards_in_files(request)
    if session is not None and not in_files:
        await cookies.check_guard(request, app.keyring, session)
    _check_scope(request, principal)
    await count_request(request, app, principal.tenant_id)
    if in_files:
        await form_of(request, app, principal.tenant_id, session)
    if app.keyring.due(principal.actor):
        _note_used(app, principal.actor)
    request.state.principal = principal
    return principal


def address_of(request: Request) -> str:
    """Of the client, as far as trusted proxies tell it; what they forward of it need not be an address."""
    return request.client.host[:_ADDRESS_CHARS] if request.client else ""


async def _holder(request: Request, app: AppState, text: str | None) -> tuple[Holder | None, str | None]:
    """Whom a key stands for, or, where there is none, the token of an event stream or a browser's session.

    Returns:
        The holder, None where there is nobody; and the session's token, if that is what was looked up.
    """
    token = request.query_params.get(STREAM_TOKEN)
    if text is None and token is not None and request.url.path.endswith(STREAM_PATH) and request.method == "GET":
        return await app.reads.run(lambda: app.keyring.look_up_stream(token, request.url.path)), None
    session = cookies.session_of(request) if text is None else None
    if session is not None:
        holder = await app.reads.run(lambda: app.keyring.look_up_session(session))
        if holder is not None:
            return holder, session
    return app.keyring.remembered(text) or await app.reads.run(
        lambda: app.keyring.look_up(text, address_of(request))
    ), None


async def form_of(request: Request, app: AppState, tenant_id: str, session: str | None = None) -> FormData:
    """The form that a request carries. Its files, if it has any, are held to the tenant's quota while they come.

    Args:
        request: of a principal.
        app: of the process.
        tenant_id: whose files they are.
        session: whose guard has to come before them; None: none.

    Raises:
        GuardMissingError: it does not.
        LargerThanQuotaError: a file is larger than one may be.
        QuotaError: there is no room for them.
        StorageFullError: nor is there on the disk.
    """
    if request._form is None and cookies.sends_files(request):
        room = await room_of(app, tenant_id)
        declared = request.headers.get("content-length", "")
        length = int(declared) if declared.isdecimal() else 0
        room.refuse_form(max(length - FIELDS_BYTES, 0))

        def see_to_disk(more_bytes: int) -> None:
            if app.store.local_free_bytes() < more_bytes + app.settings.min_free_bytes:
                raise StorageFullError(
                    "There is not enough free disk space for this form.", hint="Free disk space on the storage folder."
                )

        see_to_disk(length)

        def check(form: FormData) -> None:
            if session is not None:
                cookies.check_form(form, app.keyring, session)

        with app.meter_of(tenant_id).arrival() as arrival:

            def count(file_bytes: int, more_bytes: int) -> None:
                arrival.add(room, file_bytes, more_bytes)
                see_to_disk(more_bytes)

            await keep_form(request, app.store.incoming, check, count)
    return await request.form()


async def room_of(app: AppState, tenant_id: str) -> Room:
    """What the tenant may store now."""

    def look() -> Room:
        with app.database.read() as session:
            return quotas.room_of(session, app.settings, tenant_id)

    return await app.reads.run(look)


async def count_request(request: Request, app: AppState, tenant_id: str) -> None:
    """Count the request by the tenant's limits, which are read now and then.

    Raises:
        RateError: the tenant sends more than it may.
    """
    meter = app.meters.get(tenant_id)
    if meter is None or not meter.known():
        quota = await app.reads.run(lambda: _quota(app, tenant_id))
        meter = app.meter_of(tenant_id)
        meter.update(quota)
    request.state.headers = await meter.request()


def _quota(app: AppState, tenant_id: str) -> Quota:
    with app.database.read() as session:
        return quotas.quota_of(session, app.settings, tenant_id)


def _check_scope(request: Request, principal: Principal) -> None:
    route = request.scope["route"].path
    scope = scopes.needed(request.method, route)
    if not principal.may(scope):
        raise ScopeMissingError(
            f"{request.method} {route} requires a key of scope {scope!r}; this key has scope {principal.scope!r}.",
            hint="Use a key with this scope, or create one with POST /v1/keys.",
            header="Authorization",
        )


_noting: set[asyncio.Task[None]] = set()


def _note_used(app: AppState, actor: str) -> None:
    """Beside the request, which does not wait for it."""

    async def note() -> None:
        try:
            await app.writes.run(lambda: app.keyring.note_used(actor))
        except (DBAPIError, PoolTimeoutError, ServiceBusyError) as error:
            log.info("keys.use_not_noted actor=%s: %s", actor, error)

    task = asyncio.get_running_loop().create_task(note())
    _noting.add(task)
    task.add_done_callback(_noting.discard)


PrincipalDep = Annotated[Principal, Depends(get_principal)]


async def get_guest(request: Request, app: AppDep) -> Principal | None:
    """Whom the request's key stands for, if it brings one; None: anybody, who is shown what all the world may know.

    Raises:
        QuantmillError: as ``get_principal``, for a key that was sent.
        AddressRateError: the client's address sends too many requests without one.
    """
    if app.settings.open or "Authorization" in request.headers:
        return await get_principal(request, app, await BEARER(request))
    await app.addresses.count(address_of(request))
    return None


GuestDep = Annotated[Principal | None, Depends(get_guest)]
