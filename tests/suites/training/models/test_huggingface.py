"""Models out of config.json files: sizes as published, losses as transformers' own, peaks as measured."""

from __future__ import annotations

import json
import resource
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers", reason="the extra `hf` brings it")

from harness.config.hf_config import read_workload_file, workload_from_file
from harness.instruments import torch_internals
from harness.records import Unavailable
from suites.memory.formulas import estimates
from suites.memory.live_bytes import measure_peak
from suites.memory.subject import Subject
from suites.training.correctness import check
from suites.training.dry_run.dry_run import Device, among_ranks, dry_run
from suites.training.dry_run.estimates import count
from suites.training.models.huggingface import build, complete, unlike_layers
from suites.training.models.huggingface_config import is_encoder, with_layers
from suites.training.step import TrainingStep
from suites.training.techniques import apply_techniques, build_step, mixed_precision
from suites.training.workload import Workload

HOST = Device("host", measured=True)


DATA = Path(__file__).parents[3] / "data" / "small_configs"
FILES = sorted(DATA.glob("*.json"))
BY_NAME = pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)

PUBLISHED: dict[str, tuple[int, dict[str, Any]]] = {
    "gpt2": (124_439_808, {"model_type": "gpt2"}),
    "llama_2_7b": (6_738_415_616, {"model_type": "llama", "intermediate_size": 11008}),
    "mistral_7b": (7_241_732_096, {"model_type": "mistral", "num_key_value_heads": 8}),
    "mixtral_8x7b": (46_702_792_704, {"model_type": "mixtral", "num_key_value_heads": 8}),
    "gemma_2b": (
        2_506_172_416,
        {
            "model_type": "gemma",
            "hidden_size": 2048,
            "intermediate_size": 16384,
            "num_hidden_layers": 18,
            "num_attention_heads": 8,
            "num_key_value_heads": 1,
            "head_dim": 256,
            "vocab_size": 256_000,
        },
    ),
    "falcon_7b": (
        6_921_720_704,
        {"model_type": "falcon", "hidden_size": 4544, "num_attention_heads": 71, "vocab_size": 65024},
    ),
    "bloom_560m": (
        559_214_592,
        {"model_type": "bloom", "hidden_size": 1024, "n_layer": 24, "n_head": 16, "vocab_size": 250_880},
    ),
}
"""Parameters as the models' own cards count them."""

SEVEN_B = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "vocab_size": 32000,
}


def a_workload(config: dict[str, Any], **changes: Any) -> Workload:
    """Shape fields hold nonsense, to be replaced by the config's."""
    shape = (
        "num_hidden_layers",
        "hidden_size",
        "num_attention_heads",
        "num_key_value_heads",
        "intermediate_size",
        "vocab_size",
        "max_position_embeddings",
    )
    fields: dict[str, Any] = {**dict.fromkeys(shape, 1), "micro_batch_size": 3, "seq_len": 48}
    return Workload(**(fields | {"hf_config": config} | changes))


def a_step(file: Path, attention: str = "explicit", **changes: Any) -> TrainingStep:
    techniques = [] if attention == "explicit" else ["attention"]
    return build_step(a_workload(read_workload_file(file), **changes), techniques)


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_as_published(name: str) -> None:
    published, config = PUBLISHED[name]
    if config["model_type"] in ("llama", "mistral", "mixtral"):
        config = SEVEN_B | config
    with torch.device("meta"):
        assert sum(p.numel() for p in build(config).parameters()) == published


@BY_NAME
def test_the_loss_is_transformers_own(file: Path) -> None:
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
def test_fake_step_is_what_is_measured(name: str, attention: str) -> None:
    """Alike layers with explicit attention: two of them, all walked; else as many as the file says."""
    changes = {"seq_len": 16} if name in TOKEN_BY_TOKEN else {}
    step = a_step(DATA / f"{name}.json", attention, **changes)
    if step.layers_alike and attention == "explicit":
        step = build_step(a_workload(with_layers(step.workload.hf_config or {}, 2), **changes))
    measured = measure_peak(step, torch.device("cpu"), 1).peaks
    assert dry_run(step, HOST).peak_B == pytest.approx(measured[0].live_B, rel=5e-4)


@pytest.mark.parametrize("name", ["bloom", "gemma2", "gpt_oss", "mpt"])
def test_no_sdpa_is_reported(name: str) -> None:
    with pytest.raises(Unavailable, match="no SDPA attention"):
        dry_run(a_step(DATA / f"{name}.json", "sdpa"))


@pytest.mark.parametrize("name", ["gpt2", "mixtral"])
def test_repeated_layers_equal_a_full_trace(name: str) -> None:
    step = a_step(DATA / f"{name}.json")
    config = dict(step.workload.hf_config or {})
    six_layers = {"n_layer": 6} if name == "gpt2" else {"num_hidden_layers": 6}
    step = build_step(a_workload(config | six_layers))
    assert step.layers_alike
    assert step.workload.num_hidden_layers == 6
    assert dry_run(step, HOST) == dry_run(step, HOST, full=True)


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("gemma2", "layer_types"),
        ("gemma3_text", "layer_types"),
        ("deepseek_v3", "mlp"),
        ("smollm3", "no_rope"),
    ],
)
def test_layers_that_differ_are_found(name: str, what: str) -> None:
    step = a_step(DATA / f"{name}.json")
    assert not step.layers_alike
    assert what in str(unlike_layers(step.workload.hf_config or {}))


def test_unlike_layers_are_all_traced() -> None:
    """DeepSeek's first layers are dense, the rest are not: what the first ones show would be wrong."""
    step = a_step(DATA / "deepseek_v3.json")
    dense_first = {**(step.workload.hf_config or {}), "num_hidden_layers": 5, "first_k_dense_replace": 4}
    step = build_step(a_workload(dense_first))
    assert dry_run(replace(step, layers_alike=True), HOST) != dry_run(step, HOST)


