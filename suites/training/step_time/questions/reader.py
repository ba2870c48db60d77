"""Questions about published steps as settings and layouts of the model."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.instruments.transformer.shape import TransformerShape
from suites.training.layouts.layout import Layouts, Training
from suites.training.step_time.questions.words import (
    NVLINK_DOMAIN,
    SIZES_NEEDED,
    Json,
    is_compiled,
    is_hybrid,
    is_lora,
    is_mlperf,
    is_recipe,
    network_B_per_s,
    network_kind,
    precision_of,
    program_of,
    recompute_of,
    shape_of_question,
    sharding_of,
)
from suites.training.step_time.rates.constants import GpuCluster, StepConstants
from suites.training.step_time.rates.gpu import RatedGpu, gpu_of
from suites.training.step_time.whole_step.setting import StepSetting


class AskedStep(NamedTuple):
    """A question as the model takes it: one layout, or those to choose from."""

    setting: StepSetting
    layouts: Layouts
    batches: NDArray[np.float64]  # steps of a layout that make the question's batch
    recompute_known: bool
    gpus_per_node: int


KNOWN_ARCHITECTURES = ("volta", "ampere", "ada", "hopper", "blackwell", "cdna")


def why_not_known(question: Json) -> str:
    """Return why the model does not know a question's seconds; empty where it does."""
    gpu = gpu_of(str(question["device"]))
    if gpu is None or gpu.architecture not in KNOWN_ARCHITECTURES:
        return f"device {question['device']!r}: conf/hardware has no GPU like it"
    missing = [name for name in SIZES_NEEDED if not question["model"].get(name)]
    if missing:
        return f"model: its {', '.join(missing)} is not stated"
    if is_hybrid(question["model"]):
        return (
            f"model {question['model'].get('name')!r}: layers other than attention and MLP are not modelled"
        )
    return ""


def asked_step(question: Json, constants: StepConstants) -> AskedStep | None:
    """Return a question's setting and layouts; None where `why_not_known` has a reason."""
    gpu = gpu_of(str(question["device"]))
    if gpu is None or why_not_known(question):
        return None
    per_node = int(question.get("gpus_per_node") or 8)
    setting = setting_of(question, gpu, per_node, constants)
    given = list(question["among"]) if question["kind"] == "choose" else [question["layout"]]
    rows = [_row(one, question, setting, per_node) for one in given]
    layouts = Layouts.of(rows)
    batch = layouts.dp * layouts.micro_batch_size * layouts.micro_batches
    known = recompute_of(given[0]) is not None
    return AskedStep(setting, layouts, int(question["global_batch_size"]) / batch, known, per_node)


def setting_of(question: Json, gpu: RatedGpu, per_node: int, constants: StepConstants) -> StepSetting:
    """Return what a question's layouts have in common."""
    # what GPUs train language models with in MLPerf is Megatron-Core in NeMo or a fork of it
    program = "megatron" if is_mlperf(question) else program_of(str(question.get("framework") or ""))
    domain = NVLINK_DOMAIN if gpu.name.startswith("gb") else per_node
    rate = network_B_per_s(question, gpu.architecture, per_node)
    training = Training(
        seq_len=int(question["seq_len"]),
        program=program,
        precision=precision_of(question, gpu.architecture),  # type: ignore[arg-type]
        gradients="bf16" if is_recipe(question) else "fp32",
        master_remainders=is_recipe(question),
        fp8_parameters=is_recipe(question),
        attention="unfused" if question.get("attention") == "explicit" else "fused",
    )
    return StepSetting(
        shape_of_question(question["model"]),
        training,
        GpuCluster(gpu, domain, rate, network_kind(question)),
        constants,
        adapters_alone=is_lora(question),
        triton_attention="triton" in str(question.get("notes") or "").lower(),
        tuned=is_mlperf(question),
        compiled=is_compiled(question),
        tensor_overlap=is_recipe(question),
        routing_forced="bridge" in str(question.get("framework") or "").lower(),
    )


def _row(layout: Json, question: Json, setting: StepSetting, per_node: int) -> dict[str, int]:
    """Return one layout's sizes, with what was not published inferred."""
    size: dict[str, Any] = {name: int(layout.get(name) or 1) for name in ("tp", "pp", "cp", "ep", "etp")}
    ranks = size["tp"] * size["pp"] * size["cp"]
    dp = int(layout.get("dp") or max(1, int(question["gpus"]) // ranks))
    micro = int(layout.get("micro_batch_size") or 1)
    batch = int(question["global_batch_size"])
    count = int(layout.get("gradient_accumulation_steps") or max(1, round(batch / dp / micro)))
    zero, shard = sharding_of(layout, setting.training.program, per_node)
    whole = dp * size["cp"]
    return {
        **size,
        "dp": dp,
        "virtual_stages": virtual_stages_of(layout, setting.shape, setting, size["pp"]),
        "zero": zero,
        "shard_size": min(shard, whole) if shard else whole,
        "micro_batch_size": micro,
        "micro_batches": count,
        "recompute": recompute_of(layout) or 0,
    }


def virtual_stages_of(layout: Json, shape: TransformerShape, setting: StepSetting, pp: int) -> int:
    """Return the pipeline stages per rank; where none were published, Megatron's have two layers, or one.

    Embedding and output layer count as a layer each where the layers alone do not divide.
    """
    stated = layout.get("virtual_stages")
    if stated or pp == 1 or setting.training.program != "megatron":
        return int(stated or 1)
    for layers in (shape.num_hidden_layers, shape.num_hidden_layers + 2):
        for stage in (2, 1):
            if layers % (pp * stage) == 0:
                return layers // (pp * stage)
    return 1
