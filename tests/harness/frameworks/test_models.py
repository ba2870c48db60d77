"""Published shapes: compared with config.json files, and found by the names that frameworks give them."""

import json

import pytest

from harness.config.code_fingerprint import ROOT
from harness.config.hf_config import read_workload_file
from harness.frameworks.megatron_model import model_config, model_parts
from harness.frameworks.models import (
    canonical,
    model_of,
    name_in,
    nearest_model,
    published,
    published_model,
)
from harness.frameworks.table import Parts, models_of, yaml_tree
from harness.frameworks.words import hub_name
from harness.question import question_of

FILES = sorted((ROOT / "tests/data/configs").glob("*.json"))
KNOWN = [file for file in FILES if published_model(file.stem) is not None]


@pytest.mark.parametrize("file", KNOWN, ids=lambda file: file.stem)
def test_a_published_shape_is_that_of_its_config_json(file):
    config = read_workload_file(file)
    shape = published_model(file.stem).config
    given = {key: value for key, value in shape.items() if key in config}
    assert len(given) >= 5
    assert given == {key: config[key] for key in given}


def test_most_config_files_have_a_published_shape():
    assert len(KNOWN) >= 15


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("meta-llama/Meta-Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("NousResearch/Llama-2-7b-hf", "llama-2-7b"),
        ("unsloth/Qwen2.5-7B-Instruct-bnb-4bit", "qwen2.5-7b"),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507", "qwen3-30b-a3b"),
        ("llama3/70B", "llama-3.1-70b"),
        ("deepseek_v3/671B", "deepseek-v3"),
        ("llama3_2_1b", "llama-3.2-1b"),
        ("google/gemma-2-9b-it", "gemma-2-9b"),
        ("mistralai/Mistral-7B-Instruct-v0.3", "mistral-7b-v0.3"),
    ],
)
def test_names_of_frameworks_and_of_tuned_models_are_known(name, known):
    assert published_model(name).config is published_model(known).config
    assert known in published_model(name).source


@pytest.mark.parametrize("name", ["unknown/foo-7b", "llama3/debugmodel", "Qwen/Qwen2.5-VL-7B-Instruct", "x"])
def test_other_names_have_no_shape(name):
    assert published_model(name) is None


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", "deepseek"),
        ("openai-community/gpt2-medium", "gpt2"),
        ("gpt2-xl", "gpt2"),
        ("microsoft/Phi-4-mini-instruct", "phi4"),
        ("HuggingFaceH4/zephyr-7b-gemma-v0.1", "zephyr-7b"),
    ],
)
def test_a_name_that_begins_with_a_known_one_has_no_shape_and_names_the_nearest(name, nearest):
    assert published_model(name) is None
    assert nearest_model(name).startswith(nearest)


def test_names_are_not_ambiguous():
    table = yaml_tree("models")
    names = [one for name, entry in table["models"].items() for one in (name, *entry.get("also", ()))]
    assert len({canonical(name) for name in names}) == len(names)
    assert len(table["models"]) >= 40
    for entry in table["models"].values():
        parts = entry["source"].replace(", its", ",").split(", ")
        assert parts[0] in table["sources"]


@pytest.mark.parametrize("name", sorted(published()))
def test_every_shape_has_the_parameters_of_transformers_own_model(name):
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers", reason="the extra `hf` brings it")
    from suites.training.layouts.shape_of_config import shape_of_parsed
    from suites.training.models.huggingface_config import causal_class, parse

    parsed = parse(published()[name].config)
    with torch.device("meta"):
        model = causal_class(parsed)._from_config(parsed)
    assert shape_of_parsed(parsed).parameters == sum(one.numel() for one in model.parameters()) > 1e7


def test_a_path_comes_before_a_name(tmp_path):
    config = {"model_type": "llama", "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    (tmp_path / "llama-2-7b").mkdir()
    (tmp_path / "llama-2-7b" / "config.json").write_text(json.dumps(config))
    assert model_of("llama-2-7b", tmp_path).config == config
    assert model_of("llama-2-7b").config["hidden_size"] == 4096


def test_a_name_is_translated_between_frameworks():
    names = (*models_of("torchtitan"), *models_of("torchtune"))
    assert all(published_model(one) is not None for one in names)
    assert name_in("torchtitan", "meta-llama/Llama-3.1-70B") == "llama3/70B"
    assert name_in("torchtune", "Qwen/Qwen2.5-7B-Instruct") == "qwen2_5/qwen2_5_7b_instruct"
    assert name_in("torchtune", "llama3_8b") == "llama3/llama3_8b"
    with pytest.raises(
        ValueError, match=r"^torchtitan has no name of Qwen/Qwen2.5-7B-Instruct; it has llama3"
    ):
        name_in("torchtitan", "Qwen/Qwen2.5-7B-Instruct")
    assert (
        hub_name(question_of(model_name="llama3/405B", format="torchtitan"))
        == "meta-llama/Meta-Llama-3.1-405B"
    )
    assert hub_name(question_of(model_name="mine/model", format="axolotl")) == "mine/model"


def test_a_model_that_is_not_written_for_megatron_is_refused_and_not_left_out():
    assert model_parts(None) == {}
    with pytest.raises(ValueError, match=r"^model_type is falcon, whose sizes are not written; they are of "):
        model_parts({"model_type": "falcon", "hidden_size": 64})


@pytest.mark.parametrize(
    ("frequency", "dense", "named"),
    [
        ("[1]*48", 0, False),
        ("([0]*3+[1]*45)", 3, False),
        ([0, 1, 1], 1, False),
        (1, 0, False),
        (2, 0, True),
        ("([0]*1+[1]*1)*24", 0, True),
    ],
)
def test_which_layers_have_experts_is_read(frequency, dense, named):
    parts = Parts({})
    parts |= {
        **{"_num_hidden_layers": 48, "_hidden_size": 64, "_num_attention_heads": 4, "_padded_vocab": 128},
        **{"_gated": True, "_norm": "RMSNorm", "_num_experts": 8, "_moe_freq": frequency},
    }
    assert (model_config(parts) or {}).get("first_k_dense_replace", 0) == dense
    assert [one.key for one in parts.left_out] == ["moe_layer_freq"] * named
