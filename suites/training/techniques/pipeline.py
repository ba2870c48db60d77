"""Pipeline parallelism (arXiv 1806.03377): `pp_size` ranks share the layers, by torch's pipelining.

A rank has one stage, and alternates between forward and backward passes (1F1B). With `stages_per_rank` it
has several, and the schedule is the interleaved one (arXiv 2104.04473, section 2.2). The embedding is on the
first rank; the last norm, the output layer and the loss are on the last. Micro-batches are the workload's
`gradient_accumulation_steps`.

With `fsdp2` ranks are a mesh of `dp_size` rows of `pp_size` neighbours: a row is a pipeline, and a column
shards its stages. Ranks have different peaks. The first keeps the activations of the most micro-batches, the
last has the logits, and those between receive activations and gradients, into buffers for every micro-batch.
A dry run shows the rank that takes the most. It works on `suites.training.models.model` alone.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import nn

from harness.instruments import torch_internals
from suites.training.declared import PipelineSettings
from suites.training.host_memory import Resources
from suites.training.mesh import joined
from suites.training.models.model import Transformer
from suites.training.optimizers import torch_optimizer
from suites.training.pipeline_stages import ContextGroup, Pipeline, StagesOptimizer, run_passes
from suites.training.step import TrainingStep
from suites.training.techniques.context_parallel import ContextParallelModel
from suites.training.workload import Workload

NOTE = "pipeline: parameters, gradients and states of one rank's stages; activations of several micro-batches"


def unavailable() -> str | None:
    """Return why it cannot run here; None where it can."""
    if torch_internals.has_pipelining():
        return None
    return f"torch {torch.__version__} has another torch.distributed.pipelining; it was tried with 2.13"


def applies_to(workload: Workload, settings: PipelineSettings) -> str | None:
    """Return why the model or its micro-batches cannot be shared so; None where they can."""
    ranks, count = workload.pp_size, workload.gradient_accumulation_steps
    stages = ranks * settings.stages_per_rank
    if ranks == 1:
        return "pp_size=1 is a single stage; set pp_size to the number of ranks that share the layers"
    if workload.other_code:
        return "it splits suites.training.models.model alone, not another model"
    if workload.tie_word_embeddings:
        return "tie_word_embeddings=true: the shared weight would be on the first and on the last stage"
    if workload.num_hidden_layers % stages:
        return f"{stages} stages do not divide num_hidden_layers={workload.num_hidden_layers}"
    if count < ranks:
        return f"pp_size={ranks} needs as many micro-batches, and gradient_accumulation_steps={count}"
    if settings.stages_per_rank > 1 and count % ranks:
        return f"interleaved stages need a multiple of pp_size={ranks} micro-batches, and there are {count}"
    return None


def apply(step: TrainingStep, settings: PipelineSettings) -> TrainingStep:
    """Return one of `pp_size` ranks' step; `fsdp2` is applied later."""
    pp_size, with_fsdp2 = step.workload.pp_size, step.settings_of("fsdp2") is not None
    in_bf16 = with_fsdp2 and step.features.precision == "autocast"
    dtype = torch.bfloat16 if in_bf16 else step.model_dtype
    return replace(
        step,
        ranks=pp_size * step.tensor_ranks,
        pipeline_ranks=pp_size,
        stages_per_rank=settings.stages_per_rank,
        features=replace(step.features, sharding=joined(step.features.sharding, "pipeline")),
        wraps=(*step.wraps, partial(split, settings, dtype, step.features.sequence_parallel)),
        passes=run_passes,
        make_optimizer=partial(StagesOptimizer, step.make_optimizer or torch_optimizer),
        notes=(*step.notes, NOTE),
    )


def split(
    settings: PipelineSettings, dtype: torch.dtype, by_sequence: bool, model: nn.Module, resources: Resources
) -> nn.Module:
    """Return this rank's stages of its pipeline.

    `dtype`: of what stages send each other; `by_sequence`: ranks that share each layer have parts of it.
    """
    context: ContextGroup | None = None
    if isinstance(model, ContextParallelModel):
        context, model = model.group, model.model
    assert isinstance(model, Transformer)
    parts = resources.meshes.of("tp").size() if by_sequence else 1
    return Pipeline(model, settings.stages_per_rank, resources.meshes.of("pp"), dtype, parts, context)
