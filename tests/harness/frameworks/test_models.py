"""Published shapes: compared with config.json files, and found by the names that frameworks give them."""

import json

import pytest
import torch

from harness.ask.words import with_model
from harness.config.code_fingerprint import ROOT
from harness.config.hf_config import read_workload_file
from harness.config.optimizations import read_yaml
from harness.frameworks.models import (
    canonical,
    name_in,
    nearest_model,
    published_model,
    shapes,
    with_model_parts,
)
from harness.frameworks.read import read_own_text
from harness.frameworks.table import models_of
from harness.frameworks.words import hub_name
from harness.question import KeyRead, question_of
from suites.training.layouts.shape_of_config import shape_of_config
from suites.training.models.huggingface import build

PUBLISHED = {
    f"{model}-{size}" if size else model: parameters
    for model, row in read_yaml(ROOT / "tests/data/published_parameters.yaml")["parameters"].items()
    for size, parameters in (row if isinstance(row, dict) else {"": row}).items()
}
MODELS = sorted(shapes())
HYBRIDS = {"gemma4_text", "mistral4"}
FILES = sorted((ROOT / "tests/data/configs").glob("*.json"))


def test_a_published_shape_is_that_of_its_config_json():
    known = [file for file in FILES if published_model(file.stem) is not None]
    assert len(known) >= 15
    for file in known:
        config, shape = read_workload_file(file), published_model(file.stem).config
        given = {key: value for key, value in shape.items() if key in config}
        assert len(given) >= 5
        assert given == {key: config[key] for key in given}, file.stem


NAMES = """
meta-llama/Meta-Llama-3.1-8B-Instruct | llama-3.1-8b
unsloth/Qwen2.5-7B-Instruct-bnb-4bit | qwen2.5-7b
llama3/70B | llama-3.1-70b
deepseek_v3/671B | deepseek-v3
llama3_2_1b | llama-3.2-1b
gemma 2 b | gemma-2b
Mixtral 8x7 B | mixtral-8x7b
Llama-3.1-8B-Instruct (bnb-4bit) | llama-3.1-8b
bigcode/gpt_bigcode-santacoder | santacoder
OpenGVLab/InternVL3_5-8B-HF | internvl3.5-8b
PaddlePaddle/PaddleOCR-VL-1.6 | paddleocr-vl
deepseek-ai/DeepSeek-R1-Distill-Qwen-7B | qwen2.5-7b
deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B | deepseek-r1-distill-qwen-1.5b
Qwen/Qwen2.5-VL-7B-Instruct | qwen2.5-vl-7b
Qwen/Qwen3.5-35B-A3B-Base | qwen3.5-35b-a3b
llama3/debugmodel_varlen_attn | llama3-debugmodel
mistralai/Magistral-Small-2507 | mistral-small-24b
mistralai/Ministral-3-3B-Reasoning-2512 | ministral-3-3b
axolotl-ai-co/Mistral-Small-4-119B-2603-BF16 | mistral-small-4-119b
Qwen/Qwen3-VL-Reranker-8B | qwen3-vl-8b
"""


def test_names_of_frameworks_and_of_tuned_models_are_known():
    for row in NAMES.strip().splitlines():
        name, known = row.split(" | ")
        assert published_model(name).config is published_model(known).config, name
        assert known in published_model(name).source


OTHERS = {
    "deepseek-ai/DeepSeek-V3.2-Exp": "deepseek", "gpt2-medium-tuned": "gpt2-medium", "gpt2+": "gpt2",
    "microsoft/Phi-4-multimodal-instruct": "phi4", "mine/zephyr-7b-gemma-tuned": "zephyr-7b",
    **dict.fromkeys(("unknown/foo-7b", "llama4/debugmodel", "Qwen/Qwen2.5-Omni-3B", "t5", "base"), ""),
    **dict.fromkeys(("google/flan-t5-base", "google/t5-efficient-base", "Qwen/Qwen3-Embedding-8B"), ""),
    **dict.fromkeys(("OpenRLHF/Llama-3-8b-rm-mixture", "meta-llama/Llama-Guard-3-8B"), ""),
}  # fmt: skip
"""Names that have no published shape, and with what the nearest begins that has one."""


def test_other_names_have_no_shape_and_name_the_nearest():
    for name, nearest in OTHERS.items():
        assert published_model(name) is None, name
        assert nearest_model(name).startswith(nearest), name


def test_names_are_not_ambiguous():
    names = [one for name, row in shapes().items() for one in (name, *row["also"])]
    assert len({canonical(name) for name in names}) == len(names)


def test_every_shape_has_as_many_parameters_as_were_published():
    for name in (one for one in MODELS if "debugmodel" not in one):  # of which torchtitan states none
        parameters, stated = parameters_of(published_model(name).config), PUBLISHED[name]
        if isinstance(stated, str) and stated.startswith("about "):
            parameters, stated = parameters / 1e9, pytest.approx(float(stated[6:]), rel=0.1)
        elif isinstance(stated, str):
            digits = len(stated.partition(".")[2])
            parameters = f"{parameters / 1e9:.{digits}f}"
        assert parameters == stated, name


