"""Configurations written in Python: torchtitan's registry and OLMo-core's scripts, read as text.

The texts have the calls of torchtitan b5bcd76c and 9810191b (models/*/config_registry.py) and of OLMo-core
fa6c5014 (src/scripts/train, src/scripts/official, internal/cookbook.py), with values of our own.
"""

import json

import msgspec
import pytest
from refusals import refused

from harness.frameworks.python_text import Unresolved, python_values
from harness.frameworks.read import read_own_file
from harness.question import Adapters

REGISTRY = """
import torch
from . import model_registry
from torchtitan.models.qwen3 import model_registry as experts_registry

def _base(flavor, policy=FullAC.Config(), **others):
    return Trainer.Config(
        model_spec=model_registry(flavor, attn_backend="flex"),
        optimizer=default_adamw(lr=1e-3),
        dataloader=DataLoader.Config(parts=[[DATASETS["c4"], One.Config(a=1)], _base]),
        training=TrainingConfig(num_tokens_per_microbatch_per_dp_rank=4 * 4096, max_context_length=4096),
        loss=ChunkedLossWrapper.Config(loss_fn=CrossEntropyLoss.Config()),
        activation_checkpoint=policy,
    )

def llama3_8b() -> Trainer.Config:
    return _base("8B")

def llama3_8b_mxfp8() -> Trainer.Config:
    config = llama3_8b()
    config.compile = CompileConfig(enable=True, components=["model"])
    config.model_spec = model_registry("8B", converters=[MXFP8LinearConverter.Config()])
    return config

def llama3_70b_parallel() -> Trainer.Config:
    config = _base("70B", policy=SelectiveAC.Config())
    config.parallelism = ParallelismConfig(
        tensor_parallel_degree=8, pipeline_parallel_degree=4, num_pp_microbatches=8
    )
    config.compile = CompileConfig(enable=True, enable_async_tensor_parallel=True)
    config.training.num_tokens_per_train_step = 1024 * 4096
    return config

def llama3_8b_lora() -> Trainer.Config:
    config = llama3_8b()
    adapters = LoRAConverter.Config(rank=16, alpha=32.0, target_modules=["wq", "wkv", "wo"])
    config.model_spec = model_registry("8B", converters=[adapters])
    config.activation_checkpoint = None
    return config

def llama3_8b_february() -> Trainer.Config:
    float8 = Float8LinearConverter.Config(recipe_name="rowwise")
    return Trainer.Config(
        model_spec=model_registry("8B"),
        model_converters=ModelConvertersContainer.Config(converters=[float8]),
        optimizer=OptimizersInBackwardContainer.Config(lr=1e-3),
        training=TrainingConfig(local_batch_size=2, seq_len=8192, dtype="bfloat16"),
        activation_checkpoint=ActivationCheckpointConfig(mode="selective", selective_ac_option="2"),
    )

def qwen3_30b_experts() -> Trainer.Config:
    config = _base("30B-A3B")
    config.model_spec = experts_registry("30B-A3B", moe_comm_backend="deepep")
    config.parallelism.expert_parallel_degree = 8
    return config

def debug_of_a_run() -> Trainer.Config:
    config = llama3_8b()
    config.training.max_context_length = int(torch.cuda.device_count())
    return config
"""

TITAN = {"micro_batch_size": 4, "seq_len": 4096, "recompute": "full", "model_name": "llama3/8B"}
CHUNKS = {**TITAN, "zero": 3, "sharing": "fsdp2", "loss_chunks": 8, "states": "fp32", "precision": "bf16"}
NAMES = [
    ("llama3_8b", {**CHUNKS, "compile": False}, ["loss._class"]),
    ("llama3_8b_mxfp8", {**CHUNKS, "precision": "mxfp8", "compile": True}, ["loss._class"]),
    ("llama3_70b_parallel", {"tp": 8, "pp": 4, "micro_batch_size": 4, "global_batch_size": 1024,
     "recompute": "selective"} | {"zero": 2, "model_name": "llama3/70B", "compile": True,
     "sequence_parallel": True}, ["loss._class", "parallelism.enable_async_tensor_parallel"]),
    ("llama3_8b_lora", {"adapters": Adapters(rank=16, targets=("k_proj", "o_proj", "q_proj", "v_proj")),
     "recompute": "none"}, ["loss._class", "training.dtype"]),
    ("llama3_8b_february", {"precision": "fp8", "optimizer_in_backward": True, "micro_batch_size": 2,
     "seq_len": 8192} | {"recompute": "full", "recompute_every": 2, "states": "bf16", "loss_chunks": 1},
     ["quantize.linear.float8.recipe_name"]),
    ("qwen3_30b_experts", {"model_name": "qwen3/30B-A3B", "ep": 8, "dispatcher": "deepep"}, ["loss._class"]),
    ("debug_of_a_run", {"seq_len": 2048}, ["loss._class", "training.local_batch_size", "training.seq_len"]),
]  # fmt: skip