@BY_NAME
def test_fewer_layers(file: Path) -> None:
    config = read_workload_file(file)
    with torch.device("meta"):
        whole, fewer = build(config), build(config, 2)
    assert len(fewer.blocks) == 2
    assert len(whole.blocks) == complete(a_workload(config)).num_hidden_layers
    of_layers = sum(p.numel() for block in whole.blocks for p in block.parameters())
    of_two = sum(p.numel() for block in fewer.blocks for p in block.parameters())
    rest = sum(p.numel() for p in whole.parameters()) - of_layers
    assert sum(p.numel() for p in fewer.parameters()) - of_two == rest
    for num_hidden_layers in (0, len(whole.blocks) + 1):
        with pytest.raises(ValueError, match=r"the config has \d+; allowed: 1 to"):
            with_layers(config, num_hidden_layers)


@BY_NAME
def test_the_shape_is_read_off_the_config(file: Path) -> None:
    step = a_step(file)
    with torch.device("meta"):
        model = build(read_workload_file(file))
        counts = count(model, step.workload)
    embedding = model.model.get_input_embeddings().weight  # type: ignore[operator,union-attr]
    assert (counts.vocab_size, counts.hidden_size) == tuple(embedding.shape)
    tie_word_embeddings = model.model.get_output_embeddings().weight is embedding  # type: ignore[operator,union-attr]
    assert step.workload.tie_word_embeddings == tie_word_embeddings
    assert counts.num_hidden_layers == len(model.blocks)
    assert counts.parameters > 16 * counts.hidden_size
    assert any(one.peak_B for one in estimates(Subject(step, 80e9), counts))


@pytest.mark.parametrize("name", ["bert", "gemma", "gpt2", "llama", "opt", "qwen2"])
@pytest.mark.parametrize("tied", [True, False])
def test_a_config_passes_the_check_of_its_step(name: str, tied: bool) -> None:
    """With its embedding shared or not, as the plain step that it is compared with."""
    config = read_workload_file(DATA / f"{name}.json") | {"tie_word_embeddings": tied}
    step = build_step(a_workload(config), ["mixed_precision", "attention"])
    assert step.given.tie_word_embeddings is step.workload.tie_word_embeddings is tied
    check(step)


def test_robertas_positions_begin_after_padding(tmp_path: Path) -> None:
    """Of 34 positions 32 are for tokens, as its own code finds."""
    config = read_workload_file(DATA / "bert.json") | {"model_type": "roberta", "max_position_embeddings": 34}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert workload_from_file(tmp_path)[1]["seq_len"] == 32
    model = build(config)
    model.model(input_ids=torch.full((1, 32), 5))
    with pytest.raises((IndexError, RuntimeError)):
        model.model(input_ids=torch.full((1, 33), 5))
    with pytest.raises(ValueError, match="33 tokens is longer than the 32 positions"):
        model(torch.full((1, 33), 5), torch.full((1, 33), 5))


def test_nothing_is_allocated() -> None:
    """Mixtral 8x7B's 47 B parameters, on fake tensors, in some megabytes."""
    config = SEVEN_B | {"model_type": "mixtral", "num_key_value_heads": 8}
    build(SEVEN_B | {"model_type": "llama"} | {"num_hidden_layers": 1, "hidden_size": 64, "vocab_size": 10})
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with torch_internals.fake_tensor_mode():
        model = build(config)
        assert sum(p.numel() for p in model.parameters()) == 46_702_792_704
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 300_000


def test_types_are_as_asked_for() -> None:
    """The file's own `torch_dtype` says how weights are stored, not how they are trained."""
    config = read_workload_file(DATA / "llama.json")
    assert config["torch_dtype"] == "bfloat16"
    assert {p.dtype for p in build(config).parameters()} == {torch.float32}
    torch.set_default_dtype(torch.bfloat16)
    try:
        assert {p.dtype for p in build(config).parameters()} == {torch.bfloat16}
    finally:
        torch.set_default_dtype(torch.float32)


COMBINED = {"checkpointing": "activation_checkpointing", "mixed": "mixed_precision", "fsdp2": "fsdp2"}


ALL = "+".join(COMBINED)


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("llama", ALL),
        ("gpt2", "mixed"),
        ("gpt2", "fsdp2"),  # its embedding is its head, too
        ("mixtral", "checkpointing"),
        ("mixtral", ALL),
    ],
)
def test_optimizations_hold_for_these_models_too(name: str, how: str) -> None:
    step = a_step(DATA / f"{name}.json", dp_size=4)
    step = apply_techniques(step, [COMBINED[one] for one in how.split("+")])
    with among_ranks(step):
        measured = measure_peak(step, torch.device("cpu"), 1).peaks[0].live_B
        assert dry_run(step, HOST).peak_B == pytest.approx(measured, rel=5e-3 if step.ranks > 1 else 5e-4)


@pytest.mark.parametrize("sharded", [False, True], ids=["one device", "fsdp2"])
def test_gradients_of_experts_are_added_in_place(sharded: bool) -> None:
    """Under autocast, which over FSDP2 takes the place of its own casts."""
    step = a_step(DATA / "qwen3_moe.json", "explicit" if sharded else "sdpa", dp_size=4)
    step = apply_techniques(step, ["activation_checkpointing", *(["fsdp2"] if sharded else [])])
    step = replace(step, around=mixed_precision.autocast_to_bf16)
    with among_ranks(step):
        measured = measure_peak(step, torch.device("cpu"), 1).peaks[0].live_B
        assert dry_run(step, HOST).peak_B == pytest.approx(measured, rel=5e-4)
