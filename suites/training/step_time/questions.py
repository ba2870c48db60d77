"""Questions about published steps: their words as shapes, layouts and clusters, and answers to them.

    python -m suites.training.step_time.questions questions=FILE out=FILE
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from suites.training.layouts.layout import Layouts, Program, Training
from suites.training.layouts.shape import TransformerShape
from suites.training.step_time.calibration import Calibration, calibration
from suites.training.step_time.gpu import gpu_of
from suites.training.step_time.memory_stopgap import memory_B
from suites.training.step_time.predict import Cluster, StepModel

Json = Mapping[str, Any]


def shape_of_question(model: Json, framework: str = "") -> TransformerShape:
    """Return the shape of a question's model."""
    def get(*names: str, default: Any = 0) -> Any:
        for name in names:
            if model.get(name) is not None:
                return model[name]
        return default

    hidden, heads = int(model["hidden_size"]), int(model["num_attention_heads"])
    count = int(model["num_hidden_layers"])
    mla = int(get("kv_lora_rank"))
    rope = int(get("qk_rope_head_dim"))
    head_dim = int(get("head_dim", default=hidden // heads))
    if mla:
        head_dim = int(get("qk_nope_head_dim", default=128)) + rope
    experts = int(get("num_experts", "num_local_experts", "n_routed_experts"))
    expert_width = int(get("moe_intermediate_size", default=get("intermediate_size")))
    dense_first = int(get("first_k_dense_replace"))
    every = int(get("moe_layer_freq", "decoder_sparse_step", default=1) or 1) if experts else 1
    gated = "glu" in str(get("mlp", default="swiglu")).lower()
    shared = int(get("n_shared_experts", "num_shared_experts")) * expert_width or int(get("shared_expert_intermediate_size"))
    layers = tuple(index >= dense_first and index % every == 0 for index in range(count)) if experts else ()
    window = int(get("sliding_window")) if get("layer_types", default=None) or "gpt-oss" in str(model.get("name", "")).lower() or "gpt_oss" in str(model.get("name", "")).lower() else 0
    return TransformerShape(
        num_hidden_layers=count, hidden_size=hidden, num_attention_heads=heads,
        num_key_value_heads=int(get("num_key_value_heads", default=heads)), head_dim=head_dim,
        intermediate_size=int(get("intermediate_size", default=4 * hidden)), vocab_size=int(get("vocab_size", default=32000)),
        gated=gated, layer_norm=not gated, tie_word_embeddings=bool(get("tie_word_embeddings", default=False)),
        num_experts=experts, experts_per_token=int(get("num_experts_per_tok", "experts_per_token", "moe_topk", default=1)) if experts else 0,
        moe_intermediate_size=expert_width if experts else 0, shared_intermediate_size=shared if experts else 0, moe_layers=layers,
        q_lora_rank=int(get("q_lora_rank")) if mla else 0, kv_lora_rank=mla, qk_rope_head_dim=rope if mla else 0,
        v_head_dim=int(get("v_head_dim")) if mla else 0, sliding_window=window,
        windowed_layers=tuple(i % 2 == 0 for i in range(count)) if window else (),
    )


def program_of(framework: str) -> Program:
    """Return whose code a framework's name stands for; the nearest for a name that is not known."""
    name = framework.lower()
    for words, program in (
        (("nanotron",), "nanotron"), (("composer", "foundry"), "composer"), (("megatron", "nemo"), "megatron"),
        (("titan", "fsdp", "fms"), "torchtitan"), (("deepspeed", "intern"), "deepspeed"),
    ):
        if any(word in name for word in words):
            return program  # type: ignore[return-value]
    return "torchtitan"


def precision_of(question: Json, architecture: str) -> str:
    """Return the precision of a question's matmuls."""
    word = re.sub(r"[^a-z0-9]", "", str(question.get("precision") or "").lower())
    if "nvfp4" in word or word == "fp4":
        return "nvfp4"
    if "mx" in word:
        return "mxfp8"
    if "fp8" in word or (not word and "bridge" in str(question.get("framework", "")).lower() and architecture in ("hopper", "blackwell")):
        return "fp8"
    if str(question.get("source", "")).startswith("mlperf") and architecture in ("hopper", "blackwell"):
        return "fp8"  # MLPerf's language models train in FP8 there (Transformer Engine)
    return "bf16"


NETWORK_B_PER_S = {"ampere": 25e9, "hopper": 50e9, "blackwell": 50e9, "volta": 12.5e9}


def network_of(question: Json, architecture: str, gpus_per_node: int) -> float:
    """Return the bytes per second of a GPU's share of the network."""
    text = str(question.get("network") or "")
    default = NETWORK_B_PER_S.get(architecture, 25e9)
    if str(question.get("device", "")).startswith("gb300"):
        default = 100e9
    found = re.search(r"([\d.]+)\s*Tbit/s per node", text)
    if found:
        return float(found[1]) * 1e12 / 8 / gpus_per_node
    rates = [float(r) for r in re.findall(r"(\d{2,4})\s*G(?:b|bit|bps)?(?:/s|ps|/Sec)?", text, re.I)]
    good = [r for r in rates if r in (100, 200, 400, 800)]
    return max(good) * 1e9 / 8 if good and max(good) >= 200 else default


def sharding_of(layout: Json, program: Program, dp: int, gpus_per_node: int) -> tuple[int, int]:
    """Return the ZeRO stage, and over how many ranks it shards (0: all)."""
    word = str(layout.get("sharding") or "").lower()
    size = 0
    if "hybrid" in word or "hsdp" in word:
        size = min(gpus_per_node, dp)
    found = re.search(r"zero[-_ ]?(\d)", word)
    if found:
        return int(found[1]), size
    if "grad_op" in word:
        return 2, size
    if "no_shard" in word or word == "ddp":
        return 0, size
    if "distributed optimizer" in word:
        return 1, 0
    if "fsdp" in word or "full_shard" in word or "hybrid" in word or "hsdp" in word:
        return 3, size
    return (1 if program in ("megatron", "nanotron") else 3), size


class Case(NamedTuple):
    """A question as the model takes it."""

    model: StepModel
    layouts: Layouts
    question: Json


def recompute_of(layout: Json) -> int | None:
    """Return the recompute index that a layout states, or None."""
    word = layout.get("recompute")
    if word is None:
        return None
    text = str(word).lower()
    if text in ("none", "no", "false", ""):
        return 0
    return 1 if "selective" in text else 2


def case_of(question: Json, cal: Calibration) -> Case | None:
    """Return a question's model and layouts; None where its device is not known."""
    gpu = gpu_of(str(question["device"]))
    if gpu is None:
        return None
    program = program_of(str(question.get("framework") or ""))
    shape = shape_of_question(question["model"])
    per_node = int(question.get("gpus_per_node") or 8)
    domain = 64 if gpu.name.startswith("gb") else per_node
    precision = precision_of(question, gpu.architecture)
    cluster = Cluster(gpu, domain, network_of(question, gpu.architecture, per_node))
    training = Training(seq_len=int(question["seq_len"]), program=program, precision=precision)  # type: ignore[arg-type]
    lora = "lora" in json.dumps([question.get("source"), question.get("framework"), question["model"].get("name"), question.get("notes")]).lower()
    rows = [row_of(one, question, shape, training, cluster, per_node) for one in (question.get("among") or [question["layout"]])]
    triton = "triton" in str(question.get("notes") or "").lower()
    tuned = str(question.get("source", "")).startswith("mlperf")
    return Case(StepModel(shape, training, cluster, cal, lora, triton, tuned), Layouts.of(rows), question)


def row_of(layout: Json, question: Json, shape: TransformerShape, training: Training, cluster: Cluster, per_node: int) -> dict[str, int]:
    """Return one layout's sizes, with what was not published inferred."""
    size = {name: int(layout.get(name) or 1) for name in ("tp", "pp", "cp", "ep")}
    gpus = int(question["gpus"])
    dp = int(layout.get("dp") or max(1, gpus // (size["tp"] * size["pp"] * size["cp"])))
    batch = int(question["global_batch_size"])
    micro = int(layout.get("micro_batch_size") or 1)
    count = layout.get("gradient_accumulation_steps")
    count = int(count) if count else max(1, round(batch / dp / micro))
    zero, shard = sharding_of(layout, training.program, dp * size["cp"], per_node)
    virtual = layout.get("virtual_stages")
    if virtual is None and size["pp"] > 1 and training.program == "megatron" and str(question.get("source", "")).startswith("mlperf"):
        virtual = next((v for v in (shape.num_hidden_layers // size["pp"] // 2, 1) if v and shape.num_hidden_layers % (size["pp"] * v) == 0), 1)
    recompute = recompute_of(layout)
    return {
        **size, "dp": dp, "etp": int(layout.get("etp") or 1), "virtual_stages": int(virtual or 1), "zero": zero,
        "shard_size": shard or dp * size["cp"], "micro_batch_size": micro, "micro_batches": count,
        "recompute": recompute if recompute is not None else 0,
    }


def answers(questions: Sequence[Json], cal: Calibration | None = None) -> list[dict[str, Any]]:
    """Return a prediction for each question."""
    cal = cal or calibration()
    out = []
    for question in questions:
        case = case_of(question, cal)
        if case is None:
            out.append({"id": question["id"], "step_s": None})
            continue
        parts = case.model.seconds(case.layouts)
        used = memory_B(case.model.shape, case.layouts, case.model.training, case.model.gpu)
        limit = case.model.gpu.usable_memory_B
        fits = (used < cal["fits_below"] * limit) & runs(case)
        seconds = parts.total_s
        if case.model.training.program == "nanotron":
            seconds = seconds + retries_s(used / limit, case.layouts, cal)
        lay = case.layouts
        # where the micro-batches given are not the whole batch, as many steps are taken as make it
        seconds = seconds * int(question["global_batch_size"]) / (lay.dp * lay.micro_batch_size * lay.micro_batches)
        if question["kind"] == "choose":
            key = np.where(fits, seconds, seconds * 1e6)
            rows = list(question["among"])
            out.append({"id": question["id"], "index": int(rows[int(np.argmin(key))].get("index", int(np.argmin(key))))})
        else:
            t = float(seconds[0])
            out.append({"id": question["id"], "step_s": t, "step_s_low": t * 0.8, "step_s_high": t * 1.25, "memory_GB": float(used[0]) / 1e9, "fits": bool(fits[0])})
    return out


def retries_s(filled: np.ndarray, layouts: Layouts, cal: Calibration) -> np.ndarray:
    """Return the seconds that the allocator takes to free and allocate anew, near the limit of memory.

    Each micro-batch pays once, where the peak comes within a margin of the limit (whole steps: playbook).
    """
    near = np.clip((filled - cal["retries_from"]) / cal["retries_width"], 0.0, 1.0)
    return near * cal["retry_s"] * layouts.micro_batches


def runs(case: Case) -> np.ndarray:
    """Return which layouts the program accepts, whatever they need of memory."""
    lay, s = case.layouts, case.model.shape
    ok = (s.num_attention_heads % lay.tp == 0) & (s.num_hidden_layers >= lay.pp)
    if case.model.training.program == "nanotron":
        # nanotron's 1F1B asserts as many micro-batches as pp - 1 (pipeline_parallel/engine.py)
        ok &= (lay.micro_batches >= lay.pp - 1) & (s.num_key_value_heads % lay.tp == 0)
    return ok


def main(words: Sequence[str]) -> None:
    """Answer the questions of a file."""
    given = dict(word.split("=", 1) for word in words)
    with open(given["questions"]) as file:
        asked = [json.loads(line) for line in file]
    with open(given["out"], "w") as file:
        for one in answers(asked):
            file.write(json.dumps(one) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