@pytest.fixture
def registry(tmp_path):
    folder = tmp_path / "torchtitan" / "models" / "llama3"
    folder.mkdir(parents=True)
    (folder / "config_registry.py").write_text(REGISTRY)
    return folder / "config_registry.py"


@pytest.mark.parametrize(("name", "expected", "named"), NAMES, ids=[name for name, _, _ in NAMES])
def test_a_function_of_the_registry_is_followed_and_not_executed(registry, name, expected, named):
    question = read_own_file(f"{registry}:{name}")
    assert (question.format, question.program) == ("torchtitan", "torchtitan")
    assert json.loads(msgspec.json.encode(question))
    assert {field: getattr(question, field) for field in expected} == expected
    assert sorted(one.key for one in question.keys if one.status == "not modelled") == named


def test_one_of_several_functions_is_asked_for_and_an_imported_one_is_found(registry):
    refused(lambda: read_own_file(registry), "config=FILE.py:NAME: llama3_8b, llama3_8b_mxfp8")
    refused(lambda: read_own_file(f"{registry}:nothing"), "has no function nothing")
    other = registry.parents[2] / "experiments" / "graphs" / "config_registry.py"
    other.parent.mkdir(parents=True)
    other.write_text(
        "from torchtitan.models.llama3.config_registry import llama3_8b\n"
        "def graph_llama3_8b() -> GraphTrainer.Config:\n"
        "    config = to_graph_trainer_config(llama3_8b(), model_registry)\n"
        "    config.compile = GraphTrainerCompileConfig(enable=True)\n"
        "    return config\n"
    )
    question = read_own_file(other)
    assert (question.model_name, question.seq_len, question.compile) == ("llama3/8B", 4096, True)
    assert "compile._class" in [one.key for one in question.keys if one.status == "not modelled"]


