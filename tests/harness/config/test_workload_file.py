"""A user's config.json, read by the parent: what is taken, and each way of being malformed in one line."""

import json
from pathlib import Path

import pytest

from harness.config.hf_config import model_types, read_workload_file, unknown_model_type, workload_from_file
from harness.config.run import load
from harness.config.validation import ConfigError

SIZES = ["num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size"]
LLAMA = {"model_type": "llama", **dict(zip(SIZES, (2, 64, 4, 100), strict=True))}
GPT_2 = {"model_type": "gpt2", "n_layer": 2, "n_embd": 64, "n_head": 4, "vocab_size": 100}
needs_transformers = pytest.mark.skipif(not model_types(), reason="the extra `hf` brings transformers")


def write(folder, content):
    file = folder / "config.json"
    if isinstance(content, dict):
        content = json.dumps(content)
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    return file


def refusal(path):
    with pytest.raises(ValueError) as caught:
        read_workload_file(path)
    text = str(caught.value)
    assert "\n" not in text
    assert text.startswith(str(path))
    return text


def test_a_missing_file_is_named_and_a_name_on_the_hub_says_how_to_get_it(monkeypatch, tmp_path):
    assert "No such file" in refusal(tmp_path / "absent.json")
    assert "No such file" in refusal(tmp_path)  # a folder without config.json
    assert "--local-dir" not in refusal(tmp_path)
    monkeypatch.chdir(tmp_path)
    text = refusal(Path("meta-llama/Llama-3.1-8B"))
    assert "hf download meta-llama/Llama-3.1-8B config.json --local-dir ." in text
    assert "hf download" not in refusal(Path("no/config.json"))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "line 1, column 1"),
        ('{"model_type": "llama",\n  oops}', "line 2, column 3"),
        (b"\x80\x04\x95\xff\xfe", "UTF-8"),
        ("[" * 100_000, "nested"),
        ("[1, 2]", "list"),
        (b" " * 20_000_000, "10 MB"),
        ({"hidden_size": 64}, "model_type is missing"),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_what_is_no_config_is_refused(tmp_path, content, said):
    assert said in refusal(write(tmp_path, content))


@pytest.mark.parametrize("name", SIZES)
def test_sizes_that_are_none(tmp_path, name):
    for value in (0, "32", True, 4096.0):
        said = refusal(write(tmp_path, LLAMA | {name: value}))
        assert name in said
        assert "above 0" in said
    for key in {name, "model_type"} - {"num_attention_heads"}:
        assert key in refusal(write(tmp_path, LLAMA | {key: None}))


def test_the_first_layers_alone_with_their_entries_in_lists(tmp_path):
    config = {"model_type": "qwen3", "num_hidden_layers": 4, "hidden_size": 8, "vocab_size": 16}
    config |= {"layer_types": ["full", "sliding", "full", "full"], "eos_token_id": [1, 2]}
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(config))
    name, fields, _ = workload_from_file(path, 2)
    assert (name, fields["num_hidden_layers"]) == ("mine", 2)
    assert fields["hf_config"] == config | {"num_hidden_layers": 2, "layer_types": ["full", "sliding"]}
    assert fields["source"].endswith("the first 2 of 4 layers")
    with pytest.raises(ValueError, match="has 4 layers"):
        workload_from_file(path, 5)


@needs_transformers
def test_sizes_that_a_file_leaves_out_are_named_and_refuse_nothing(tmp_path):
    text = {"hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text"}
    text |= {"num_hidden_layers": 34, "rope_scaling": {"factor": 8.0, "rope_type": "linear"}}
    vision = {"hidden_size": 1152, "model_type": "siglip_vision_model"}
    gemma_3_4b = {"model_type": "gemma3", "text_config": text, "vision_config": vision}  # as it is published
    file = tmp_path / "config.json"

    def messages(config, suite="memory"):
        write(tmp_path, config)
        words = [f"suite={suite}", f"suite.workload_from={file}", "suite.hf_defaults.seq_len=8"]
        return load(words)[0].messages

    missing = f"{file} has no num_attention_heads, num_key_value_heads, vocab_size: "
    for suite in ("memory", "kernels", "interconnect_formula"):
        assert messages(gemma_3_4b, suite)[0].startswith(missing)
    (message,) = messages(LLAMA | {"num_key_value_heads": 2})
    assert message == f"{file} has no intermediate_size: transformers' default is used"
    assert messages(GPT_2) == ()  # it has neither key-value heads nor a width of its own


@needs_transformers
def test_an_architecture_that_transformers_has_not_is_refused_with_the_nearest(tmp_path):
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    assert set(CONFIG_MAPPING_NAMES) <= model_types()
    file = write(tmp_path, LLAMA | {"model_type": "llamma"})
    with pytest.raises(ConfigError, match=r"model_type 'llamma' is unknown .*; did you mean llama\?$"):
        load(["suite=interconnect_formula", f"suite.workload_from={file}"])
    hidden = unknown_model_type("minicpmo", own_code=True)
    assert "its own code is not run: give the config.json of its language model" in hidden
    assert "did you mean" not in hidden


def test_the_section_of_the_language_model_is_read_by_the_names_that_models_have_for_it(tmp_path):
    for name in ("text_config", "llm_config", "language_config"):  # transformers, InternVL, DeepSeek-VL2
        file = write(tmp_path, {"model_type": "zzzz", name: LLAMA, "vision_config": {"depth": 2}})
        assert read_workload_file(file) == LLAMA | {"vision_config": {}}
    flat = LLAMA | {"model_type": "paddleocr_vl", "vision_config": {"depth": 2}}
    assert read_workload_file(write(tmp_path, flat))["model_type"] == "ernie4_5"


def test_heads_that_cannot_share_the_key_value_heads_are_refused(tmp_path):
    config = LLAMA | {"num_attention_heads": 13, "num_key_value_heads": 2}
    with pytest.raises(
        ValueError, match="num_attention_heads is 13; it must be a multiple of num_key_value_"
    ):
        workload_from_file(write(tmp_path, config))
