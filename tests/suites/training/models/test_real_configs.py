"""Published config.json files: parameters as published, by the built model and by its shape."""

import json
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers", reason="the extra `hf` brings it")

from harness.config.hf_config import read_workload_file
from suites.training.layouts.shape_of_config import ARCHITECTURES, shape_of_config
from suites.training.models.huggingface import build

FILES = {file.stem: file for file in (Path(__file__).parents[3] / "data" / "configs").glob("*.json")}
LINES = Path(__file__).with_name("published_counts.jsonl").read_text().splitlines()
COUNTS = {one["name"]: one for one in map(json.loads, LINES)}
"""By the published weights: parameters, tied ones once (gemma-3-4b: of 4,300,079,472 without the vision tower
and the projection to text); whether the embedding is the output layer."""


@pytest.mark.parametrize("name", sorted(FILES))
def test_parameters_are_those_published(name):
    config = read_workload_file(FILES[name])
    config.pop("quantization_config", None)
    with torch.device("meta"):
        model = build(config).model
    tied = model.get_output_embeddings().weight is model.get_input_embeddings().weight
    assert sum(one.numel() for one in model.parameters()) == COUNTS[name]["parameters"]
    assert tied == COUNTS[name]["tied"]
    if config["model_type"] in ARCHITECTURES and "word_embed_proj_dim" not in config:
        assert shape_of_config(config).parameters == COUNTS[name]["parameters"]
