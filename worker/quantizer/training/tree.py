"""Parameters and modules by the names that a graph gives them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

from torch import nn

Member = TypeVar("Member", bound=nn.Parameter | nn.Module)


class Tree(nn.Module, Generic[Member]):
    """Members by any name; ``named_parameters`` tells them by that name, dots and all.

    A name with dots becomes modules within modules, as in the network that it came from. Members are looked up where
    they stand, so that whatever is put in the place of a parameter (``functional_call``, ``load_state_dict`` with
    ``assign``) is what is found.
    """

    def __init__(self) -> None:
        super().__init__()
        self._places: dict[str, tuple[nn.Module, str]] = {}

    def put(self, name: str, member: Member, *, at: str | None = None) -> None:
        """Add a member.

        Args:
            name: what it is looked up by.
            member: a parameter or a module.
            at: the name that ``named_parameters`` tells; None: ``name``.

        Raises:
            ValueError: the name is taken.
        """
        if name in self._places:
            raise ValueError(f"{name!r} is there already")
        holder: nn.Module = self
        *path, last = [part or "_" for part in (at or name).split(".")]
        for part in path:
            found = holder._modules.get(part)
            if found is None and hasattr(holder, part):
                holder, last = self, (at or name).replace(".", "_")
                break
            if found is None:
                found = nn.Module()
                holder.add_module(part, found)
            holder = found
        if hasattr(holder, last) or (holder is not self and isinstance(holder, Tree)):
            holder, last = self, (at or name).replace(".", "_")
        last = free_name(holder, last)
        _register(holder, last, member)
        self._places[name] = (holder, last)

    def graft(self, onto: nn.Module) -> None:
        """Let the members stand in ``onto`` instead; a name that is taken there gets underscores at its end."""
        own: dict[str, Member] = {**self._modules, **self._parameters}  # type: ignore[dict-item]
        moved = {}
        for last, member in own.items():
            delattr(self, last)
            moved[last] = free_name(onto, last)
            _register(onto, moved[last], member)
        for name, (holder, last) in self._places.items():
            if holder is self:
                self._places[name] = (onto, moved[last])

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def __getitem__(self, name: str) -> Member:
        holder, last = self._places[name]
        member: Member = getattr(holder, last)
        return member

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)


def free_name(holder: nn.Module, name: str) -> str:
    """``name``, with underscores at its end as long as ``holder`` has an attribute of that name."""
    while hasattr(holder, name):
        name += "_"
    return name


def _register(holder: nn.Module, name: str, member: Member) -> None:
    if isinstance(member, nn.Parameter):
        holder.register_parameter(name, member)
    else:
        holder.add_module(name, member)
