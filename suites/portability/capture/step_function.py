"""A step as a pure function of tensors, before it is captured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from torch import Tensor

PureFunction = Callable[..., tuple[Tensor, ...]]


class Forward(NamedTuple):
    """The forward pass alone: `function` maps the inputs to one; the first `names` of them get gradients."""

    function: Callable[..., Tensor]
    inputs: tuple[Tensor, ...]
    names: tuple[str, ...]


class Problem(NamedTuple):
    """A pure function, its inputs, and the names of its outputs.

    Outputs are named by their kind and a name: `output`, `gradient head.weight`, `parameter ...`. The first
    `differentiated` inputs are those that get gradients. `plain()` returns the call that a user of eager
    PyTorch would make, which may update its own copies in place; it returns the same outputs.
    """

    function: PureFunction
    inputs: tuple[Tensor, ...]
    output_names: tuple[str, ...]
    differentiated: int
    plain: Callable[[], Callable[[], Sequence[Tensor]]]
    forward: Forward
