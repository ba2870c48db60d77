"""A user's own model code in place of `suites.training.models.model`: `suite.model=package.module:function`.

The contract: `function(workload)` returns an nn.Module whose `forward(tokens_BT, targets_BT)` is the mean
loss, a scalar tensor; both arguments are int64. `workload` is a dict with the fields of `workload.Workload`;
`workload["num_hidden_layers"]` may be fewer than the user's, for a dry run that repeats them. A
function with a second parameter gets the parts that techniques replace, see `model.Functions`; without one,
such techniques are refused. docs/suites/memory.md has an example.

Nothing may read values of tensors or name a device: dry runs use fake tensors and the meta device.
"""

from __future__ import annotations

import inspect
import re
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from harness.instruments import torch_internals
from harness.records import Unavailable
from suites.training.models import fake_transformers
from suites.training.models.model import NONE, Functions, blocks_of
from suites.training.step import TrainingStep
from suites.training.workload import Workload

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


FEW = 2
"""Layers of the model that is built to see whether the function follows `num_hidden_layers`."""

VALUES = "a dry run's tensors have no values: leave out what reads them (.item(), nonzero, boolean masks)"
DEVICE = "the dry run has no GPU: create tensors without a device, or on that of the tokens"

ModelFunction = Callable[..., Any]


def checked(model: nn.Module, name: str) -> nn.Module:
    """Return the module with its loss checked and, on fake tensors, its exceptions in one line."""
    forward = model.forward

    def loss_of(tokens_BT: Tensor, targets_BT: Tensor) -> Tensor:
        with one_line(f"{name}: forward") if torch_internals.is_fake(tokens_BT) else nullcontext():
            loss = forward(tokens_BT, targets_BT)
        if not isinstance(loss, Tensor):
            kind = type(loss).__name__
            raise Unavailable(f"{name}: forward returned a {kind}; expected the loss, a tensor")
        if loss.ndim:
            shape = tuple(loss.shape)
            raise Unavailable(f"{name}: forward returned a tensor of shape {shape}; expected a scalar")
        if not loss.requires_grad and torch.is_grad_enabled():
            raise Unavailable(f"{name}: the loss does not depend on any parameter")
        return loss

    model.forward = loss_of
    return model


def adopt(step: TrainingStep) -> TrainingStep:
    """Return the step with the model of its workload's `model`; raises `Unavailable`, in one line."""
    name = step.workload.model
    assert name is not None
    features = replace(step.features, attention="unknown", model_code=name)  # to closed formulas
    alike = follows_layers(name, step.workload)
    return replace(step, make_model=make_model, layers_alike=alike, features=features)


def make_model(step: TrainingStep, num_hidden_layers: int) -> nn.Module:
    """Return the model with that many layers; raises `Unavailable` for a mistake of its code."""
    name = step.workload.model
    assert name is not None
    if step.features.attention != "unknown":
        own = f"the code of suite.model={name} chooses its own"
        raise Unavailable(f"attention: {own}; leave this technique out")
    return build(name, step.workload, num_hidden_layers, step.functions)


def build(name: str, workload: Workload, num_hidden_layers: int, functions: Functions = NONE) -> nn.Module:
    """Return what the function `name` makes of the workload, on the default device, in the default dtype."""
    make = function_of(name)
    fields = {**asdict(workload), "num_hidden_layers": num_hidden_layers}
    takes_parts = len(inspect.signature(make).parameters) > 1
    if functions and not takes_parts:
        raise Unavailable(f"{name}: it takes no second argument, the replaced parts: {', '.join(functions)}")
    with one_line(name):
        model = make(fields, functions) if takes_parts else make(fields)
    if not isinstance(model, nn.Module):
        raise Unavailable(f"{name}: returned a {type(model).__name__}; expected an nn.Module")
    if any(type(one).__module__.startswith("transformers.") for one in model.modules()):
        fake_transformers.install()
    return checked(model, name)


@cache
def function_of(name: str) -> ModelFunction:
    """Return the function `package.module:function`; raises `Unavailable` where it cannot be imported."""
    module_name, _, function_name = name.partition(":")
    try:
        with one_line(name):
            module = import_module(module_name)
    except ModuleNotFoundError as error:
        raise Unavailable(f"{name}: no module {error.name!r}; is its folder in PYTHONPATH?") from error
    found = getattr(module, function_name, None)
    if not callable(found):
        near = get_close_matches(function_name, vars(module), n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise Unavailable(f"{name}: {module_name} has no function {function_name}{hint}")
    make: ModelFunction = found
    return make


@cache
def follows_layers(name: str, workload: Workload) -> bool:
    """Return whether its layers are alike and as many as asked for, so that a dry run of few determines it.

    Tries the model on fake tensors; raises `Unavailable`, in one line, where it cannot be built or run so.
    """
    depth = workload.num_hidden_layers
    with torch.device("meta"):
        models = {layers: build(name, workload, layers) for layers in (depth, min(FEW, depth))}
    if not any(True for _ in models[depth].parameters()):
        raise Unavailable(f"{name}: the model has no parameters")
    follows = depth > FEW and all(_layers(model) == layers for layers, model in models.items())
    alike = follows and difference(blocks_of(models[depth])) is None
    with torch_internals.fake_tensor_mode():
        size = (workload.micro_batch_size, workload.seq_len)
        tokens_BT = torch.zeros(size, dtype=torch.int64)
        build(name, workload, FEW if alike else depth)(tokens_BT, tokens_BT)
    return alike


def _layers(model: nn.Module) -> int:
    try:
        return len(blocks_of(model))
    except Unavailable:
        return 0


@contextmanager
def one_line(what: str) -> Iterator[None]:
    """Raise `Unavailable` for any exception of the user's code: its type, message and line, and what to do.

    A module that is not found and a lack of memory stay what they are.
    """
    try:
        yield
    except (Unavailable, ModuleNotFoundError, MemoryError):
        raise
    except torch_internals.errors_for_want_of_values() as error:
        raise Unavailable(f"{what}: {_described(error)}; {VALUES}") from error
    except Exception as error:
        text = _described(error)
        hint = f"; {VALUES}" if "meta tensor" in text.lower() else ""
        hint = f"; {DEVICE}" if "cuda" in text.lower() or "nvidia" in text.lower() else hint
        raise Unavailable(f"{what}: {text}{hint}") from error


def _described(error: Exception) -> str:
    """Return an exception's type, message, and the innermost line that is not torch's or ours."""
    message = " ".join(str(error).split())[:300]
    if isinstance(error, SyntaxError):
        return f"SyntaxError: {message}"
    own = (str(Path(torch.__file__).parent), __file__, "<")
    every = traceback.extract_tb(error.__traceback__)
    frames = [frame for frame in every if not frame.filename.startswith(own)]
    place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {message}{place}"
