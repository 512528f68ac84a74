"""Errors around aliases."""

from __future__ import annotations

from service.contracts.errors import QuantmillError


class AliasNotFoundError(QuantmillError):
    """The name has no such alias."""

    code = "alias-not-found"
    title = "No such alias"
    status = 404

    def __init__(self, name: str, alias: str, known: list[str]) -> None:
        there = f"It has {', '.join(known)}." if known else "It has none."
        super().__init__(f"{name!r} has no alias {alias!r}.", path_parameter="alias", hint=there)


class InvalidAliasError(QuantmillError):
    """The word cannot be an alias."""

    code = "invalid-alias"
    title = "The alias is not valid"
    status = 422

    def __init__(self, alias: str) -> None:
        super().__init__(
            f"{alias!r} cannot be an alias.",
            path_parameter="alias",
            hint="An alias is up to 64 lower-case letters and digits, a letter first, parted by single '.', '_' or "
            "'-', such as prod or eu-prod; 'latest' is taken.",
        )


class TooManyAliasesError(QuantmillError):
    """The name has as many aliases as a name may have."""

    code = "too-many-aliases"
    title = "The name has too many aliases"
    status = 409
