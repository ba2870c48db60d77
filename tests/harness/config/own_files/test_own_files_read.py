"""Public files of each framework, as facts: the keys that they set, and what was read by hand out of them.

tests/data/own_files has a file per format: `from` names the public file, `keys` are its values, `expect` are
the fields of OwnSetup that differ from their defaults, and `named` are keys that change memory or speed and
are not modelled.
"""

import json
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import pytest
import yaml

from harness.config.code_fingerprint import ROOT
from harness.config.own_files.read import FORMATS, format_named, read_own_file, read_own_text
from harness.config.own_files.setup import Adapters, OwnSetup
from harness.config.own_files.table import nested, table_of

DATA = Path(__file__).parents[3] / "data" / "own_files"
FILES = [(path.stem, one) for path in sorted(DATA.glob("*.yaml")) for one in yaml.safe_load(path.read_text())]
DEFAULTS = {one.name: one.default for one in fields(OwnSetup)}
LISTS = {"understood", "not_understood", "irrelevant", "defaults"}
SECTIONS = {
    "global_batch_size": "train",
    "micro_batch_size": "train",
    "devices": "trainer",
    "num_nodes": "trainer",
    "precision": "trainer",
    "use_distributed_optimizer": "ddp",
}


def text_of(name, keys):
    """Return the keys as a file of that framework, with its suffix."""
    if name == "torchtitan":
        return "\n".join(f"{key} = {json.dumps(value)}" for key, value in keys.items()), ".toml"
    if name == "deepspeed":
        return json.dumps(nested(keys)), ".json"
    if name == "megatron":
        launch = [f"--{k.split('.')[1]} {v}" for k, v in keys.items() if k.startswith("launcher.")]
        words = [
            f"--{k}" + ("" if v is True else f" '{v}'")
            for k, v in keys.items()
            if "." not in k and v is not False
        ]
        return " \\\n  ".join(["torchrun", *launch, "pretrain_gpt.py", *words]), ".sh"
    if name == "megatron_bridge":
        keys = {f"{SECTIONS.get(key, 'model')}.{key}": value for key, value in keys.items()}
    return yaml.safe_dump(nested(keys)), ".yaml"


def plain(value):
    return tuple(value) if isinstance(value, list) else value


@pytest.mark.parametrize(("name", "one"), FILES, ids=[one["from"].split(", ")[-1] for _, one in FILES])
def test_a_public_file_is_read_as_by_hand(name, one):
    text, suffix = text_of(name, one["keys"])
    setup = read_own_text(text, suffix=suffix)
    assert setup.format == name
    expected = {field: plain(value) for field, value in one["expect"].items()}
    if "adapters" in expected:
        given = dict(expected["adapters"])
        expected["adapters"] = Adapters(**{**given, "targets": tuple(given["targets"])})
    left = {"format", "framework", "model_source", *LISTS, *({"model"} - expected.keys())}
    assert {k: v for k, v in vars_of(setup).items() if k not in left and v != DEFAULTS[k]} == expected
    assert sorted(entry.key for entry in setup.not_understood) == sorted(one["named"])


def vars_of(setup):
    return {one.name: getattr(setup, one.name) for one in fields(setup)}


def test_at_least_five_public_files_per_format_are_read():
    counts = {name: sum(one == name for one, _ in FILES) for name in FORMATS}
    assert all(count >= 5 for name, count in counts.items()), counts


@pytest.mark.parametrize("name", FORMATS)
def test_every_key_of_a_table_is_understood(name):
    """One file per key: the key is listed as understood and not as unknown."""
    for key, row in table_of(name).keys.items():
        value, companions = value_for(name, key, row)
        setup = read_flat(name, {**NEEDED.get(name, {}), **companions, key: value})
        assert key in [one.key for one in setup.understood], key
        assert key not in [one.key for one in setup.not_understood if one.why.startswith("no key of")], key


