"""Keeps transformers on its ordinary path while `suites.training.dry_run` runs it on fake tensors.

Taken for a compiler's tracing, fake tensors get masks and operations that a real step does not have.
`suites.training.huggingface` installs this; steps on real tensors run transformers untouched.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

from harness.instruments import torch_internals
from harness.records import Unavailable

LEAST = 5
"""The major version from which masks are made and experts run as known here."""


def install() -> None:
    """Replace the two functions that look at values or at torch's fake operations; once, for the process.

    Masks: that every row is one sequence of consecutive positions is read off the values, and assumed false
    where they cannot be read; the suite's batches always are. Experts: torch's grouped matrix multiplication
    has no fake form but in bf16, where transformers' own operation makes results of the same sizes.
    Raises `Unavailable` where this transformers does not have them.
    """
    import transformers

    if int(transformers.__version__.split(".")[0]) < LEAST:
        raise Unavailable(f"transformers {transformers.__version__}: {LEAST} or later is needed")
    from transformers import masking_utils
    from transformers.integrations import moe

    _replace(masking_utils, "find_packed_sequence_indices", lambda ask, position_ids: None)
    _replace(moe, "_can_use_grouped_mm", _has_fake_form)


def _has_fake_form(
    ask: Callable[..., bool], x: torch.Tensor, weight: torch.Tensor, ends: torch.Tensor
) -> bool:
    return weight.dtype == torch.bfloat16 and ask(x, weight, ends)


def _replace(module: Any, name: str, on_fake: Callable[..., Any]) -> None:
    """Have `module.name` be `on_fake(original, ...)` under a fake tensor mode, and itself otherwise."""
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
