"""The models of layers and training steps: this project's transformer, or a config.json's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, fields, replace
from typing import Any

import torch
from torch import nn

from harness.records import Unavailable
from suites.portability.workload import Workload
from suites.training.models import huggingface, huggingface_config
from suites.training.models.fake_transformers import READ_VALUES
from suites.training.models.huggingface_config import refuse_quantized
from suites.training.models.model import Functions, Transformer, initialise, linear_cross_entropy
from suites.training.models.shape import ModelShape, llama
from suites.training.workload import Workload as TrainingWorkload

__all__ = ["adopted", "initialise", "initialised_from", "loss_of_head", "model_of", "shape_of"]

loss_of_head = linear_cross_entropy

EXPERTS = "batched_mm"
"""How transformers computes experts in a captured step: it gathers each token's experts' weights, so that no
size depends on the routing (transformers.integrations.moe, batched_mm_experts_forward)."""


@contextmanager
def initialised_from(generator: torch.Generator) -> Iterator[None]:
    """Draw initial weights from a seed of `generator` inside the block, and leave torch's own state."""
    seed = int(torch.randint(2**31, (), generator=generator))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def shape_of(workload: Workload) -> ModelShape:
    """Return the shape of the project's transformer; raises `Unavailable` for an odd head size."""
    size = workload.hidden_size // workload.num_attention_heads
    if size % 2:
        raise Unavailable(
            f"rotary positions halve a head: hidden_size / num_attention_heads must be even, not {size}"
        )
    return llama(workload)


def adopted(workload: Workload) -> Workload:
    """Return the workload with its config's sizes and without dropout; raises `Unavailable`."""
    config = workload.hf_config
    if config is None:
        return workload
    refuse_quantized(config)
    if config.get("model_type") in READ_VALUES:
        raise Unavailable(
            f"model_type {config['model_type']!r}: its layers read values of the batch to choose what to "
            "compute, so no graph of fixed operations can be captured"
        )
    given = {**asdict(workload), "hf_config": huggingface_config.without_dropout(config)}
    complete = huggingface.complete(TrainingWorkload.of(given))
    common = {one.name for one in fields(Workload)} & {one.name for one in fields(complete)}
    return replace(workload, **{name: getattr(complete, name) for name in common})


def model_of(workload: Workload, generator: torch.Generator, functions: Functions) -> nn.Module:
    """Return the model in the workload's type; its forward maps tokens and targets to the loss."""
    with initialised_from(generator):
        if workload.hf_config is not None:
            model: nn.Module = _of_config(workload.hf_config)
        else:
            model = Transformer(
                shape_of(workload), "explicit", {"linear_cross_entropy": loss_of_head, **functions}
            )
    return model.to(workload.torch_dtype).eval()


def _of_config(config: Mapping[str, Any]) -> nn.Module:
    """Return transformers' model with experts whose sizes do not depend on the routing."""
    model = huggingface.build(config)
    inner: Any = model.model
    if getattr(inner.config, "_experts_implementation", None) is not None:
        inner.set_experts_implementation(EXPERTS)
    return model