def parameters_of(config):
    """Return a shape's parameters; T5's by their formula, and those that layouts lack by their code."""
    if config["model_type"] in HYBRIDS:
        with torch.device("meta"):
            return sum(one.numel() for one in build(config).parameters())
    if config["model_type"] != "t5":
        return shape_of_config(config).parameters
    hidden, width, layers = config["d_model"], config["d_ff"], config["num_layers"]
    matrices = 3 if config["feed_forward_proj"].startswith("gated") else 2
    attention, mlp = 4 * hidden * config["num_heads"] * config["d_kv"], matrices * hidden * width
    encoder, decoder = attention + mlp + 2 * hidden, 2 * attention + mlp + 3 * hidden
    relative_positions = 2 * 32 * config["num_heads"]
    ends = (1 if config["tie_word_embeddings"] else 2) * config["vocab_size"] * hidden
    return ends + layers * (encoder + decoder) + relative_positions + 2 * hidden


def test_of_a_model_with_a_tower_the_text_part_is_taken_and_said(tmp_path):
    tower, text = {"depth": 2}, {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    for model_type, kind in (("qwen2_5_vl", "qwen2"), ("gemma3", "gemma3_text")):
        (tmp_path / "config.json").write_text(
            json.dumps({"model_type": model_type, "text_config": text, "vision_config": tower})
        )
        question = with_model(question_of(), str(tmp_path))
        assert (question.config["model_type"], question.config["hidden_size"]) == (kind, 64)
        assert [(key.key, key.memory) for key in question.keys] == [("vision_config", "raises")]
    assert not with_model(question, "gpt2").keys
    whole = " --gradient_checkpointing false"
    for more, most_B in (
        (whole, 3e9),
        ("", None),  # its layers' inputs are kept
        (f"{whole} --freeze_vit false", None),
        (f"{whole} --target_modules q_proj v_proj", None),
    ):
        text = f"swift sft --model Qwen/Qwen2.5-VL-3B-Instruct --max_length 2048{more}"
        (tower,) = [key for key in read_own_text(text, suffix=".sh").keys if key.key == "vision_config"]
        assert tower.most_B == most_B, more
    scout = "meta-llama/Llama-4-Scout-17B-16E-Instruct"  # Llama4ForConditionalGeneration
    assert "vision_config" in published_model(scout).config
    assert "vision_config" not in published_model("llama4/17bx16e").config  # torchtitan's, of text alone


def test_a_name_is_translated_between_frameworks():
    names = (*models_of("torchtitan"), *models_of("torchtune"))
    assert all(published_model(one) is not None for one in names)
    assert name_in("torchtitan", "meta-llama/Llama-4-Scout-17B-16E") == "llama4/17bx16e"
    assert name_in("torchtune", "Qwen/Qwen2.5-7B-Instruct") == "qwen2_5/qwen2_5_7b_instruct"
    with pytest.raises(ValueError, match=r"^torchtitan has no name of gpt2; it has llama3"):
        name_in("torchtitan", "gpt2")
    distilled = "deepseek-ai/DeepSeek-R1-Distill-Llama-8B"  # the shape of Llama 3.1 8B, other weights
    hub = {"llama3/405B": "meta-llama/Meta-Llama-3.1-405B", "mine/model": "mine/model", distilled: distilled}
    assert {name: hub_name(question_of(model_name=name, format="torchtitan")) for name in hub} == hub


@pytest.mark.parametrize(("text", "suffix", "most_B"), [
    ("base_model: Qwen/Qwen3-8B\noptimizer: adamw_bnb_8bit\npad_to_sequence_len: true\n", ".yaml", 6),
    ("base_model: Qwen/Qwen3-8B\noptimizer: adamw_bnb_8bit\nadapter: lora\nlora_r: 8\n"
     "lora_target_linear: true\n", ".yaml", None),
    ("swift sft --model Qwen/Qwen3-8B --tuner_type full --optim adamw_8bit", ".sh", 6),
    ("checkpoint_dir: checkpoints/Qwen/Qwen3-8B\nquantize: bnb.nf4\nlora_r: 8\ntrain.max_seq_length: 512\n",
     ".yaml", 2),
    ("checkpoint_dir: checkpoints/Qwen/Qwen3-4B\nquantize: bnb.nf4\nlora_r: 8\ntrain.max_seq_length: 512\n",
     ".yaml", 2 * 2560 / 4096),  # whose output layer is apart in litgpt alone
])  # fmt: skip
def test_what_a_trainer_keeps_of_the_embedding_is_named_with_its_bytes(text, suffix, most_B):
    """Bytes per element, of 151,936 × 4,096 (transformers 5.23.0, trainer.py; litgpt, finetune/lora.py)."""
    keys = {key.key: key.most_B for key in read_own_text(text, suffix=suffix).keys}
    assert keys.get("embedding") == (most_B and most_B * 151936 * 4096)


def test_litgpt_has_an_output_layer_and_an_activation_of_its_own():
    def read(name):
        text = f"checkpoint_dir: checkpoints/{name}\nlora_r: 8\ntrain.max_seq_length: 512\n"
        return read_own_text(text, suffix=".yaml").config or {}

    assert read("microsoft/phi-2")["hidden_act"] == "gelu_pytorch_tanh"
    assert read("Qwen/Qwen3-4B")["tie_word_embeddings"] is False
    assert read("meta-llama/Llama-2-7b-hf").get("hidden_act") in (None, "silu")


@pytest.mark.parametrize("config", [
    {"hidden_size": "2048", "vocab_size": 32000}, {"hidden_size": [1], "vocab_size": "x"},
    {"text_config": [1]},
])  # fmt: skip
def test_sizes_that_are_no_numbers_bound_nothing(config):
    saved = KeyRead(key="modules_to_save", value="lm_head", status="not modelled", memory="raises")
    question = question_of(config=config, keys=(saved,), reduce_bucket=0, sharing="zero", zero=2)
    assert [one.most_B for one in with_model_parts(question).keys if one.key == saved.key] == [None]
    assert question.bucket_elements() is None
