"""What the command line may say, and how it is refused."""

import pytest
from launched import SRUN

from harness.config.run import load
from harness.config.validation import ConfigError
from harness.config.workloads import check_names

CHECKPOINTING = "activation_checkpointing"
LLAMA = "suite.workload_from=tests/data/small_configs/llama.json"
SHAPE = "num_hidden_layers:2,hidden_size:64,num_attention_heads:4,num_key_value_heads:2,intermediate_size:256"
SHAPE += ",vocab_size:99,max_position_embeddings:64,seq_len:33"
REFUSED = {
    "": "suite: missing",
    "suit=memory": "suit: no such name; did you mean suite?",
    "model=x.json": "model: no such name; use suite.workload_from='x.json'",
    "memory": "expected KEY=VALUE; did you mean suite=memory?",
    "suite=memry": "did you mean memory",
    "suite=all only=[fsdp2]": "name one suite",
    "suite=kernels executor.workers=2": "the cells of suite kernels are timed",
    "suite=fabric suite.sampling.rounds=6": "suite.workloads.NAME.placements says how many rounds",
    "suite=fabric suite.optimizations.e_ecmp.settings.queue_pair=4": "did you mean queue_pairs",
    "suite=offload suite.workloads.budget_48m.loss_steps=8": "not read with device_memory_budget_B=4800",
}
MEMORY = {
    "suite=kernels,memory": "use suite=all, or one command for each",
    "only=fsdp2,zero1": "use only=[fsdp2,zero1]",
    "only=3": "expected a list, as in only=[a,b]",
    "only=[fsdp3]": "did you mean fsdp2",
    "executor@there=local": "use executor=NAME",
    "executor=slrum": "no such name",
    "executor=slurm executor.nodes=0": "a whole number of at least 1",
    "suite.workloads.llama_7b=3": "the fields of a workload",
    "suite.workloads.gpt_5m={intermediate:8}": "intermediate: no such name; did you mean intermediate_size?",
    "workloads=[llama_8b]": "no such name",
    "retry=[failed]": "retry='failed': expected one of out_of_memory, timed_out, crashed",
    "hydra.run.dir=x": "results go to out=FOLDER",
    "executor.workers=0": "at least 1",
    "executor.partition=gpu": "executor.partition: no such name; allowed: workers",
    "out=[a]": "expected text or null",
    "limits=3": "expected limits.NAME=VALUE; names: timeout_s, memory_B",
    "limits.timeout_s=0": "at least 0.1",
    "repeats=0": "at least 1",
    "repeat=2": "did you mean repeats",
    "seed=-1": "at least 0",
    "seed=${nothing}": "not found",
    f"seed={'1' * 5000}": "expected a shorter value",
    "+seed=1": "seed exists already: use seed=1",
    "~limits": "only a workload can be left out, by ~suite.workloads.NAME",
    "micro_batch_size=4": "use suite.workloads.NAME.micro_batch_size=4",
    "suite.workload_from=x seq_len=8": "use suite.hf_defaults.seq_len=8",
    "techniques=[fsdp2.cpu_offload]": "is a setting; write {fsdp2: {cpu_offload: true}}",
    "techniques=[fsdp2.shard_within]": "write {fsdp2: {shard_within: VALUE}}",
    "suite.question=x": "fixed by the suite; a command may change suite.hf_defaults, suite.m",
    "suite.claims.table_1.value=3": "claims are read-only",
    "suite.sampling.rounds=100": "the cells of this suite are not timed together",
    "suite.workloads.mine={seq_len:8}": "to add one: +suite.workloads.mine={...}; allowed: ",
    "suite.workloads.llama_7b.micro_batch_size=0": "a whole number of at least 1",
    "suite.workloads.llama_7b.seq_len=4097": "at most max_position_embeddings (4096)",
    "suite.workloads.llama_7b.num_attention_heads=33": "expected a multiple of",
    "suite.workloads.llama_7b.dropout=nan": "a number of at least 0",
    "+suite.workloads.mine={num_hidden_layers:2}": "mine: missing fields: hidden_size (a whole number of at",
    "suite.workload_from=no/config.json": "no/config.json",
}
REFUSED |= {f"suite=memory {word}": said for word, said in MEMORY.items()}


@pytest.mark.parametrize("command", REFUSED, ids=lambda command: command[:80])
def test_a_mistake_is_refused_in_one_line_that_names_the_key(command):
    words = command.split()
    with pytest.raises(ConfigError) as error:
        load(words)
    assert REFUSED[command] in str(error.value)
    assert "\n" not in str(error.value)
    if words[1:]:
        assert words[-1].lstrip("+~").split("=")[0].split(".")[-1] in str(error.value)


