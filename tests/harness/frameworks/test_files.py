"""Files: what is refused in one line (tests/data/bad_files.yaml), what a file names, and shell scripts."""

import json
from pathlib import Path

import pytest
import yaml
from refusals import refused

from harness.ask.written import differing_of
from harness.frameworks.models import with_model_parts
from harness.frameworks.read import read_back, read_own_file, read_own_files, read_own_text, write_own
from harness.frameworks.shell import command_line
from harness.question import FieldOrigin, question_of

DATA = Path(__file__).parents[2] / "data"
BAD = yaml.safe_load((DATA / "bad_files.yaml").read_text())


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_that_names_the_file_and_the_key(case, tmp_path):
    file = tmp_path / f"own{BAD[case]['suffix']}"
    file.write_text(BAD[case]["text"])
    assert str(file) in refused(lambda: read_own_file(file), BAD[case]["says"])


def test_what_is_no_file_is_named(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    for name in ("folder", "missing.yaml", "binary.toml"):
        refused(lambda name=name: read_own_file(tmp_path / name), name)


@pytest.mark.parametrize(
    ("file", "zero", "offload"),
    [
        ("some/folder/ds.json", 2, ("optimizer",)),  # which lies next to it
        ("deepspeed_configs/ds_z3_offload_config.json", 3, ("optimizer", "parameters")),  # of a known name
        ("my.json", None, None),
    ],
)
def test_a_deepspeed_file_next_to_it_or_of_a_known_name_is_read_and_another_is_named(
    file, zero, offload, tmp_path
):
    section = {"stage": 2, "offload_optimizer": {"device": "cpu"}}
    (tmp_path / "ds.json").write_text(json.dumps({"zero_optimization": section}))
    text = f"base_model: meta-llama/Llama-3.1-8B\nsequence_len: 1024\ndeepspeed: {file}\n"
    (tmp_path / "axolotl.yml").write_text(text)
    question = read_own_file(tmp_path / "axolotl.yml")
    not_modelled = [one.key for one in question.keys if one.status == "not modelled"]
    assert ("deepspeed" in not_modelled) == (zero is None)
    assert zero is None or (question.sharing, question.zero, question.offload) == ("zero", zero, offload)


def test_a_config_json_next_to_it_is_the_model(tmp_path):
    config = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text(json.dumps(config))
    (tmp_path / "a.yaml").write_text("base_model: mine\nsequence_len: 128\nmicro_batch_size: 1\n")
    assert read_own_file(tmp_path / "a.yaml").config == config


RECIPES = [
    ("8B_full_single_device.yaml", "", 1, "ddp"),
    ("own.yaml", "low_cpu_ram: false\n", 1, "ddp"),
    ("7B_lora.yaml", "#   tune run --nnodes 1 --nproc_per_node 2 lora_finetune_distributed\n", 2, "fsdp2"),
    ("own.yaml", "", None, "fsdp2"),
]


@pytest.mark.parametrize(("name", "text", "devices", "sharing"), RECIPES)
def test_torchtunes_recipe_has_the_devices_of_its_name_or_of_the_command_in_its_comment(
    name, text, devices, sharing, tmp_path
):
    """As in torchtune bd2a0fc, recipes/configs; one that generates or evaluates has no optimizer."""
    text += "model._component_: torchtune.models.llama3_1.llama3_1_8b\noutput_dir: out\nbatch_size: 2\n"
    (tmp_path / name).write_text(text)
    refused(lambda: read_own_file(tmp_path / name), "give the file of a recipe that trains")
    (tmp_path / name).write_text(text + "optimizer._component_: torch.optim.AdamW\n")
    question = read_own_file(tmp_path / name)
    assert (question.devices, question.sharing) == (devices, sharing)


TORCHTUNE = "model._component_: torchtune.models.llama3_1.{}llama3_1_8b\nbatch_size: 2\n"
TORCHTUNE += "optimizer._component_: torch.optim.AdamW\n"
LORA = TORCHTUNE.format("lora_") + "model.lora_rank: 8\n"
TITAN = "[model]\nname = 'llama3'\nflavor = '8B'\n[activation_checkpoint]\nmode = 'none'\n"
NANOTRON = "parallelism.dp: 2\ntokens.sequence_length: 64\nmodel.model_config: {num_hidden_layers: 2, "
NANOTRON += "hidden_size: 64, num_attention_heads: 4, vocab_size: 128, intermediate_size: 96, "
KINDS = [
    (LORA, ".yaml", {"states": "bf16", "precision": "bf16"}, []),
    (LORA + "dtype: fp32\n", ".yaml", {"states": "fp32", "precision": "fp32"}, []),
    (TORCHTUNE.format("") + "compile: {model: true, loss: false}\noptimizer_in_bwd: true\n"
     "enable_activation_offloading: true\n"
     "loss._component_: torchtune.modules.loss.LinearCrossEntropyLoss\n", ".yaml", {"compile": True,
     "optimizer_in_backward": True, "offload": ("activations",), "loss_chunks": 8}, []),
    (LORA + "loss._component_: torchtune.rlhf.loss.DPOLoss\n", ".yaml", {"loss_chunks": 1, "objective": "dpo",
     "forward_passes": 1, "micro_batch_size": 4}, []),
    (TORCHTUNE.format("") + "grpo_samples: 16\nmax_generated_tokens: 512\ntokenizer.max_seq_len: 256\n",
     ".yaml", {"objective": "grpo", "forward_passes": 2, "rollout": "transformers", "micro_batch_size": 32,
     "seq_len": 768}, []),
    (TITAN + "[compile]\nenable = true\n[quantize.linear.float8]\nrecipe_name = 'rowwise'\n", ".toml",
     {"compile": True, "sharing": "fsdp2", "recompute": "none"}, [("quantize.linear.float8.recipe_name",
     "either")]),
    (TITAN.replace("flavor", "converters = ['quantize.grouped_mm.mx']\nflavor"), ".toml",
     {"precision": "bf16"}, [("model.converters", "either")]),
    ("parameters: {max_seq_len: 512, global_train_batch_size: 8, device_train_microbatch_size: 1, "
     "max_duration: 1ba, model: {pretrained_model_name_or_path: gpt2}}\ncompute.gpus: 8\n", ".yaml",
     {"format": "llm_foundry", "devices": 8, "seq_len": 512}, []),
    (NANOTRON + "moe_num_experts: 4, num_experts_per_tok: 1}\n", ".yaml", {"format": "nanotron",
     "has_experts": True}, []),
    ("./run_train.sh --model.flavor 8B --parallelism.tensor_parallel_degree 4 --compile.enable", "",
     {"format": "torchtitan", "tp": 4, "compile": True, "model_name": "llama3/8B"}, []),
    ("deepspeed --num_gpus 8 pretrain_gpt.py --tensor-model-parallel-size 2 --zero-stage 1 --num-layers 2 "
     "--hidden-size 64 --num-attention-heads 4 --vocab-size 128 --seq-length 64 --micro-batch-size 4 "
     "--activations-checkpoint-method uniform", "", {"tp": 2, "sharing": "zero", "zero": 1,
     "recompute": "full"}, []),
    ("model.tensor_model_parallel_size=4 train.global_batch_size=512 model.seq_length=8192", "",
     {"format": "megatron_bridge", "tp": 4, "global_batch_size": 512, "seq_len": 8192, "zero": 1}, []),
]  # fmt: skip


@pytest.mark.parametrize(("text", "suffix", "expected", "named"), KINDS)
def test_a_kind_of_file_is_read_as_what_it_is(text, suffix, expected, named):
    question = read_own_text(text, suffix=suffix)
    assert {field: getattr(question, field) for field in expected} == expected
    assert [(one.key, one.memory) for one in question.keys if one.status == "not modelled"] == named


@pytest.mark.parametrize(("text", "suffix", "line"), [
    (TITAN.replace("llama3", "flux"), ".toml", "flux makes pictures"),
    (NANOTRON + "is_mamba_config: true}\n", ".yaml", "Mamba"),
    ("policy_model._component_: torchtune.models.llama2.llama2_7b\n", ".yaml", "trains by policy_model"),
    ("./run_train.sh --module llama3 --config llama3_8b --compile.enable", "", "config_registry.py:NAME"),
])  # fmt: skip
def test_what_is_not_modelled_is_refused_by_name(text, suffix, line):
    refused(lambda: read_own_text(text, suffix=suffix), line)


def test_experts_of_nanotrons_example_have_two_matrices_and_ranks_of_their_own():
    """(nanotron 2411b02, examples/moe/config_llamoe.yaml; moe.py, SparseMLP; parallel/context.py)"""
    text = NANOTRON + "moe_num_experts: 4, num_experts_per_tok: 1}\n"
    text = text.replace("parallelism.dp: 2", "parallelism: {dp: 2, tp: 2, expert_parallel_size: 4}")
    question = read_own_text(text, suffix=".yaml")
    layout = (question.tp, question.ep, question.etp, question.dp_of() * question.model_ranks)
    assert layout == (2, 4, 2, 16)
    assert (question.config["gated_mlp"], question.config["moe_intermediate_size"]) == (False, 96)


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


@pytest.mark.parametrize(("command", "name", "expected"), [
    ("accelerate launch --num_processes 8 sft.py --model_name_or_path gpt2 "
     "--per_device_train_batch_size 2 --bf16", "trl", {"devices": 8, "micro_batch_size": 2,
     "precision": "bf16", "model_name": "gpt2"}),
    ("./run_train.sh --model.flavor 8B --parallelism.tensor_parallel_degree 4 --compile.enable", "torchtitan",
     {"tp": 4, "compile": True, "model_name": "llama3/8B"}),
    ("deepspeed --num_gpus 8 pretrain_gpt.py --tensor-model-parallel-size 2 --zero-stage 1 "
     "--micro-batch-size 4 --seq-length 64 --activations-checkpoint-method uniform", "megatron", {"tp": 2,
     "sharing": "zero", "zero": 1, "recompute": "full"}),
    ("model.tensor_model_parallel_size=4 train.global_batch_size=512 model.seq_length=8192",
     "megatron_bridge", {"tp": 4, "global_batch_size": 512, "seq_len": 8192, "zero": 1}),
    ("trl grpo --model_name_or_path gpt2 --use_vllm --beta 0.1", "trl", {"forward_passes": 2}),
    ("trl rloo --model_name_or_path gpt2 --beta 0", "trl", {"forward_passes": 1}),
    ("trl kto --model_name_or_path gpt2", "trl", {"forward_passes": 3}),
])  # fmt: skip
def test_command_lines_are_recognised_and_read(command, name, expected):
    question = read_own_text(command)
    assert question.format == name
    assert {field: getattr(question, field) for field in expected} == expected


def test_a_script_that_takes_its_own_options_is_read_with_its_defaults():
    """Neither its usage nor the patterns of its `case` are options; what only a run knows is named."""
    question = read_own_text((DATA / "shell" / "own_options.sh").read_text(), suffix=".sh")
    found = (question.model_name, question.micro_batch_size, question.seq_len, question.devices)
    assert found == ("Qwen/Qwen-7B", 2, 512, None)
    assert question.adapters.base == "nf4"
    named = {one.key: one.means for one in question.keys if one.status == "not modelled"}
    assert named.keys() == {"launcher.nproc_per_node"}


CASE = 'case "${S}" in\n  tiny|small)\n B=2 ;;\n  "large")\n B=8 ;;\n  *) exit 1 ;;\nesac'
GLOB = "M=llama-70b\nB=1\nif [[ $M == {} ]]; then\nB=8\nfi"
SCRIPTS = {
    f"S=${{1:-small}}\n{CASE}": 2,
    f"S=$1\n{CASE}": 8,  # not known: the last
    GLOB.format("*70b*"): 8,
    GLOB.format('"*70b*"'): 1,
    "S=7b\nif [ $S == 7b ]; then\nT=1\nelse\nT=8\nfi\nB=2\nif [ $T == 8 ]; then\nB=8\nfi": 2,
    "N=4\nB=$(( (N + 1) * 3 ))": 15,
    "M=${MICRO:-2}\nA=$((M * N))\nN=${N:-8}\nB=$((A * 2))": 32,  # verl, run_ppo_trainer_megatron.sh
    "MICRO=3\nM=${MICRO:-2}\nB=$((M * 2))": 6,
    "N=64\nB=$(expr $N / 4 / 2)": 8,
    r"B=`expr 6 \* 7`": 42,
}
"""Beginnings of a script, and what B is after them."""
TWO = "MODE=x\n{}\nif [ $MODE = x ]; then B=1; else B=2; fi"
WITHOUT_BRANCHES = {
    **{TWO.format(one): 1 for one in (
        "A=$(if [ a ]; then echo b; fi)", "(if [ -d a ]; then cd a; fi)",
        "if [ a ] &&\n [ b ]; then\nC=1\nfi", "awk '{ if (y) print 1; else print 2 }' a",
        'python -c "\nif a:\n  b\nelse:\n  c\n"', "if true\n test a; then\nC=1\nfi",
        "cat <<E\nif you don't\nfi\nE", "echo a # don't\nelse\nfi",
    )},
    "B=1\nif test a; then B=2; else B=3; fi": 3,  # not known: the last, as on several lines
    "if [ a = a ]; then\nB=2\nif you ask\nelse\nB=3\nfi": 2,
    "if [ $1 = a ]; then\nif b; then\nB=3\nelse\n:\nfi\nB=4\nfi": 4,
    "A=1\ncase $A in\n1) case $2 in\n a) C=1 ;;\nesac\nB=3 ;;\n*) B=4 ;;\nesac": 3,
    "B=2\nfor i in $@; do\ncase $i in\n--b=?*) B=${i#*=} ;;\nesac\ndone": 2,
}  # fmt: skip
"""What looks like a branch and is none, or is not understood, and what B is after it."""
SET = "B=3\nif [ {} ]; then\nB=1\nelse\nB=2\nfi"
OF_VALUES = {
    ': "${USE:=1}"\n' + SET.format('"$USE" = 1'): 1,
    ": ${USE=1}\n" + SET.format('"$USE" = 1'): 1,
    "USE=2\n: ${USE:=1}\n" + SET.format('"$USE" = 1'): 2,
    "C=${USE:=4}\nB=$USE": 4,
    SET.format('-n "$USE"'): 2,
    "source .env\n" + SET.format('-z "$USE"'): 2,  # not known: the last
    "source away.sh || true\n" + SET.format('-z "$USE"'): 2,
    "source venv/bin/activate\n" + SET.format('-z "$USE"'): 1,
    "B=3\nif [ -n $USE ]; then\nB=1\nfi": 1,  # true without a word; not known: the last
    "B=3\nif [[ -n $USE ]]; then\nB=1\nfi": 3,
}
"""What sets a variable that its script does not assign."""
SCRIPTS |= WITHOUT_BRANCHES | OF_VALUES
RUN = "torchrun --nproc_per_node 4 t.py --model_name_or_path gpt2 --per_device_train_batch_size $B"


@pytest.mark.parametrize("begin", SCRIPTS)
def test_branches_and_sums_of_a_script_are_followed_as_far_as_they_are_known(begin):
    assert read_own_text(f"{begin}\n{RUN}", suffix=".sh").micro_batch_size == SCRIPTS[begin]


def test_a_sum_that_is_none_is_a_variable_and_of_runs_of_one_script_the_first_is_read():
    refused(lambda: read_own_text(f"B=$((2**9999999))\n{RUN}", suffix=".sh"), "the variable")
    text = f"B=1\nif $A\nthen\n{RUN} --fp16\nelse\n{RUN} --max_length 256\nfi"
    question = read_own_text(text, suffix=".sh")
    assert (question.precision, question.origin("seq_len").kind) == ("fp16", "assumption")


def test_an_assigned_command_is_one_word_however_many_it_has():
    """(Megatron-LM d98e8a6, examples/multimodal/nvlm/sft_34b_internvit.sh)"""
    for one in ('"$(cd "$(dirname "$0")" && pwd)"', 'log_`date +%s -u`_"$(hostname -s)"'):
        text = f"T={one}\nO='--seq-length 64'\nrun --log $T --nproc_per_node 8 $O\nD=`pwd`\n"
        options = command_line(text)
        assert (options["nproc_per_node"], options["seq-length"]) == ("8", "64"), one
    assert command_line('X="$(a "\n' * 40 + "run --seq-length 64")["seq-length"] == "64"


def test_a_script_is_read_with_those_that_it_sources(tmp_path):
    """(Megatron-LM d98e8a6, examples/academic_paper_scripts/sc21/run_table_1.sh, post_training/modelopt)"""
    sizes = 'export P="${MORE} --num-layers ${NLS} --hidden-size 64 --num-attention-heads 4 --seq-length 128"'
    begin = 'SIZE=small\nif [ ${SIZE} == "small" ]; then\n  NLS=2\nelif [ ${SIZE} == "large" ]; then\n'
    begin += "  NLS=8\nelse\n  exit 1\nfi\nMORE='--activations-checkpoint-method uniform'\n"
    script, other, away = tmp_path / "run.sh", tmp_path / "CONFIG.sh", tmp_path / "elsewhere"
    away.mkdir()
    for words in ('"$(dirname "${BASH_SOURCE[0]}")/CONFIG.sh" "$1"', "./CONFIG.sh || true"):
        script.write_text(f"{begin}source {words}\n")
        (away / "CONFIG.sh").unlink(missing_ok=True)
        other.write_text(sizes)
        near = read_own_file(script)
        other.rename(away / "CONFIG.sh")
        says = "its options are in CONFIG.sh, which it sources: give it too, as config=[FILE,FILE]"
        refused(lambda: read_own_file(script), says)
        for question in (near, read_own_files([str(script), str(away / "CONFIG.sh")])):
            assert (question.format, question.recompute) == ("megatron", "full")
            assert question.config["n_layer"] == 2


def test_a_script_that_its_caller_chooses_is_given_next_to_it(tmp_path):
    script, model = tmp_path / "run.sh", tmp_path / "elsewhere" / "m.sh"
    begin = 'D=`pwd`\nsource "$D/elsewhere/$1.sh"\npython pretrain_gpt.py --micro-batch-size 1 --bf16 '
    script.write_text(f"{begin} --num-layers ${{NLS}} ${{P}}\n")
    refused(lambda: read_own_file(script), "elsewhere/*.sh, which it sources and is not there, may set it")
    model.parent.mkdir()
    model.write_text("NLS=2\nP='--hidden-size 64 --num-attention-heads 4 --seq-length 128'\n")
    assert read_own_files([str(script), str(model)]).config["n_layer"] == 2


def test_a_job_is_read_with_the_yaml_of_its_command_whose_values_it_replaces(tmp_path):
    command = "composer train/train.py yamls/own.yaml \\\n  max_duration=100ba max_seq_len=256\n"
    (tmp_path / "job.yaml").write_text(yaml.safe_dump({"command": command, "compute": {"gpus": 16}}))
    own = {"max_seq_len": 512, "global_train_batch_size": 32, "max_duration": "1ba"}
    model = {"name": "hf_causal_lm", "pretrained_model_name_or_path": "gpt2"}
    (tmp_path / "own.yaml").write_text(yaml.safe_dump({**own, "model": model}))
    files = [str(tmp_path / name) for name in ("own.yaml", "job.yaml")]
    for question in (read_own_file(files[1]), read_own_files(files)):
        found = (question.model_name, question.devices, question.seq_len, question.global_batch_size)
        assert found == ("gpt2", 16, 256, 32)


def test_what_is_no_value_of_an_option_or_no_yaml_is_told_from_it():
    text = "torchrun t.py --num-layers 2 ${MORE} --micro-batch-size 4 > out.txt 2>&1 &"
    assert command_line(text) == {"num-layers": "2", "micro-batch-size": "4"}
    assert command_line("python x.py a.b=[[${C%,}],null] a.c=1") == {"a.b": "[[${C%,}],null]", "a.c": 1}


def test_nested_tests_paths_and_unset_variables_decide():
    run = "torchrun --nproc_per_node 4 t.py --model_name_or_path gpt2 --per_device_train_batch_size $B"
    nested = "S=fsdp\nB=1\nif [ $S = megatron ]; then\nif true; then\nB=8\nelse\nB=9\nfi\nelif"
    nested += " [[ $S != x ]]\nthen B=2; fi\n"
    of_path = 'E=${E:-a/dapo.yaml}\nif [ "$(basename "$E")" = "dapo.yaml" ]; then\nB=2\nelse\nB=8\nfi\n'
    unset = 'B=2\nif [ "$(basename "$ENV")" = "a" ] || [ ! -z "$ENV" ]; then\nB=8\nfi\n'
    counted = 'B=1\nif [ "$B" -lt 2 ] && [ -n "$B" ]; then if [[ $B -eq 1 ]]; then B=2; else B=3; fi; fi\n'
    unsure = "S=0\nif [ $RANK -eq 0 ]; then\nS=1\nfi\nB=1\nif [ $S -eq 0 ]; then\nB=3\nelse\nB=2\nfi\n"
    for begin in (nested, of_path, unset, counted, unsure):
        assert read_own_text(begin + run, suffix=".sh").micro_batch_size == 2, begin


def test_what_is_sourced_lies_in_the_folder_and_is_read_once(tmp_path):
    inner = tmp_path / "inner"
    inner.mkdir()
    (tmp_path / "above.sh").write_text("B=7\n")
    (inner / "own.sh").write_text("B=3\n" + ". own.sh\n" * 20)
    script = inner / "run.sh"
    script.write_text(f"source own.sh && {RUN}\n")
    assert read_own_file(script).micro_batch_size == 3
    (inner / "link.sh").symlink_to(tmp_path / "above.sh")
    for name in ("../above.sh", "link.sh"):
        script.write_text(f"B=1\nsource {name}\n{RUN}\n")
        assert read_own_file(script).micro_batch_size == 1
    script.write_text(f"source away.sh || true\n{SET.format('-z $USE')}\n{RUN}\n")
    assert read_own_file(script).micro_batch_size == 2  # not known: the last


def of_bucket(size, **more):
    """Return DeepSpeed's configuration with a bucket."""
    zero = {"stage": 3, "reduce_bucket_size": size, **more}
    return json.dumps({"train_micro_batch_size_per_gpu": 1, "zero_optimization": zero})


@pytest.mark.parametrize(
    "size", [[1], 10**400, "abc", True, 0, -1, float("inf")], ids=lambda one: str(one)[:9]
)
def test_a_bucket_that_is_no_size_is_refused_by_its_key(size):
    with pytest.raises(ValueError, match=r"^zero_optimization.reduce_bucket_size is .{1,45}; it must be"):
        read_own_text(of_bucket(size), suffix=".json")


@pytest.mark.parametrize(
    ("size", "elements"), [(2e9, 2 * 10**9), ("2e8", 2 * 10**8), (5e8, None), (None, None)]
)
def test_a_bucket_is_as_large_as_the_file_says(size, elements):
    assert read_own_text(of_bucket(size), suffix=".json").reduce_bucket == elements


def test_a_second_bucket_is_bounded_by_the_model_where_it_decides():
    question = read_own_text(of_bucket("auto", stage=2, overlap_comm=True), suffix=".json")
    config = {"model_type": "llama", "hidden_size": 64}
    for more, most_B in (({}, 4 * 5e8), (config, 4 * 64**2), ({"hidden_size": "64"}, 4 * 5e8)):
        asked = with_model_parts(question.with_fields(FieldOrigin("command", ""), config=more))
        (key,) = (one for one in asked.keys if one.key == "overlap_comm" and one.status == "not modelled")
        assert key.most_B == most_B


@pytest.mark.parametrize(("bucket", "other"), [(None, None), (0, "auto"), (2 * 10**9, 2 * 10**9)])
def test_accelerates_file_that_cannot_say_the_bucket_is_said(bucket, other):
    """accelerate 16cb6eb, utils/dataclasses.py, DeepSpeedPlugin: it has no key of a bucket."""
    question = question_of(sharing="zero", zero=3, devices=8, reduce_bucket=bucket)
    text = write_own(question, "accelerate")
    differing = read_back(question, "accelerate", text)
    assert differing.get("reduce_bucket") == (None if bucket is None else (bucket, None))
    said = differing_of(differing)
    usual = "500,000,000 (DeepSpeed's default)"
    assert [one for one in said if "bucket" in one] == (
        [] if other is None else [f"reduce_bucket {usual} for {other}"]
    )
