"""Keep transformers on its ordinary code path while a dry run traces it on fake tensors.

transformers takes fake tensors for a compiler's tracing and would use masks and operations that a real step
does not have. `suites.training.models.huggingface` installs this; steps on real tensors use transformers
unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from importlib import import_module
from typing import Any
from unittest.mock import patch

import torch

from harness.instruments import torch_internals
from harness.records import Unavailable
from suites.training.models import mixture

LEAST = 5
"""The major version from which transformers makes masks and runs experts as expected here."""


def reads(value: Any) -> Callable[..., Any]:
    """Return what runs a function that reads one value of the batch, given that value."""

    def known(ask: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        with patch.object(torch.Tensor, "item", lambda tensor: value):
            return ask(*arguments, **named)

    return known


def without_images(ask: Callable[..., Any], embedding: Any, tokens_BT: torch.Tensor) -> Any:
    """Run an embedding that replaces those of images, of which there are none."""
    original = torch.Tensor.__setitem__

    def none_set(tensor: torch.Tensor, where: torch.Tensor, value: Any) -> None:
        original(tensor, torch.zeros(0, dtype=torch.int64, device=where.device), value)

    with patch.object(torch.Tensor, "__setitem__", none_set):
        return ask(embedding, tokens_BT)


READ_VALUES: dict[str, dict[str, Callable[..., Any]]] = {
    "fsmt": {"make_padding_mask": lambda ask, *tokens: None},  # no token is padding
    "jetmoe": {"JetMoeTopKGating": mixture.split},
    "led": {"LEDEncoder": reads(False)},  # no token attends to all others
    "longcat_flash": {"LongcatFlashExperts": mixture.looped},
    "nllb-moe": {"NllbMoeExperts": mixture.looped_over_a_mask, "NllbMoeTop2Router": mixture.without_casts},
    "switch_transformers": {
        "SwitchTransformersExperts": mixture.looped,
        "SwitchTransformersTop1Router": mixture.without_casts,
    },
    "t5gemma2": {"T5Gemma2TextScaledWordEmbedding": without_images},
    "xlm": {"XLMModel": reads(0)},  # no sequence is longer than its batch's
}
"""Of architectures that read values: functions, or classes with a forward pass, and what runs instead.

It gives the values that the suite's batches have, and of the routing an equal share for each expert.
"""


def install() -> None:
    """Replace three functions that read values or use torch's fake operations; once per process.

    Masks: transformers reads from the values whether every row is one sequence, as the suite's always are.
    Experts: torch's grouped product has no fake form but in bf16, where transformers' own makes results of
    the same sizes. Truncated normal values: torch draws again until all are within. Raises `Unavailable`.
    """
    import transformers

    if int(transformers.__version__.split(".")[0]) < LEAST:
        raise Unavailable(f"transformers {transformers.__version__}: {LEAST} or later is needed")
    from transformers import initialization, masking_utils
    from transformers.integrations import moe

    _replace(masking_utils, "find_packed_sequence_indices", lambda ask, position_ids: None)
    _replace(moe, "_can_use_grouped_mm", _has_fake_form)
    _replace(initialization, "trunc_normal_", lambda ask, tensor, *arguments, **named: tensor)


def install_for(model_type: str) -> None:
    """Replace the functions of an architecture that read values; once per process."""
    for name, on_fake in READ_VALUES.get(model_type, {}).items():
        folder = model_type.replace("-", "_")
        module = import_module(f"transformers.models.{folder}.modeling_{folder}")
        if isinstance(getattr(module, name, None), type):
            _replace(getattr(module, name), "forward", on_fake)
        else:
            _replace(module, name, on_fake)


def _has_fake_form(
    ask: Callable[..., bool], x: torch.Tensor, weight: torch.Tensor, ends: torch.Tensor
) -> bool:
    return weight.dtype == torch.bfloat16 and ask(x, weight, ends)


@contextmanager
def every_layer_kept() -> Iterator[None]:
    """Let LayerDrop drop no layer inside the block, under a fake tensor mode: it compares a random value."""
    if torch_internals.active_fake_mode() is None:
        yield
        return
    original = torch.rand

    def rand(*size: Any, **named: Any) -> Any:
        return 1.0 if size in (([],), ((),)) else original(*size, **named)

    with patch.object(torch, "rand", rand):
        yield


def _replace(module: Any, name: str, on_fake: Callable[..., Any]) -> None:
    """Make `module.name` call `on_fake(original, ...)` under a fake tensor mode, else the original."""
    original = getattr(module, name, None)
    if original is None:
        raise Unavailable(f"transformers has no {module.__name__}.{name}, so it cannot run on fake tensors")
    if hasattr(original, "on_fake"):
        return

    @wraps(original)
    def either(*arguments: Any, **named: Any) -> Any:
        if torch_internals.active_fake_mode() is None:
            return original(*arguments, **named)
        return on_fake(original, *arguments, **named)

    either.on_fake = on_fake  # type: ignore[attr-defined]
    setattr(module, name, either)
