"""Bad input: each ends in one line that says what was recognised and what is wrong."""

import pytest
from refusals import refused

from harness.config.own_files.read import read_own_file

BAD = {
    "empty": ("", ".yaml", "empty"),
    "not TOML": ("[model\nname=1", ".toml", "not TOML"),
    "not YAML": ("a: [1, 2\nb: 3", ".yaml", "not YAML at line"),
    "not JSON": ('{"zero_optimization": {"stage": 3', ".json", "not JSON at line"),
    "another tool": (
        "version: 3\nservices: {db: {image: x}}\n",
        ".yaml",
        "no configuration of a known framework",
    ),
    "gpt-neox": (
        "pipe_parallel_size: 1\nmodel_parallel_size: 2\nzero_optimization: {stage: 1}\n",
        ".yml",
        "a file of EleutherAI's gpt-neox (pipe_parallel_size)",
    ),
    "ms-swift": (
        "swift sft --model Qwen/Qwen2.5-7B --tuner_type lora --per_device_train_batch_size 1",
        ".sh",
        "a file of ms-swift (tuner_type)",
    ),
    "Primus": (
        "modules: {pre_trainer: {framework: megatron, config: x, overrides: {micro_batch_size: 1}}}",
        ".yaml",
        "a file of AMD's Primus (modules.pre_trainer.framework)",
    ),
    "a model": (
        '{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64}',
        ".json",
        "a model's config.json; give it as model=",
    ),
    "long keys": (
        "\n".join(f"{'a_very_long_key_of_something' * 6}_{n}: 1" for n in range(9)),
        ".yaml",
        "known are those of torchtitan, axolotl",
    ),
    "a list": ("- 1\n- 2\n", ".yaml", "no mapping"),
    "a wrong number": (
        "base_model: x\nsequence_len: many\nmicro_batch_size: 1\nlora_r: 8",
        ".yaml",
        "sequence_len is 'many'",
    ),
    "a wrong choice": (
        "[model]\nflavor='8B'\n[activation_checkpoint]\nmode='most'",
        ".toml",
        "activation_checkpoint.mode is 'most'",
    ),
    "half a model": (
        "--num-layers 4 --seq-length 128 --micro-batch-size 1",
        ".sh",
        "half of a model: hidden_size",
    ),
    "half a file": (
        "parallelism: {tp: 2, pp: 1}\nmodel: {dtype: bfloat16}\n",
        ".yaml",
        "parallelism.dp is missing",
    ),
    "a renamed key twice": (
        "[training]\nbatch_size=1\nlocal_batch_size=2\n[model]\nflavor='8B'",
        ".toml",
        "another version",
    ),
    "a variable": (
        "--num-layers $L --hidden-size 8 --num-attention-heads 1 --seq-length 8",
        ".sh",
        "variable $L",
    ),
    "batches": (
        '{"train_batch_size": 7, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2}',
        ".json",
        "no multiple",
    ),
    "quantized without adapters": (
        "base_model: x\nsequence_len: 8\nload_in_4bit: true\n",
        ".yaml",
        "without adapter",
    ),
    "two precisions": (
        "per_device_train_batch_size: 1\nnum_train_epochs: 1\nbf16: true\nfp16: true\n",
        ".yaml",
        "both true",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_that_says_what_is_wrong(case, tmp_path):
    text, suffix, says = BAD[case]
    file = tmp_path / f"own{suffix}"
    file.write_text(text)
    assert str(file) in refused(lambda: read_own_file(file), says)


@pytest.mark.parametrize("name", ["folder", "missing.yaml", "binary.toml"])
def test_what_is_no_file_is_named(name, tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match=name):
        read_own_file(tmp_path / name)
