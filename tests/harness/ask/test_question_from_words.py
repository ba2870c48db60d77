"""Words as a question: each field's value and origin, and what the command gives in place of a file's."""

from __future__ import annotations

import json

import pytest
from own_texts import MEGATRON, TITAN
from small_config import CONFIG, config

from harness.ask.engines import choose
from harness.ask.words import ADVISE, FIT, question_from, searching, step_question, words_of
from harness.config.validation import ConfigError

SEARCH = "every layout is tried"
MPT = "max_seq_len: 64\nmax_duration: 1ba\nglobal_train_batch_size: 48\ndevice_train_microbatch_size: 8\n"
MPT += "model: {name: mpt_causal_lm, d_model: 128, n_heads: 2, n_layers: 2}\n"
"""A step of 48 sequences, of which a device has its share at most."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("words")
    (folder / "titan.toml").write_text(TITAN)
    (folder / "megatron.sh").write_text(MEGATRON)
    accumulating = TITAN.replace("seq_len = 8192", "seq_len = 8192\nglobal_batch_size = 64")
    (folder / "accumulating.toml").write_text(accumulating)
    compiled = TITAN.replace("tensor_parallel_degree = 2", "tensor_parallel_degree = 1")
    (folder / "compiled.toml").write_text(f"{compiled}\n[compile]\nenable = true\n")
    (folder / "mpt.yaml").write_text(MPT)
    config(folder)
    return folder


def asked(folder, words, mode=FIT):
    """Return the question of words, in which MODEL and FILE are in the folder."""
    given = words.replace("MODEL", f"model={folder / 'small.json'}").replace("FILE=", f"config={folder}/")
    read = question_from if mode is FIT else step_question
    return read(words_of(given.split(), mode))


FIELDS = """
MODEL | devices=1 assumption, seq_len=256 assumption, device=h100_80gb assumption, techniques=None assumption
MODEL gpus=2 seq_len=64 | devices=2 command devices, seq_len=64 command seq_len, sharing=fsdp2 assumption
MODEL device=24gb | memory_B=24000000000.0 command device, device=h100_80gb assumption
MODEL device=44.5GiB | memory_B=47781511168.0 command device
MODEL compiled=true fused_loss=true | compile=True command compiled, fused_loss=True command
MODEL recompute=full precision=fp8 | recompute=full command, precision=fp8 command precision
MODEL devices=16 layout=tp8,pp:2 | tp=8 command layout, pp=2 command layout, zero=1 assumption
MODEL devices=16 layout={tp:8} program=torchtitan | tp=8 command layout, sharing=fsdp2 assumption
MODEL devices=16 layout=zero:0,sequence_parallel:0 | zero=0 command, sequence_parallel=False command
model=Llama-3.2-1B | model_name=Llama-3.2-1B command model, seq_len=2048 assumption
MODEL seq_len=128 tokens_per_batch=512k | global_batch_size=4096 command tokens_per_batch
MODEL seq_len=8192 tokens_per_batch=4M | global_batch_size=512 command tokens_per_batch
FILE=titan.toml devices=16 | tp=2 key parallelism.tensor_parallel_degree, pp=1 default torchtitan v0.2.2
FILE=titan.toml devices=16 seq_len=4096 | recompute=full key activation_checkpoint.mode, seq_len=4096 command
FILE=titan.toml devices=16 layout=pp:2 | tp=1 command layout, pp=2 command, zero=3 key
FILE=titan.toml devices=16 MODEL | model_name=small.json command model, tp=2 key, seq_len=8192 key
FILE=megatron.sh global_batch_size=512 | global_batch_size=512 command, devices=32 key, zero=1 key
MODEL expandable_segments=true torch=2.3.1 | expandable_segments=True command, torch=2.3.1 command torch
MODEL gpus=2 layout=tp:2 imbalance=1.1 | imbalance=1.1 command imbalance
MODEL techniques=[] torch=2.3 | torch=2.3 command, techniques=() command
MODEL model_code=json:loads | model_code=json:loads command
MODEL gpus=16 link=400Gbps | network_B_per_s=50000000000.0 command link, network=infiniband
MODEL gpus=16 link=3.2tbit/node,efa | network_B_per_s=50000000000.0 command link, network=efa
FILE=mpt.yaml devices=8 | micro_batch_size=6 key global_train_batch_size
FILE=mpt.yaml devices=4 | micro_batch_size=8 key
FILE=mpt.yaml devices=6 | micro_batch_size=8 key
FILE=mpt.yaml devices=8 micro_batch_size=2 | micro_batch_size=2 command
FILE=megatron.sh | virtual_stages=4 key, sequence_parallel=False, recompute=selective key
"""
"""Words, and fields with their values and where these come from."""


def rows(table):
    return [line.split(" | ") for line in table.strip().splitlines()]


@pytest.mark.parametrize(("words", "fields"), rows(FIELDS))
def test_each_field_has_its_value_and_where_it_comes_from(folder, words, fields):
    question = asked(folder, words, ADVISE if "link=" in words else FIT)
    for field in fields.split(", "):
        given, _, origin = field.partition(" ")
        name, _, _ = given.partition("=")
        assert f"{name}={getattr(question, name)}" == given
        assert " ".join(question.origin(name)).startswith(origin), name


def test_recipes_are_the_fields_that_they_change(folder):
    assert asked(folder, "MODEL offload=parameters").offload == ("optimizer", "parameters")
    recomputed = asked(folder, "MODEL recompute_modules=[mlp,layernorm]")
    assert (recomputed.recompute, recomputed.recompute_modules) == ("selective", ("mlp", "layernorm"))
    listed = asked(folder, "MODEL techniques=[mixed_precision] optimizer=muon").techniques
    assert listed == (("mixed_precision", {}), ("optimizer", {"name": "muon"}))
    for text in ('[{"fsdp2":{"head":"apart"}},"lora"]', "[{fsdp2:{head:apart}},lora]"):  # JSON, and Hydra's
        techniques = asked(folder, f"MODEL gpus=2 techniques={text}").techniques
        assert set(dict(techniques)) == {"fsdp2", "lora"}
        assert dict(techniques)["fsdp2"] == {"head": "apart"}


def test_the_model_is_that_of_its_file_or_of_its_published_shape(folder):
    assert asked(folder, "MODEL").config == CONFIG
    published = asked(folder, "model=meta-llama/Llama-3.2-1B")
    assert (published.config or {})["hidden_size"] == 2048
    own = folder / "own" / "config.json"
    own.parent.mkdir()
    own.write_text(json.dumps(CONFIG))
    assert asked(folder, f"model={own.parent}").config == CONFIG
    assert asked(folder, f"model={own}").model_name == "own/config.json"


def test_seconds_are_those_of_every_layout_where_none_is_given_on_a_files_devices(folder):
    question = asked(folder, "MODEL gpus=16", ADVISE)
    assert question.search
    assert question.origin("search") == ("assumption", SEARCH)
    assert not asked(folder, "MODEL gpus=16 layout=tp:2", ADVISE).search
    assert not asked(folder, "FILE=titan.toml gpus=16", ADVISE).search
    assert asked(folder, "FILE=megatron.sh", ADVISE).devices == 32
    with pytest.raises(ConfigError, match="give devices=N, the number of GPUs"):
        asked(folder, "FILE=titan.toml", ADVISE)


@pytest.mark.parametrize(
    ("file", "batch"), [("titan.toml", 2 * 8), ("accumulating.toml", 64), ("megatron.sh", 256)]
)
def test_the_other_layouts_of_a_file_have_its_recipe_batch_and_devices(folder, file, batch):
    """Without accumulation a batch is micro-batch 2 on the 16 / tp 2 ranks."""
    question = asked(folder, f"FILE={file} gpus={32 if file == 'megatron.sh' else 16}", ADVISE)
    others = searching(question)
    assert others.search
    assert (others.tp, others.pp, others.virtual_stages, others.micro_batch_size) == (1, 1, 1, 1)
    assert (others.global_batch_size, others.gradient_accumulation_steps) == (batch, None)
    kept = ("devices", "program", "sharing", "optimizer", "precision", "seq_len", "zero", "config")
    assert {name: getattr(others, name) for name in kept} == {name: getattr(question, name) for name in kept}
    assert others.origin("tp") == ("assumption", SEARCH)


ENGINES = """
MODEL | dry run | fake tensors
MODEL devices=8 | dry run | fake tensors
MODEL devices=8 techniques=[fsdp2] | dry run | techniques=
MODEL devices=8 program=megatron | account | megatron
MODEL devices=8 layout=tp:2 | account | layout
MODEL devices=8 layout=search | account | layout
FILE=titan.toml devices=16 | account | tp 2
FILE=titan.toml devices=16 | step time | seconds
FILE=compiled.toml devices=16 | account | compiles
"""
"""Words, the engine that is chosen, and a part of why."""


def test_the_engine_is_chosen_by_the_question_and_says_why(folder):
    for words, engine, why in rows(ENGINES):
        chosen, reason = choose(asked(folder, words), seconds=engine == "step time")
        assert chosen == engine, words
        assert why in reason


def test_the_content_of_a_file_is_read_like_the_file(folder):
    for content, path in ((CONFIG, "small.json"), (FLAGS, "flags.json")):
        (folder / path).write_text(json.dumps(content))
        key = "model" if content is CONFIG else "config"
        of_file, of_text = (
            question_from(words_of([f"{key}={text}", "seq_len=64", "gpus=8"], FIT))
            for text in (str(folder / path), json.dumps(content))
        )
        assert of_text.config == of_file.config
        assert of_text.keys == of_file.keys
        assert choose(of_text) == choose(of_file)


FLAGS = {
    "num-layers": 4, "hidden-size": 64, "num-attention-heads": 4, "vocab-size": 100, "seq-length": 64,
    "max-position-embeddings": 64, "micro-batch-size": 1, "tensor-model-parallel-size": 2, "bf16": True,
}  # fmt: skip


def test_sizes_without_an_architecture_are_those_of_a_layout_or_of_the_users_own_code():
    sizes = {key: size for key, size in CONFIG.items() if key not in ("model_type", "architectures")}
    code = "model_code=suites.published.models:torchtune_llama"
    for words, engine in (([], "account"), (["layout=tp:1"], "account"), ([code], "dry run")):
        question = question_from(words_of([f"model={json.dumps(sizes)}", "seq_len=64", *words], FIT))
        assert question.config == sizes
        assert choose(question)[0] == engine
