"""Published shapes: compared with config.json files, and found by the names that frameworks give them."""

import json

import pytest

from harness.config.code_fingerprint import ROOT
from harness.config.hf_config import read_workload_file
from harness.config.optimizations import read_yaml
from harness.frameworks.megatron_model import model_config, model_parts
from harness.frameworks.models import (
    canonical,
    model_of,
    name_in,
    nearest_model,
    published_model,
)
from harness.frameworks.table import Parts, models_of, yaml_tree
from harness.frameworks.words import hub_name
from harness.question import question_of
from suites.training.layouts.shape_of_config import shape_of_config

PUBLISHED = read_yaml(ROOT / "tests/data/published_parameters.yaml")["parameters"]
MODELS = sorted(yaml_tree("models")["models"])
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
        ("Llama 2 7 B", "llama-2-7b"),
        ("Falcon 40 B", "falcon-40b"),
        ("gemma 2 b", "gemma-2b"),
        ("gemma 2 2 B", "gemma-2-2b"),
        ("Mixtral 8x7 B", "mixtral-8x7b"),
        ("phi-1.5 1.3 B", "phi-1.5"),
        ("microsoft/phi-1_5", "phi-1.5"),
        ("Qwen 1.8 B", "qwen-1.8b"),
        ("tiny-llama", "tinyllama-1.1b"),
        ("meta-llama/Llama-2-7b-chat-hf", "llama-2-7b"),
        ("TheBloke/Llama-2-13B-chat-GPTQ", "llama-2-13b"),
        ("Llama-3.1-8B-Instruct (bnb-4bit)", "llama-3.1-8b"),
        ("unsloth/mistral-7b-instruct-v0.3-bnb-4bit", "mistral-7b-v0.3"),
        ("Qwen1.5-72B-Chat-GPTQ-Int4", "qwen1.5-72b"),
        ("StableLM-base-alpha 3B", "stablelm-base-alpha-3b"),
        ("bigcode/gpt_bigcode-santacoder", "santacoder"),
        ("google-t5/t5-base", "t5-base"),
        ("GPT-NeoX 20B", "gpt-neox-20b"),
        ("openai-community/gpt2-medium", "gpt2-medium"),
        ("microsoft/Phi-4-mini-instruct", "phi-4-mini"),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", "deepseek-r1-distill-qwen-1.5b"),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", "qwen2.5-7b"),
        ("allenai/OLMo-2-0425-1B-Instruct", "olmo-2-1b"),
    ],
)
def test_names_of_frameworks_and_of_tuned_models_are_known(name, known):
    assert published_model(name).config is published_model(known).config
    assert known in published_model(name).source


@pytest.mark.parametrize(
    "name",
    [
        *("unknown/foo-7b", "llama3/debugmodel", "Qwen/Qwen2.5-VL-7B-Instruct", "x", "gpt2+", "Qwen/Qwen-VL"),
        *("t5", "google/flan-t5-base", "google/t5-efficient-base", "base", "phi-3", "FLAN-T5-XL"),
        *("meta-llama/Llama-Guard-3-8B", "Qwen/Qwen3-Embedding-8B", "OpenRLHF/Llama-3-8b-rm-mixture"),
        *("mistralai/Mistral-Small-Instruct-2409", "mistralai/Mistral-Small-3.1-24B-Instruct-2503"),
        *("google/gemma-3-4b-it", "Qwen/Qwen3.5-9B", "nvidia/Nemotron-3-Nano-30B-A3B", "LiquidAI/LFM2-350M"),
    ],
)
def test_other_names_have_no_shape(name):
    assert published_model(name) is None


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("deepseek-ai/DeepSeek-V3.2-Exp", "deepseek"),
        ("gpt2-medium-tuned", "gpt2-medium"),
        ("microsoft/Phi-4-multimodal-instruct", "phi4"),
        ("01-ai/Yi-34B-200K", "yi-34b"),
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


@pytest.mark.parametrize(
    ("name", "begins_with"),
    [
        ("gpt2-medium", "gpt2"),
        ("gpt2-xl", "gpt2"),
        ("phi-4-mini", "phi-4"),
        ("deepseek-r1-distill-qwen-1.5b", "deepseek-r1"),
        ("deepseek-r1-distill-qwen-1.5b", "qwen2.5-1.5b"),
        ("qwen1.5-moe-a2.7b", "qwen1.5-4b"),
        ("qwen-14b", "qwen2.5-14b"),
        ("olmo-2-1b", "olmo-1b"),
        ("starcoderbase-1b", "starcoder"),
    ],
)
def test_a_known_name_that_begins_with_another_has_its_own_shape(name, begins_with):
    assert published_model(name).config != published_model(begins_with).config


@pytest.mark.parametrize("name", MODELS)
def test_every_shape_has_as_many_parameters_as_were_published(name):
    parameters, stated = parameters_of(published_model(name).config), PUBLISHED[name]
    if isinstance(stated, str):
        digits = len(stated.partition(".")[2])
        assert f"{parameters / 1e9:.{digits}f}" == stated
    else:
        assert parameters == stated


def parameters_of(config):
    """Return a shape's parameters; T5's, which is no decoder alone, by their formula."""
    if config["model_type"] != "t5":
        return shape_of_config(config).parameters
    hidden, width, layers = config["d_model"], config["d_ff"], config["num_layers"]
    attention, mlp = 4 * hidden * config["num_heads"] * config["d_kv"], 2 * hidden * width
    encoder, decoder = attention + mlp + 2 * hidden, 2 * attention + mlp + 3 * hidden
    relative_positions = 2 * 32 * config["num_heads"]
    return config["vocab_size"] * hidden + layers * (encoder + decoder) + relative_positions + 2 * hidden


@pytest.mark.parametrize("name", MODELS)
def test_every_shape_has_the_parameters_of_transformers_own_model(name):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers", reason="the extra `hf` brings it")
    from suites.training.models.huggingface_config import causal_class, parse

    config = published_model(name).config
    parsed = parse(config)
    is_t5 = config["model_type"] == "t5"
    kind = transformers.T5ForConditionalGeneration if is_t5 else causal_class(parsed)
    with torch.device("meta"):
        model = kind._from_config(parsed)
    assert parameters_of(config) == sum(one.numel() for one in model.parameters()) > 1e7


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
    distilled = "deepseek-ai/DeepSeek-R1-Distill-Llama-8B"  # the shape of Llama 3.1 8B, other weights
    assert hub_name(question_of(model_name=distilled)) == distilled


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
