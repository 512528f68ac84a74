"""Parameters and modules by the names that a graph gives them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

from torch import nn

Member = TypeVar("Member", bound=nn.Parameter | nn.Module)


class Tree(nn.Module, Generic[Member]):
    """Members by any name; ``named_parameters`` tells them by that name, dots and all.

    A name with dots becomes modules within modules, as in the network that it came from.
    """

    def __init__(self) -> None:
        super().__init__()
        self._members: dict[str, Member] = {}

    def put(self, name: str, member: Member) -> None:
        """Add a member.

        Raises:
            ValueError: the name is taken.
        """
        if name in self._members:
            raise ValueError(f"{name!r} is there already")
        holder: nn.Module = self
        *path, last = [part or "_" for part in name.split(".")]
        for part in path:
            found = holder._modules.get(part)
            if found is None and hasattr(holder, part):
                holder, last = self, name.replace(".", "_")
                break
            if found is None:
                found = nn.Module()
                holder.add_module(part, found)
            holder = found
        if hasattr(holder, last) or (holder is not self and isinstance(holder, Tree)):
            holder, last = self, name.replace(".", "_")
        while hasattr(holder, last):
            last += "_"
        if isinstance(member, nn.Parameter):
            holder.register_parameter(last, member)
        else:
            holder.add_module(last, member)
        self._members[name] = member

    def __contains__(self, name: object) -> bool:
        return name in self._members

    def __getitem__(self, name: str) -> Member:
        return self._members[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)
