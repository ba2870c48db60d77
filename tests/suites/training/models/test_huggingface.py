"""Models out of config.json files: sizes as published, losses as transformers' own, peaks as measured."""

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("transformers", reason="the extra `hf` brings it")

from harness.config.hf_config import read_workload_file
from suites.memory.live_bytes import measure_peak
from suites.training.dry_run.dry_run import Device, among_ranks, dry_run
from suites.training.dry_run.estimates import count
from suites.training.models.huggingface import build
from suites.training.models.huggingface_config import is_encoder, with_layers
from suites.training.techniques import apply_techniques, build_step
from suites.training.workload import SIZES, Workload

HOST = Device("host", measured=True)
DATA = Path(__file__).parents[3] / "data" / "small_configs"
FILES = sorted(DATA.glob("*.json"))
BY_NAME = pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)


def a_workload(config, **changes):
    """Shape fields hold nonsense, to be replaced by the config's."""
    fields = {**dict.fromkeys(SIZES, 1), "micro_batch_size": 3, "seq_len": 48}
    return Workload(**(fields | {"hf_config": config} | changes))


def a_step(file, attention="explicit", **changes):
    techniques = [] if attention == "explicit" else ["attention"]
    return build_step(a_workload(read_workload_file(file), **changes), techniques)


@BY_NAME
def test_the_loss_is_transformers_own(file):
    """Its `labels` shift by one: predicting tokens 1 to T from 0 to T - 1, as ours are handed in.

    An encoder's do not; here it predicts all tokens, as if all were masked.
    """
    torch.manual_seed(0)
    model = build(read_workload_file(file)).eval()
    drawn = torch.randint(3, 256, (2, 25))
    ours = model(drawn[:, :-1], drawn[:, 1:])
    if is_encoder(model.model.config):
        theirs = model.model(input_ids=drawn[:, :-1], labels=drawn[:, 1:].contiguous()).loss
    else:
        theirs = model.model(input_ids=drawn, labels=drawn, use_cache=False).loss
    assert ours.shape == ()
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-5)
    ours.backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    assert gradients
    assert all(bool(g.isfinite().all()) for g in gradients)


TOKEN_BY_TOKEN = ("falcon_mamba", "jamba", "mamba")
"""Models with a loop over tokens."""

WITH_SDPA = ("gemma3_text", "gpt2", "llama")


@pytest.mark.parametrize(
    ("name", "attention"),
    [*((file.stem, "explicit") for file in FILES), *((name, "sdpa") for name in WITH_SDPA)],
)
def test_fake_step_is_what_is_measured(name, attention):
    """Alike layers with explicit attention: two of them, all walked; else as many as the file says."""
    changes = {"seq_len": 16} if name in TOKEN_BY_TOKEN else {}
    step = a_step(DATA / f"{name}.json", attention, **changes)
    if step.layers_alike and attention == "explicit":
        step = build_step(a_workload(with_layers(step.workload.hf_config or {}, 2), **changes))
    measured = measure_peak(step, torch.device("cpu"), 1).peaks
    assert dry_run(step, HOST).peak_B == pytest.approx(measured[0].live_B, rel=5e-4)


@BY_NAME
def test_the_shape_is_read_off_the_config_and_fewer_layers_lack_only_layers(file):
    config, step = read_workload_file(file), a_step(file)
    with torch.device("meta"):
        model, fewer = build(config), build(config, 2)
        counts = count(model, step.workload)
    embedding = model.model.get_input_embeddings().weight
    assert (counts.vocab_size, counts.hidden_size) == tuple(embedding.shape)
    tied = model.model.get_output_embeddings().weight is embedding
    assert step.workload.tie_word_embeddings == tied
    assert counts.num_hidden_layers == len(model.blocks) == step.workload.num_hidden_layers
    assert len(fewer.blocks) == 2
    of_layers, of_two = (sum(p.numel() for p in one.blocks.parameters()) for one in (model, fewer))
    rest = sum(p.numel() for p in model.parameters()) - of_layers
    assert sum(p.numel() for p in fewer.parameters()) - of_two == rest
    for num_hidden_layers in (0, len(model.blocks) + 1):
        with pytest.raises(ValueError, match=r"the config has \d+; allowed: 1 to"):
            with_layers(config, num_hidden_layers)


ALL = ["activation_checkpointing", "mixed_precision", "fsdp2"]
TECHNIQUES = [("mixtral", ALL), ("gpt2", ["fsdp2"])]
"""GPT-2's embedding is its head, too."""


@pytest.mark.parametrize(("name", "techniques"), TECHNIQUES, ids=str)
def test_optimizations_hold_for_these_models_too(name, techniques):
    step = apply_techniques(a_step(DATA / f"{name}.json", dp_size=4), techniques)
    with among_ranks(step):
        measured = measure_peak(step, torch.device("cpu"), 1).peaks[0].live_B
        assert dry_run(step, HOST).peak_B == pytest.approx(measured, rel=5e-3 if step.ranks > 1 else 5e-4)


LINES = [
    json.loads(line) for line in Path(__file__).with_name("small_configs.jsonl").read_text().splitlines()
]
SEVERAL_PARTS, READ_VALUES = (
    {one["config"]["model_type"]: one["config"] for one in LINES if one["group"] == name}
    for name in ("several_parts", "read_values")
)
"""Encoders with decoders and models of several widths; architectures whose code reads values."""


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_encoder_and_decoder_read_the_same_tokens(name):
    config = SEVERAL_PARTS[name]
    torch.manual_seed(0)
    model = build(config).eval()
    tokens, targets = torch.randint(3, 60, (2, 2, 16))
    logits = model.model(input_ids=tokens, decoder_input_ids=tokens, use_cache=False).logits
    assert model(tokens, targets) == F.cross_entropy(logits.flatten(0, 1), targets.flatten())
    assert len(model.blocks) == (5 if name == "t5" else 4)
    assert not config.get("num_decoder_layers") or model.blocks[2].is_decoder > model.blocks[1].is_decoder


@pytest.mark.parametrize("model_type", [*SEVERAL_PARTS, *READ_VALUES])
def test_unusual_architectures_take_the_memory_that_they_take(model_type):
    """Those of several parts with checkpointing of the layers of each."""
    several = model_type in SEVERAL_PARTS
    config = SEVERAL_PARTS[model_type] if several else READ_VALUES[model_type]
    step = build_step(a_workload(config), ["activation_checkpointing"] if several else [])
    assert model_type != "gemma3n_text" or step.workload.intermediate_size == 128  # the largest of its widths
    measured = measure_peak(step, torch.device("cpu"), 1).peaks[0].live_B
    assert dry_run(step, HOST).peak_B == pytest.approx(measured, rel=5e-4)
