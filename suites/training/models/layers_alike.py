"""Check whether layers are uniform, so that a dry run may trace a few of them for all."""

from __future__ import annotations

import re
from collections.abc import Iterable

from torch import nn

Trait = tuple[str, str, str]  # path of a module in its layer, name, value


def difference(num_hidden_layers: Iterable[nn.Module]) -> str | None:
    """Return where a layer differs from the first in classes, parameter shapes or attributes; None: nowhere.

    Tensors may be on the meta device.
    """
    first, *others = map(_traits, num_hidden_layers)
    for index, other in enumerate(others, start=1):
        if other != first:
            path, name, _ = min(other ^ first)
            return f"layer {index} differs from layer 0: {path or 'itself'}.{name}"
    return None


def _traits(layer: nn.Module) -> frozenset[Trait]:
    """Return what determines a layer's memory; its number, under any name, is left out."""
    traits = []
    for path, module in layer.named_modules():
        traits.append((path, "class", type(module).__qualname__))
        traits += [(path, name, str(tuple(p.shape))) for name, p in module.named_parameters(recurse=False)]
        for name, value in vars(module).items():
            number = isinstance(value, int) and re.search(r"layer|idx|index", name)
            if isinstance(value, bool | str | float) or (isinstance(value, int) and not number):
                traits.append((path, name, repr(value)))
    return frozenset(traits)
