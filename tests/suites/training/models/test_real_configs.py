"""Published config.json files through the memory suite: parameters as published, peaks as measured."""

import json
from pathlib import Path

import pytest
import torch
from real_configs import NAMES, file_of, published, shrunken

pytest.importorskip("transformers", reason="the extra `hf` brings it")

import suites.memory.suite as memory
from harness.config.hf_config import workload_from_file
from harness.records import Reading
from suites.training.layouts.shape_of_config import ARCHITECTURES, shape_of_config
from suites.training.models.huggingface import build

LINES = Path(__file__).with_name("published_counts.jsonl").read_text().splitlines()
COUNTS = {one["name"]: one for one in map(json.loads, LINES)}
"""By the published weights: parameters, tied ones once (gemma-3-4b: of 4,300,079,472 without the vision tower
and the projection to text); whether the embedding is the output layer, whether transformers has SDPA (not for
ALiBi, softcapping, sinks), and layers that show each kind."""


@pytest.mark.parametrize("name", NAMES)
def test_parameters_are_those_published(name):
    with torch.device("meta"):
        model = build(published(name)).model
    assert sum(one.numel() for one in model.parameters()) == COUNTS[name]["parameters"]
    assert (model.get_output_embeddings().weight is model.get_input_embeddings().weight) == COUNTS[name][
        "tied"
    ]
    if published(name)["model_type"] in ARCHITECTURES and "word_embed_proj_dim" not in published(name):
        assert shape_of_config(published(name)).parameters == COUNTS[name]["parameters"]


@pytest.mark.parametrize("name", NAMES)
def test_a_small_one_takes_what_is_predicted(name):
    """Build, check and sample, with a real step; without SDPA its activations are recomputed instead."""
    technique = "attention" if COUNTS[name]["sdpa"] else "activation_checkpointing"
    fields = {**workload_from_file(file_of(name)).fields, "hf_config": shrunken(name, COUNTS[name]["layers"]),
              "micro_batch_size": 2, "device_memory_B": 80e9, "measurable": True, "seq_len": 24}  # fmt: skip
    subject = memory.build({"tie_word_embeddings": False, **fields}, seed=0)
    subject = memory.apply_techniques(subject, [("mixed_precision", {}), (technique, {})])
    memory.check(subject)
    readings = [one for one in memory.sample(subject) if isinstance(one, Reading)]
    values = {(one.metric, one.method): one.value for one in readings}
    assert values["peak_memory", "measured"] > 0
    assert abs(values["relative_error", "fake_step"]) < 5e-5
