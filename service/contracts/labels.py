"""Labels: short texts by key, which people put on what they make and find it by."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field, StringConstraints

from service.contracts.texts import plain_text

LABEL_KEY = r"^[A-Za-z0-9]([A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?$"
LabelKey = Annotated[str, StringConstraints(pattern=LABEL_KEY)]
LabelValue = Annotated[str, StringConstraints(max_length=255), AfterValidator(plain_text)]
# Of a job; of a model or a dataset.
MOST_LABELS, MOST_TAGS = 32, 64
Labels = Annotated[dict[LabelKey, LabelValue], Field(max_length=MOST_LABELS)]
Tags = Annotated[dict[LabelKey, LabelValue], Field(max_length=MOST_TAGS)]
