"""What loops do to many things at a time: a fault in one keeps none of the others from its turn."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TypeVar

from sqlalchemy.exc import InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

log = logging.getLogger(__name__)
_Which = TypeVar("_Which")


def one_by_one(name: str, items: Iterable[_Which], work: Callable[[_Which], bool]) -> int:
    """Do each of them, whatever becomes of the others; returns how many were done.

    Args:
        name: of what is done, for the log.
        items: what it is done to.
        work: tells whether this process did it.

    Raises:
        sqlalchemy.exc.SQLAlchemyError: the database is away or busy, which is no fault of an item: the next round tries
            again.
    """
    done = 0
    for which in items:
        try:
            done += work(which)
        except (OperationalError, InterfaceError, PoolTimeoutError):
            raise
        except Exception:  # a fault in one must not keep the others; it is logged whole, and tried again
            log.exception("%s.broken id=%s", name, which)
    return done