SCRIPT = """
from functools import partial
from olmo_core.internal.experiment import build_config, main

LENGTH = 2 * 4096
SHARDS = None

def build_model_config(common):
    return TransformerConfig.olmo2_7B(vocab_size=common.tokenizer.padded_vocab_size())

def build_train_module_config(common):
    micro = 2 * common.max_sequence_length
    if common.launch is not None:
        micro *= 2
    return TransformerTrainModuleConfig(
        rank_microbatch_size=micro,
        max_sequence_length=common.max_sequence_length,
        optim=SkipStepAdamWConfig(lr=3e-4),
        compile_model=True,
        dp_config=TransformerDataParallelConfig(
            name=DataParallelType.hsdp, param_dtype=DType.bfloat16, shard_degree=SHARDS or 32
        ),
        ac_config=TransformerActivationCheckpointingConfig(TransformerActivationCheckpointingMode.full),
        float8_config=Float8Config(enabled=False),
    )

if __name__ == "__main__":
    main(config_builder=partial(
        build_config,
        global_batch_size=512 * LENGTH,
        max_sequence_length=LENGTH,
        model_config_builder=build_model_config,
        train_module_config_builder=build_train_module_config,
    ))
"""
COOKBOOK = """
from olmo_core.internal import cookbook

def build(cli_context):
    model = TransformerConfig.olmo3_7B(vocab_size=TokenizerConfig.dolma2().padded_vocab_size())
    train_module = cookbook.configure_train_module(
        max_sequence_length=65536, rank_microbatch_size=65536, activation_memory_budget=0.7,
        float8_enabled=True, cp_degree=8, dp_shard_degree=1,
    )
    return ExperimentConfig(model=model, train_module=train_module,
                            data_loader=NumpyDataLoaderConfig(global_batch_size=64 * 65536))
"""
EXPERTS = """
from olmo_core.internal.experiment import build_config, main

def build_model_config(common):
    return TransformerConfig.llama_like_moe(
        vocab_size=common.tokenizer.padded_vocab_size(), d_model=512, n_layers=4, n_heads=8, num_experts=64,
        top_k=2, expert_hidden_size=256, shared_expert_hidden_size=1024, reordered_norm=True,
    )

def build_train_module_config(common):
    return TransformerTrainModuleConfig(
        rank_microbatch_size=4096, max_sequence_length=4096, optim=AdamWConfig(),
        dp_config=TransformerDataParallelConfig(
            name=DataParallelType.hsdp, num_replicas=2, param_dtype=DType.bfloat16,
            reduce_dtype=DType.bfloat16,
        ),
        ep_config=TransformerExpertParallelConfig(degree=-1),
        float8_config=Float8Config(ao=AOFloat8LinearConfig.recommended()),
    )

if __name__ == "__main__":
    main(config_builder=partial(
        build_config, global_batch_size=64 * 4096, model_config_builder=build_model_config,
        train_module_config_builder=build_train_module_config, num_nodes=8,
    ))
"""
NANOTRON = """
import argparse
from nanotron.config import Config, LlamaConfig, ModelArgs, ParallelismArgs, TokensArgs

SIZES = {"small": (4, 64), "3b": (36, 2048)}

def get_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="3b")
    parser.add_argument("--mbs", type=int, default=3)
    return parser.parse_args()

def get_model_config(size):
    layers, hidden = SIZES[size]
    return LlamaConfig(num_hidden_layers=layers, hidden_size=hidden, num_attention_heads=16, vocab_size=8192)

def create_config(model_config, args):
    return Config(
        parallelism=ParallelismArgs(dp=2, tp=4, tp_mode="REDUCE_SCATTER"),
        model=ModelArgs(model_config=model_config),
        tokens=TokensArgs(sequence_length=4096, micro_batch_size=args.mbs),
        data_stages=[DatasetStageArgs(name="one")],
    )

if __name__ == "__main__":
    args = get_args()
    create_config(get_model_config(args.model), args).save_as_yaml("own.yaml")
"""
NEMO = """
from nemo.collections import llm

def sized(recipe):
    recipe.data.micro_batch_size = 4
    return recipe

def other():
    job = launcher()
    job.trainer.strategy.tensor_model_parallel_size = 64
    job.data.global_batch_size = 7

def main(args):
    recipe = llm.llama3_8b.pretrain_recipe(num_nodes=2)
    recipe = sized(recipe)
    recipe.trainer.strategy.tensor_model_parallel_size = 2
    if args.long:
        recipe.data.seq_length = 32768
"""
SCRIPTS = [
    (SCRIPT, {"format": "olmo_core", "model_name": "olmo2_7B", "seq_len": 8192, "micro_batch_size": 2,
     "global_batch_size": 512} | {"sharing": "fsdp2", "zero": 3, "shard_size": 32, "recompute": "full",
     "compile": True}, {"num_hidden_layers": 32, "intermediate_size": 11008, "vocab_size": 100352}, []),
    (COOKBOOK, {"cp": 8, "shard_size": 8, "precision": "fp8", "seq_len": 65536, "global_batch_size": 64},
     {"model_type": "olmo3", "sliding_window": 4096},
     ["train_module.z_loss_multiplier", "train_module.ac_config.mode"]),
    (EXPERTS, {"devices": 64, "replicas": 2, "ep": 32, "precision": "fp8"}, {"n_routed_experts": 64,
     "num_experts_per_tok": 2, "moe_intermediate_size": 256, "n_shared_experts": 4},
     ["train_module.dp_config.reduce_dtype"]),  # a node has 8 GPUs (internal/common.py, build_launch_config)
    (EXPERTS.replace("ao=AO", "enabled=False, ao=AO"), {"precision": "bf16"}, {},
     ["train_module.dp_config.reduce_dtype"]),
    (NANOTRON, {"format": "nanotron", "dp": 2, "tp": 4, "seq_len": 4096, "micro_batch_size": 3},
     {"num_hidden_layers": 36, "hidden_size": 2048}, []),
    (NEMO, {"format": "nemo", "tp": 2, "micro_batch_size": 4, "global_batch_size": 512, "seq_len": 8192,
     "devices": 16}, {}, ["tokenizer.vocab_size", "data.seq_length"]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected", "config", "named"), SCRIPTS)
def test_a_script_is_followed_with_its_options_defaults(tmp_path, text, expected, config, named):
    (tmp_path / "train.py").write_text(text)
    question = read_own_file(tmp_path / "train.py")
    assert json.loads(msgspec.json.encode(question))
    assert {field: getattr(question, field) for field in expected} == expected
    assert {name: question.config[name] for name in config} == config
    assert [one.key for one in question.keys if one.status == "not modelled"] == named


@pytest.mark.parametrize(("text", "line"), [
    ("from trl import TrlParser\nmodel_config = get_quantization_config(parse_args_and_config())\n",
     "a Python program"),
    ("from olmo_core.x import y\nLadder(sizes=[1])\n", "give the config.json that the run saves"),
    ("import torch\ntorch.ones(3)\n", "builds no configuration of a known framework"),
    ("def f() -> Trainer.Config:\n    return f()\n", "which is no configuration"),
    ("def f() -> RLTrainer.Config:\n    return RLTrainer.Config(model_spec=model_registry('8B'), "
     "generator=VLLMGenerator.Config(model_dtype='bfloat16'))\n", "generates and trains on separate devices"),
])  # fmt: skip
def test_what_is_no_configuration_is_refused_in_one_line(tmp_path, text, line):
    (tmp_path / "own.py").write_text(text)
    refused(lambda: read_own_file(tmp_path / "own.py"), line)


def test_expressions_are_calculated_and_what_a_run_knows_is_not():
    text = "import os\nA = 2\nOne(a=A**10, b=7 // 2, c=1 / 0, d=A ** 9999, e=os.environ['X'], f=-A, g=not A, "
    text += "h=3 if A > 1 else 4, i=max(A, 5), j=[Two(k=1)], l={'m': A}, n=A in [1, 2], o=getattr(B, 'c'))\n"
    values = python_values(text)
    unresolved = {key for key, one in values.items() if isinstance(one, Unresolved)}
    assert unresolved == {"One.c", "One.d", "One.e", "One.o"}
    assert {key.removeprefix("One."): values[key] for key in values.keys() - unresolved} == {
        "_imports": [], "_class": "One", "a": 1024, "b": 3, "f": -2, "g": False, "h": 3, "i": 5, "j": ["Two"],
        "j.Two.k": 1, "l.m": 2, "n": True, "Two._class": "Two", "Two.k": 1,
    }  # fmt: skip


STATEMENTS = """
def one() -> Trainer.Config:
    config = Trainer.Config(a=1, b=2, c=3, d=4, e=Inner.Config(f=5), g=6)
    for size in [7, 8]:
        config.a = size
    for size in sizes():
        config.b = size
    while waiting():
        config.c = 9
    match "x":
        case "y":
            config.d = 10
    setattr(config.e, "f", 11)
    if on_a_host():
        config.g = 12
    return config
"""


def test_loops_and_other_statements_change_no_value_silently():
    values = python_values(STATEMENTS)
    assert {key: values[key] for key in ("a", "e.f", "g")} == {"a": 8, "e.f": 11, "g": 6}
    assert all(isinstance(values[key], Unresolved) for key in "bcd")
    statements = {one.partition(": ")[0] for one in values["_conditions"]}
    assert statements == {"config.b", "config.c", "config.d", "config.g"}


def test_of_layers_of_several_kinds_the_model_is_to_be_given(tmp_path):
    (tmp_path / "own.py").write_text(EXPERTS.replace("top_k=2", "top_k=2, block_pattern=['gdn', 'attn']"))
    assert read_own_file(tmp_path / "own.py").config is None
    (tmp_path / "own.py").write_text(EXPERTS.replace("top_k=2", "top_k=2, hybrid=True"))
    named = "OLMo with a dense MLP next to the experts of each layer"
    assert read_own_file(tmp_path / "own.py").model_name == named
