"""A user's config.json, read by the parent: what is taken, and each way of being malformed in one line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.config import hf_config
from harness.config.hf_config import (
    has_size,
    model_types,
    read_workload_file,
    unknown_model_type,
    workload_from_file,
)
from harness.config.run import load
from harness.config.validation import ConfigError

LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "vocab_size": 100,
}


def write(folder: Path, content: str | bytes | dict[str, Any]) -> Path:
    file = folder / "config.json"
    if isinstance(content, dict):
        content = json.dumps(content)
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    return file


def refusal(path: Path) -> str:
    with pytest.raises(ValueError) as caught:
        read_workload_file(path)
    text = str(caught.value)
    assert "\n" not in text
    assert text.startswith(str(path))
    return text


def test_a_file_and_its_folder_are_the_same(tmp_path: Path) -> None:
    file = write(tmp_path, LLAMA)
    assert read_workload_file(file) == read_workload_file(tmp_path) == read_workload_file(str(file)) == LLAMA


def test_a_byte_order_mark_is_no_fault(tmp_path: Path) -> None:
    assert read_workload_file(write(tmp_path, b"\xef\xbb\xbf" + json.dumps(LLAMA).encode())) == LLAMA


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "gpt2", "n_layer": 2, "n_embd": 64, "n_head": 4, "vocab_size": 100},
        {"model_type": "mpt", "n_layers": 2, "d_model": 64, "n_heads": 4, "vocab_size": 100},
        {"model_type": "gpt_neo", "num_layers": 2, "hidden_size": 64, "num_heads": 4, "vocab_size": 100},
    ],
    ids=lambda config: str(config["model_type"]),
)
def test_other_names_of_sizes(tmp_path: Path, config: dict[str, Any]) -> None:
    assert read_workload_file(write(tmp_path, config)) == config


def test_missing(tmp_path: Path) -> None:
    assert "No such file" in refusal(tmp_path / "absent.json")
    assert "No such file" in refusal(tmp_path)  # a folder without config.json
    assert "--local-dir" not in refusal(tmp_path)


def test_the_name_of_a_model_on_the_hub_says_how_to_get_its_config(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    text = refusal(Path("meta-llama/Llama-3.1-8B"))
    assert "hf download meta-llama/Llama-3.1-8B config.json --local-dir ." in text
    assert "hf download" not in refusal(Path("no/config.json"))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "line 1, column 1"),
        ('{"model_type": "llama",\n  oops}', "line 2, column 3"),
        ('{"model_type": "llama"', "not JSON"),
        (b"\x80\x04\x95\xff\xfe", "UTF-8"),
        ("[" * 100_000, "nested"),
        ("[1, 2]", "list"),
        ("null", "null"),
        ("3", "number"),
        ('"llama"', "string"),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_not_an_object(tmp_path: Path, content: str | bytes, said: str) -> None:
    assert said in refusal(write(tmp_path, content))


def test_a_file_of_weights_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    with file.open("wb") as opened:
        opened.truncate(20_000_000)
    assert "10 MB" in refusal(file)


@pytest.mark.parametrize("value", [0, -1, 1.5, "32", True, [32], {}, 4096.0])
@pytest.mark.parametrize("name", ["num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size"])
def test_sizes_that_are_none(tmp_path: Path, name: str, value: object) -> None:
    said = refusal(write(tmp_path, LLAMA | {name: value}))
    assert name in said
    assert "above 0" in said


@pytest.mark.parametrize("name", ["model_type", "num_hidden_layers", "hidden_size", "vocab_size"])
def test_null_is_refused(tmp_path: Path, name: str) -> None:
    assert name in refusal(write(tmp_path, LLAMA | {name: None}))


def test_the_architecture_may_not_be_missing(tmp_path: Path) -> None:
    assert "model_type is missing" in refusal(write(tmp_path, {"hidden_size": 64}))
    assert "model_type is missing" in refusal(write(tmp_path, {"model_type": "x", "text_config": {}}))


def test_sizes_that_are_left_to_the_class_are_named(tmp_path: Path) -> None:
    fields = workload_from_file(write(tmp_path, {"model_type": "llama", "num_hidden_layers": 2}))[1]
    assert fields["hf_config"] == {"model_type": "llama", "num_hidden_layers": 2}
    assert "hidden_size, vocab_size: default of its class" in fields["source"]
    assert "default" not in workload_from_file(write(tmp_path, LLAMA))[1]["source"]


def test_of_a_model_with_more_than_text_the_text_is_taken(tmp_path: Path) -> None:
    several = {"model_type": "gemma3", "tie_word_embeddings": True, "text_config": LLAMA, "vision_config": {}}
    assert read_workload_file(write(tmp_path, several)) == LLAMA | {"tie_word_embeddings": True}
    assert "of gemma3: its text_config, llama" in workload_from_file(tmp_path)[1]["source"]


@settings(deadline=None)  # a busy machine
@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(),
        lambda x: st.lists(x) | st.dictionaries(st.sampled_from([*LLAMA, "x"]), x),
    )
)
def test_any_json_is_read_or_refused_in_one_line(
    tmp_path_factory: pytest.TempPathFactory, value: Any
) -> None:
    file = tmp_path_factory.mktemp("any") / "config.json"
    file.write_text(json.dumps(value))
    try:
        assert read_workload_file(file) == value
    except ValueError as error:
        assert "\n" not in str(error)  # noqa: PT017


def test_nothing_heavy_is_imported() -> None:
    """The parent answers in under a second; neither torch nor transformers may come in through this."""
    module = "harness.config.hf_config"
    code = f"import sys, {module}; print({{'torch', 'transformers'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_the_first_layers_alone_with_their_entries_in_lists(tmp_path: Path) -> None:
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


GEMMA_3_4B = {
    "model_type": "gemma3",
    "text_config": {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    },
    "vision_config": {"hidden_size": 1152, "model_type": "siglip_vision_model"},
}
"""As it is published."""

needs_transformers = pytest.mark.skipif(not model_types(), reason="the extra `hf` brings transformers")


@needs_transformers
@pytest.mark.parametrize("suite", ["memory", "kernels", "interconnect_formula"])
def test_sizes_that_a_published_file_leaves_out_are_named_and_refuse_nothing(
    tmp_path: Path, suite: str
) -> None:
    file = write(tmp_path, GEMMA_3_4B)
    (run,) = load([f"suite={suite}", f"suite.workload_from={file}"])
    missing = "num_attention_heads, num_key_value_heads, vocab_size"
    assert run.messages == (f"{file} has no {missing}: transformers' defaults are used",)


@needs_transformers
def test_a_missing_number_of_layers_is_named(tmp_path: Path) -> None:
    file = write(tmp_path, {name: value for name, value in LLAMA.items() if name != "num_hidden_layers"})
    words = ["suite=memory", f"suite.workload_from={file}", "suite.hf_defaults.seq_len=8"]
    message = (
        f"{file} has no num_hidden_layers, num_key_value_heads, intermediate_size: transformers' defaults"
    )
    assert load(words)[0].messages[0].startswith(message)
    write(tmp_path, LLAMA | {"num_key_value_heads": 2, "intermediate_size": 9})
    assert load(words)[0].messages == ()
    write(tmp_path, {"model_type": "gpt2", "n_layer": 2, "n_embd": 64, "n_head": 4, "vocab_size": 100})
    assert load(words)[0].messages == ()  # GPT-2 has neither key-value heads nor a width of its own


@needs_transformers
def test_an_architecture_that_transformers_has_not_is_refused_with_the_nearest(tmp_path: Path) -> None:
    file = write(tmp_path, LLAMA | {"model_type": "llamma"})
    for suite in ("memory", "kernels", "interconnect"):
        with pytest.raises(ConfigError, match=r"model_type 'llamma' is unknown .*; did you mean llama\?$"):
            load([f"suite={suite}", f"suite.workload_from={file}"])
    assert unknown_model_type("zzzz", own_code=True).endswith("(auto_map) is not run, suite.model takes code")


def test_without_transformers_every_architecture_is_left_to_the_worker(monkeypatch) -> None:
    monkeypatch.setattr(hf_config, "models_folder", lambda: None)
    model_types.cache_clear()
    assert unknown_model_type("llamma", own_code=False) == ""
    assert has_size("mamba", "num_key_value_heads")
    model_types.cache_clear()


@needs_transformers
def test_the_architectures_read_are_those_of_the_library() -> None:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    assert set(CONFIG_MAPPING_NAMES) <= model_types()


def test_heads_that_cannot_share_the_key_value_heads_are_refused(tmp_path: Path) -> None:
    file = write(tmp_path, LLAMA | {"num_attention_heads": 13, "num_key_value_heads": 2})
    with pytest.raises(
        ValueError, match="num_attention_heads is 13; it must be a multiple of num_key_value_"
    ):
        workload_from_file(file)


@needs_transformers
def test_an_architecture_without_key_value_heads_may_state_any(tmp_path: Path) -> None:
    workload_from_file(write(tmp_path, LLAMA | {"model_type": "mpt", "num_key_value_heads": 3}))
