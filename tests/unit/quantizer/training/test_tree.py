"""Members of a module by the names that a graph gives them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from worker.quantizer.training.tree import Tree


def parameter(value: float) -> nn.Parameter:
    return nn.Parameter(torch.tensor([float(value)]))


def test_members_are_found_by_their_names_and_told_under_those_that_were_wanted() -> None:
    tree: Tree[nn.Parameter] = Tree()
    for k, name in enumerate(("a.b", "a", "a.b.c", "train", "d..e")):
        tree.put(name, parameter(k))
    tree.put("val_1", parameter(9), at="a.bias")
    assert [float(tree[name]) for name in tree] == [0, 1, 2, 3, 4, 9]
    told = dict(tree.named_parameters())
    assert len(told) == 6
    assert float(told["a.b"]) == 0
    assert float(told["a.bias"]) == 9
    assert "val_1" in tree
    assert "a.bias" not in tree
    with pytest.raises(ValueError, match="there already"):
        tree.put("a.b", parameter(0))


def test_grafted_members_stand_in_the_other_module_and_are_still_found() -> None:
    tree: Tree[nn.Parameter] = Tree()
    for k, name in enumerate(("weight", "forward", "part.weight")):
        tree.put(name, parameter(k))
    other = nn.Module()
    tree.graft(other)
    assert not list(tree.parameters())
    names = [name.rstrip("_") for name, _ in other.named_parameters()]
    assert sorted(names) == ["forward", "part.weight", "weight"]
    assert callable(other.forward)
    assert [float(tree[name]) for name in tree] == [0, 1, 2]
    other.weight = parameter(7)
    assert float(tree["weight"]) == 7