NEEDED = {
    "torchtune": {"model._component_": "torchtune.models.llama3_1.llama3_1_8b"},
    "nanotron": {
        "parallelism.dp": 1,
        "tokens.sequence_length": 128,
        "model.model_config.num_hidden_layers": 2,
        "model.model_config.hidden_size": 64,
        "model.model_config.num_attention_heads": 4,
        "model.model_config.vocab_size": 128,
    },
    "llm_foundry": {
        "model.name": "mpt_causal_lm",
        "model.d_model": 64,
        "model.n_heads": 4,
        "model.n_layers": 2,
        "device_train_microbatch_size": 1,
    },
    "megatron": {
        "num_layers": 2,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "vocab_size": 128,
        "seq_length": 128,
    },
    "megatron_bridge": {"num_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 128},
    "axolotl": {"base_model": "meta-llama/Llama-3.1-8B", "lora_r": 8},
}


COMPANIONS = {
    ("axolotl", "load_in_4bit"): {"adapter": "qlora"},
    ("axolotl", "load_in_8bit"): {"adapter": "lora"},
    ("axolotl", "dp_shard_size"): {"fsdp_config.version": 2, "fsdp_config.reshard_after_forward": True},
}
VALUES = {
    "fsdp": "full_shard",
    "plugins": ["x"],
    "moe_layer_freq": 1,
    "fsdp_config.reshard_after_forward": True,
    "parallelism.pipeline_parallel_schedule": "1F1B",
    "recompute_granularity": "full",
    "quantization_bit": 4,
    "device_train_microbatch_size": 4,
    "activation_checkpoint.selective_ac_option": "op",
}


def value_for(name, key, row):
    """Return a value that a key can have, and other keys that it needs."""
    if "offload" in key and "zero_optimization" in key:
        companions = {f"{key.partition('zero_optimization')[0]}zero_optimization.stage": 3}
    else:
        companions = COMPANIONS.get((name, key), {})
    if name == "megatron_bridge" and key in ("mixed_precision", "fsdp"):
        return {"mixed_precision": "bf16_mixed", "fsdp": True}[key], companions
    if row.values is not None:
        return next(theirs for theirs in row.values if theirs not in (None, "")), companions
    kinds = {"count": 2, "int": 2, "number": 2.0, "flag": True, "any": "x", "text": str(row.default or "x")}
    return VALUES.get(key, kinds[row.kind]), companions


def read_flat(name, flat):
    from harness.config.own_files.table import understand

    return understand(flat, format_named(name))


@pytest.mark.parametrize("name", FORMATS)
def test_every_row_of_a_table_has_a_field_and_a_meaning(name):
    known = {one.name for one in fields(OwnSetup)} - LISTS
    for key, row in table_of(name).keys.items():
        assert row.field in known or row.field.startswith("_"), key
        assert len(row.means.split()) >= 1, key
        assert row.kind in ("count", "int", "number", "flag", "text", "any"), key
    for old, new in table_of(name).renamed.items():
        assert old not in table_of(name).keys, old
        assert new in table_of(name).keys or new.split(".")[0] or new in table_of(name).matters


@pytest.mark.parametrize("name", FORMATS)
def test_an_unknown_key_is_named_and_never_dropped(name):
    setup = read_flat(name, {**NEEDED.get(name, {}), "a_key_that_nobody_has": 7})
    (one,) = [entry for entry in setup.not_understood if entry.key == "a_key_that_nobody_has"]
    assert one.value == 7
    assert setup.framework in one.why


def test_every_key_of_a_file_is_in_one_of_the_lists():
    text = (
        "base_model: meta-llama/Llama-3.1-8B\nsequence_len: 1024\ntiled_mlp: "
        "true\nlearning_rate: 1e-5\nnew_key: 1\n"
    )
    setup = read_own_text(text, suffix=".yaml")
    listed = [one.key for one in (*setup.understood, *setup.not_understood)] + list(setup.irrelevant)
    assert sorted(listed) == ["base_model", "learning_rate", "new_key", "sequence_len", "tiled_mlp"]
    assert [one.key for one in setup.not_understood] == ["tiled_mlp", "new_key"]


def test_defaults_that_are_filled_in_are_listed_with_their_version():
    setup = read_own_text(
        "[model]\nname='llama3'\nflavor='8B'\n[activation_checkpoint]\nmode='full'\n", suffix=".toml"
    )
    filled = {one.key: one.value for one in setup.defaults}
    assert filled["training.local_batch_size"] == 8
    assert setup.micro_batch_size == 8
    assert setup.framework == "torchtitan v0.2.2"


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
    with pytest.raises(ValueError) as raised:
        read_own_file(file)
    line = str(raised.value)
    assert says in line
    assert str(file) in line
    assert "\n" not in line
    assert len(line) <= 300


@pytest.mark.parametrize("name", ["folder", "missing.yaml", "binary.toml"])
def test_what_is_no_file_is_named(name, tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match=name):
        read_own_file(tmp_path / name)


def test_a_deepspeed_file_next_to_it_is_read(tmp_path):
    (tmp_path / "ds.json").write_text(
        '{"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}'
    )
    file = tmp_path / "axolotl.yml"
    file.write_text(
        "base_model: meta-llama/Llama-3.1-8B\nsequence_len: 1024\ndeepspeed: some/folder/ds.json\n"
    )
    setup = read_own_file(file)
    assert (setup.engine, setup.zero, setup.offload) == ("zero", 2, ("optimizer",))


@pytest.mark.parametrize(
    ("file", "zero", "offload"),
    [
        ("zero3_bf16.json", 3, ()),
        ("zero2.json", 2, ("optimizer",)),
        ("ds_z3_offload_config.json", 3, ("optimizer", "parameters")),
    ],
)
def test_a_deepspeed_file_that_a_framework_ships_is_known_by_its_name(file, zero, offload):
    text = f"base_model: meta-llama/Llama-3.1-8B\nsequence_len: 1024\ndeepspeed: deepspeed_configs/{file}\n"
    setup = read_own_text(text, suffix=".yaml")
    assert (setup.engine, setup.zero, setup.offload) == ("zero", zero, offload)


def test_a_deepspeed_file_that_is_not_there_is_named():
    text = "base_model: meta-llama/Llama-3.1-8B\nsequence_len: 1024\ndeepspeed: my.json\n"
    assert [one.key for one in read_own_text(text, suffix=".yaml").not_understood] == ["deepspeed"]


def test_a_config_json_next_to_it_is_the_model(tmp_path):
    (tmp_path / "mine").mkdir()
    config = {
        "model_type": "llama",
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "vocab_size": 8,
    }
    (tmp_path / "mine" / "config.json").write_text(json.dumps(config))
    (tmp_path / "a.yaml").write_text("base_model: mine\nsequence_len: 128\nmicro_batch_size: 1\n")
    setup = read_own_file(tmp_path / "a.yaml")
    assert setup.model == config
    assert setup.model_source.endswith("mine")


def test_a_shell_script_with_arrays_and_variables_is_read():
    text = """
TP=${TP:-4}
N=$((2*8))
MODEL=(
    --num-layers 8   # layers
    --hidden-size 512 --num-attention-heads 8
    --vocab-size 1024 --seq-length 2048
)
MORE=("--fp8-format hybrid")
MORE+=("--use-distributed-optimizer")
torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py ${MODEL[@]} ${MORE[@]} --bf16 \\
    --tensor-model-parallel-size $TP --micro-batch-size 1 --global-batch-size $N
"""
    setup = read_own_text(text, suffix=".sh")
    assert (setup.tp, setup.devices, setup.zero, setup.global_batch_size) == (4, 16, 1, 16)
    assert (setup.precision, setup.seq_len, setup.model["n_layer"]) == ("fp8", 2048, 8)
    assert setup.layout()["dp"] == 4
    assert setup.layout()["micro_batches"] == 4


COMMANDS = {
    "accelerate launch --num_processes 8 sft.py --model_name_or_path gpt2 --per_device_train_batch_size 2 "
    "--bf16": (
        "hugging_face",
        {"devices": 8, "micro_batch_size": 2, "precision": "bf16", "model_name": "gpt2"},
    ),
    "python -m torch.distributed.launch --nproc_per_node=4 clm.py --model_name_or_path=gpt2 "
    "--block_size 512 --fp16": (
        "hugging_face",
        {"devices": 4, "seq_len": 512, "precision": "fp16"},
    ),
    "./run_train.sh --model.flavor 8B --parallelism.tensor_parallel_degree 4 --compile.enable": (
        "torchtitan",
        {"tp": 4, "compile": True, "model_name": "llama3/8B"},
    ),
    "deepspeed --num_gpus 8 pretrain_gpt.py --tensor-model-parallel-size 2 --zero-stage "
    "1 --micro-batch-size 4 "
    "--seq-length 64 --activations-checkpoint-method uniform": (
        "megatron",
        {"tp": 2, "engine": "zero", "zero": 1, "recompute": "full"},
    ),
    "model.tensor_model_parallel_size=4 train.global_batch_size=512 model.seq_length=8192": (
        "megatron_bridge",
        {"tp": 4, "global_batch_size": 512, "seq_len": 8192, "zero": 1},
    ),
    "python run.py --recipe llama3_8b model.tensor_model_parallel_size=2 train.global_batch_size=8": (
        "megatron_bridge",
        {"tp": 2, "global_batch_size": 8},
    ),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_command_lines_are_recognised_and_read(command):
    name, expected = COMMANDS[command]
    setup = read_own_text(command)
    assert setup.format == name
    assert {field: getattr(setup, field) for field in expected} == expected


def test_accelerates_file_of_a_command_line_is_read(tmp_path):
    config = {
        "distributed_type": "FSDP",
        "num_processes": 16,
        "fsdp_config": {"fsdp_version": 2, "fsdp_offload_params": True},
    }
    (tmp_path / "acc.yaml").write_text(yaml.safe_dump(config))
    file = tmp_path / "run.sh"
    file.write_text(
        "accelerate launch --config_file acc.yaml sft.py --model_name_or_path gpt2 --num_train_epochs 1\n"
    )
    setup = read_own_file(file)
    assert (setup.engine, setup.zero, setup.devices) == ("fsdp2", 3, 16)
    assert setup.offload == ("optimizer", "parameters")


def test_a_layout_that_does_not_divide_says_what_would():
    setup = OwnSetup(format="megatron", framework="", tp=8, pp=4, global_batch_size=30)
    with pytest.raises(ValueError, match="tp 8 × pp 4 × cp 1 = 32"):
        setup.layout(48)
    with pytest.raises(ValueError, match="devices is missing"):
        setup.layout()
    with pytest.raises(ValueError, match="global batch of 30"):
        setup.layout(128)


def test_the_parent_reads_files_without_torch():
    code = (
        "import sys; from harness.config.own_files.read import read_own_text; "
        "read_own_text('--num-layers 2 --micro-batch-size 1', suffix='.sh') if 0 else None; "
        "from harness.config.own_files.logs.read import read_log; from "
        "harness.config.own_files.oom.explain import read_oom; "
        "sys.exit(any(m in sys.modules for m in ('torch', 'suites', 'transformers')))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


@pytest.mark.parametrize(("per_stage", "stages"), [(None, 2), (4, 1), (2, 2), (1, 4)])
def test_stages_follow_from_layers_per_stage(per_stage, stages):
    """14 layers, the embedding and the output layer are 16, on 4 ranks."""
    setup = OwnSetup(
        format="torchtitan", framework="", pp=4, dp=1, virtual_stages=2, layers_per_stage=per_stage
    )
    setup = replace(setup, model={"num_hidden_layers": 14})
    assert setup.layout()["virtual_stages"] == stages
    with pytest.raises(ValueError, match="6 stages, no multiple of pp 4"):
        replace(setup, layers_per_stage=3).layout()