def test_values_reach_the_run():
    words = ["suite.workloads.llama_7b.micro_batch_size=4", "hardware=h200", "++seed=3"]
    (run,) = load(["suite=memory", "only=fsdp2", *words])
    assert [variant.name for variant in run.variants] == ["baseline", "fsdp2"]
    assert run.workloads["llama_7b"]["micro_batch_size"] == 4
    assert run.workloads["llama_13b"]["micro_batch_size"] == 1
    assert run.workloads["llama_7b"]["device_memory_B"] == 141e9
    assert run.seed == 3
    assert run.slow_bf16_workloads == {}
    _, *columns = load(["suite=memory", "only=[activation_checkpointing]"])[0].variants
    assert [(one.module, one.name, dict(one.techniques)) for one in columns] == [
        (CHECKPOINTING, f"{CHECKPOINTING}.full", {CHECKPOINTING: {}}),
        (CHECKPOINTING, f"{CHECKPOINTING}.selective", {CHECKPOINTING: {"mode": "selective"}}),
    ]
    one = load(["suite=memory", "workloads=llama_7b", "only=fsdp2"])
    assert one == load(["suite=memory", "workloads=[llama_7b]", "only=[fsdp2]"])
    (run,) = load(["suite=interconnect", "suite.workloads.ddp.num_hidden_layers=1"])  # its YAML leaves it out
    assert run.workloads["ddp"]["num_hidden_layers"] == 1 < run.workloads["fsdp2"]["num_hidden_layers"]


def test_a_workload_can_be_added_and_left_out_also_of_what_others_need():
    words = ["suite=memory", f"+suite.workloads.mine={{{SHAPE}}}", "~suite.workloads.llama_7b"]
    run = load([*words, "hardware=h200"])[0]
    assert run.workloads["mine"]["optimizer"] == "adamw"
    assert run.workloads["mine"]["device_memory_B"] == 141e9
    assert "llama_7b" not in run.workloads
    run = load(["suite=kernels", "~suite.workloads.copy", "~suite.workloads.step_5m_1k"])[0]
    assert not {"copy", "step_5m_1k"} & {*run.workloads, *run.reference_workloads}
    assert run.slow_bf16_workloads["step_bf16_small"] == ("step_5m_128", "step_30m_512", "step_60m_256")
    run = load(["suite=kernels", "~suite.workloads.matmul_bf16"])[0]
    assert "matmul_bf16_small" not in {*run.workloads, *run.reference_workloads, *run.slow_bf16_workloads}


def test_under_a_launcher_of_ranks_its_executor_is_chosen_and_no_other(monkeypatch):
    assert load(["suite=memory"])[0].executor == "local"
    for name, value in SRUN.items():
        monkeypatch.setenv(name, value)
    assert load(["suite=memory"])[0].executor == "torchrun"
    with pytest.raises(ConfigError, match="executor=local: torchrun or srun started this process"):
        load(["suite=memory", "executor=local"])


def test_only_the_bounds_that_a_chosen_workload_needs_are_chosen_with_it_and_run_after_it():
    for workload, bounds in {
        "softmax_small": {"copy", "matmul_fp32"},
        "step_30m_512": {"copy", "matmul_fp32", "matmul_bf16", "matmul_bf16_small"},
        "step_5m_1k_swiglu": set(),  # the report has no bound for a step of which one part is replaced
        "rms_norm_64m_bf16_gpu": {"copy_gpu", "matmul_bf16_gpu"},
    }.items():
        (run,) = load(["suite=kernels", f"workloads=[{workload}]"])
        assert run.workloads.keys() & set(run.reference_workloads) == bounds, workload
        order = [name in bounds for name in run.workloads]
        assert order == sorted(order), workload
    (run,) = load(["suite=kernels", "workloads=[step_30m_512]"])
    assert "step_30m_512" in run.slow_bf16_workloads["step_bf16_small"]
    assert "step_bf16_small" in run.workloads  # which replaces it where bf16 is slow
    assert "attention_bf16_small" not in run.workloads
    by_name = load(["suite=kernels", "workloads=[step_bf16_small]"])[0]
    assert "step_bf16_small" not in by_name.slow_bf16_workloads  # it is run wherever it is asked for


def test_a_mistake_in_what_workloads_need_is_refused():
    for key, listed, message in (
        ("slow_bf16_workloads", {"copy": ["copi"]}, "suite.slow_bf16_workloads.copy: no such name; did you"),
        ("slow_bf16_workloads", {"copy": 1}, "suite.slow_bf16_workloads.copy=1: expected a list"),
        ("reference_workloads", {"copy": []}, "suite.reference_workloads.copy=[]: expected a list"),
        ("reference_workloads", {"copie": ["copy"]}, "suite.reference_workloads.copie: no such name; "),
    ):
        suite = {"workloads": {"copy": {}}, "reference_workloads": {}, "slow_bf16_workloads": {}, key: listed}
        with pytest.raises(ConfigError) as error:
            check_names(suite)
        assert str(error.value).startswith(message)
