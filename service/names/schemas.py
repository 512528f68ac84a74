"""What people may say of a model or a dataset, as seen over HTTP, and by what they find it."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Request
from pydantic import BaseModel, ConfigDict, Field

from service.contracts.base import MOST_TAGS, Description, Tags
from service.http import PLAIN_TEXT, keyed_filters, keyed_parameter
from service.names.repository import ResourceQuery
from service.resources import ResourceStatus

TAG = "tag"
TAG_PARAMETER = keyed_parameter(TAG, MOST_TAGS)
FILTERS = ("status", "name", "sha256", "limit", "cursor")


class NounPatch(BaseModel):
    """Changes of a model or a dataset; what is left out stays as it is."""

    model_config = ConfigDict(extra="forbid")

    tags: Tags = Field(default_factory=dict, description="In place of all that it had.")
    description: Description | None = Field(default=None, description="For people; null takes it away.")


def resource_query(
    request: Request,
    status: Annotated[ResourceStatus | None, Query()] = None,
    name: Annotated[str | None, Query(max_length=200, pattern=PLAIN_TEXT, description="Its versions.")] = None,
    sha256: Annotated[str | None, Query(pattern="^[0-9a-f]{64}$", description="Of the main file.")] = None,
) -> ResourceQuery:
    """Filters of a list; any number of ``tag.KEY=VALUE`` parameters filter by tag."""
    return ResourceQuery(status, name, sha256, keyed_filters(request, TAG, most=MOST_TAGS))
