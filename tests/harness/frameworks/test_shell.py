"""Command lines and shell scripts: variables, arrays, sums, launchers."""

from pathlib import Path

import pytest

from harness.frameworks.read import read_own_file, read_own_text
from harness.frameworks.shell import command_line

SCRIPTS = Path(__file__).parents[2] / "data" / "shell"


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
    question = read_own_text(text, suffix=".sh")
    assert (question.tp, question.devices, question.zero, question.global_batch_size) == (4, 16, 1, 16)
    assert (question.precision, question.seq_len, question.config["n_layer"]) == ("fp8", 2048, 8)
    assert (question.dp_of(), question.micro_batches()) == (4, 4)


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
        {"tp": 2, "sharing": "zero", "zero": 1, "recompute": "full"},
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
    question = read_own_text(command)
    assert question.format == name
    assert {field: getattr(question, field) for field in expected} == expected


def test_a_script_that_takes_its_own_options_is_read_with_its_defaults():
    """Neither its usage nor the patterns of its `case` are options; what only a run knows is named."""
    question = read_own_text((SCRIPTS / "own_options.sh").read_text(), suffix=".sh")
    assert (question.model_name, question.micro_batch_size, question.seq_len, question.devices) == (
        "Qwen/Qwen-7B",
        2,
        512,
        None,
    )
    assert question.adapters is not None
    assert question.adapters.base == "nf4"
    named = {one.key: one.means for one in question.keys if one.status == "not modelled"}
    assert named == {"launcher.nproc_per_node": "known when the script runs; devices= gives it"}
    assert "m" not in [one.key for one in question.keys]


@pytest.mark.parametrize(
    ("words", "steps"),
    [
        ("$((64 / 8))", 8),
        ("$(( (N + 1) * 3 ))", 15),
        ("$(expr $BATCH / $N / 2)", 8),
        (r"`expr 6 \* 7`", 42),
    ],
)
def test_sums_of_a_shell_are_calculated(words, steps):
    text = f"N=4\nBATCH=64\ntorchrun t.py --model_name_or_path gpt2 --gradient_accumulation_steps {words}"
    assert read_own_text(text, suffix=".sh").gradient_accumulation_steps == steps


def test_a_sum_that_is_none_stays_a_variable():
    text = "torchrun t.py --model_name_or_path gpt2 --gradient_accumulation_steps $((2**9999999))"
    with pytest.raises(ValueError, match="the variable"):
        read_own_text(text, suffix=".sh")


def test_words_after_a_value_that_only_the_caller_knows_are_no_values():
    text = "torchrun t.py --num-layers 2 ${MORE} --micro-batch-size 4 > out.txt 2>&1 &"
    assert command_line(text) == {"num-layers": "2", "micro-batch-size": "4"}


def test_a_bare_flag_that_ends_an_array_is_read():
    question = read_own_file(SCRIPTS / "arrays.sh")
    assert (question.precision, question.zero, question.sequence_parallel) == ("bf16", 1, True)
    options = command_line((SCRIPTS / "arrays.sh").read_text())
    assert options["untie-embeddings-and-output-weights"] is True
    assert not {"quick", "q"} & options.keys()


def test_a_value_of_hydra_that_is_no_yaml_is_text():
    assert command_line("python x.py a.b=[[${C%,}],null] a.c=1") == {"a.b": "[[${C%,}],null]", "a.c": 1}
