"""What the command line may say, and how it is refused."""

import subprocess
import sys

import pytest
from launched import SRUN
from omegaconf import OmegaConf

from harness.config.code_fingerprint import ROOT
from harness.config.run import checked, compose_run, load
from harness.config.validation import ConfigError
from harness.config.workloads import check_names

LLAMA = "suite.workload_from=tests/data/small_configs/llama.json"
REFUSED = [
    ([], "suite: missing"),
    (["suite=memry"], "did you mean memory"),
    (["memory"], "expected KEY=VALUE; did you mean suite=memory?"),
    (["suite=memory", "repeats"], "expected KEY=VALUE"),
    (["suite=memory", "memory"], "did you mean suite=memory?"),
    (["~suite"], "only a workload can be left out, by ~suite.workloads.NAME"),
    (["suite=memory", "suite=kernels,memory"], "use suite=all, or one command for each"),
    (["suite=memory", "hydra.run.dir=x"], "results go to out=FOLDER"),
    (["suite=memory", "executor@there=local"], "use executor=NAME"),
    (["suite=memory", "plan=maybe"], "expected true or false"),
    (["suite=memory", "out=[a]"], "expected text or null"),
    (["suite=memory", "limits=3"], "expected limits.NAME=VALUE; names: timeout_s, memory_B"),
    (["suite=memory", "workloads=null"], "workloads=[a,b]"),
    (["suite=memory", "seed=${nothing}"], "not found"),
    (["suite=memory", "repeat=2"], "did you mean repeats"),
    (["suit=memory"], "suit: no such name; did you mean suite?"),
    (["suite=memory", "only=[fsdp3]"], "did you mean fsdp2"),
    (["suite=memory", "workloads=[llama_8b]"], "no such name"),
    (["suite=memory", "suite.workloads.llama_7b.micro_batch_sise=4"], "did you mean micro_batch_size"),
    (["suite=memory", "suite.workloads.llama_7b.micro_batch_size=four"], "a whole number of at least 1"),
    (["suite=memory", "suite.workloads.llama_7b.micro_batch_size=true"], "a whole number of at least 1"),
    (["suite=memory", "suite.workloads.llama_7b.micro_batch_size=0"], "a whole number of at least 1"),
    (["suite=memory", "suite.workloads.llama_7b.micro_batch_size=null"], "missing"),
    (["suite=memory", "suite.workloads.llama_7b.optimizer=adam"], "one of adamw, sgd_momentum"),
    (["suite=memory", "suite.workloads.llama_7b.seq_len=5000"], "at most max_position_embeddings (4096)"),
    (["suite=memory", "suite.workloads.llama_7b.num_attention_heads=33"], "expected a multiple of"),
    (["suite=memory", "suite.workloads.llama_7b.dropout=nan"], "a number of at least 0"),
    (["suite=memory", "suite.workloads.llama_7b=3"], "the fields of a workload"),
    (["suite=congestion", "suite.optimizations.receiver_admission.settings.channels=0"], "at least 1"),
    (["suite=fabric", "suite.optimizations.e_ecmp.settings.queue_pair=4"], "did you mean queue_pairs"),
    (["suite=memory", "suite.optimizations.fsdp2.techniques=[fsdp3]"], "did you mean fsdp2"),
    (
        ["suite=memory", "suite.optimizations.fsdp2.techniques=[{fsdp2: {reduce_type: bf16}}]"],
        "did you mean reduce_d",
    ),
    (
        ["suite=memory", "suite.optimizations.fsdp2.techniques=[{fsdp2: {shard_within: two}}]"],
        "a whole number",
    ),
    (["suite=memory", "suite.optimizations.zero1.techniques=[{zero: {stage: 4}}]"], "one of 1, 2, 3"),
    (["suite=memory", "suite.optimizations.fsdp2.techniques=[fsdp2,ddp]"], "fsdp2 and ddp both decide how"),
    (["suite=memory", "repeats=two"], "expected a whole number or null"),
    (["suite=fabric", "suite.sampling.rounds=6"], "suite.workloads.NAME.placements says how many rounds"),
    (["suite=fabric", "suite.rounds_field=buffer_B"], "suite.rounds_field: fixed by the suite"),
    (
        ["suite=memory", "suite.question=x"],
        "fixed by the suite; a command may change suite.hf_defaults, suite.m",
    ),
    (["suite=memory", "suite.quick.first=[x]"], "suite.quick.first: fixed by the suite"),
    (["suite=memory", "suite.fields.dropout.at_most=3"], "fixed by the suite"),
    (["suite=memory", "+suite.fields.more={type: int}"], "suite.fields.more: fixed by the suite"),
    (["suite=null"], "suite=null: no such name; allowed: "),
    (["suite=memory", "hardware=null"], "hardware=null: no such name"),
    (["suite=memory", "executor=true"], "executor=true: no such name"),
    (["suite=kernels", "~suite.workloads.copy", "workloads=[copy]"], "workloads=[copy]: no such name"),
    (["suite=fabric_flows", "suite.workloads.flows_1024.placements=1"], "at least 2"),
    (["suite=memory", "repeats=0"], "at least 1"),
    (["suite=memory", "seed=-1"], "at least 0"),
    (["suite=memory", "limits.timeout_s=-1"], "at least 0.1"),
    (["suite=memory", "limits.memory_B=lots"], "expected a number or null"),
    (["suite=memory", "executor=slrum"], "no such name"),
    (["suite=memory", "executor.workers=0"], "at least 1"),
    (["suite=memory", "executor.partition=gpu"], "executor.partition: no such name; allowed: workers"),
    (["suite=memory", "executor=slurm", "executor.partitoin=gpu"], "did you mean partition?"),
    (["suite=memory", "executor=slurm", "executor.nodes=0"], "a whole number of at least 1"),
    (["suite=memory", "executor=slurm", "executor.exclusive=often"], "expected true or false or null"),
    (["suite=memory", "executor=ray", "executor.gpus_per_job=-1"], "a whole number of at least 0"),
    (["suite=kernels", "executor.workers=2"], "the cells of suite kernels are timed"),
    (["suite=memory", "suite.sampling.rounds=100"], "the cells of this suite are not timed together"),
    (["suite=memory", "hardware=h300"], "did you mean h200"),
    (["suite=memory", "hardware=h100"], "did you mean h100_"),
    (["suite=memory", "micro_batch_size=4"], "use suite.workloads.NAME.micro_batch_size=4"),
    (["suite=memory", "suite.workload_from=x", "seq_len=8"], "use suite.hf_defaults.seq_len=8"),
    (["suite=memory", "only=3"], "expected a list, as in only=[a,b]"),
    (["suite=memory", "seed=1,2"], "use one command for each"),
    (["suite=memory", "only=fsdp2,zero1"], "use only=[fsdp2,zero1]"),
    (["suite=memory", "seed={a:1}"], "expected a whole number"),
    (["suite=memory", "suite.claims.table_1.value=3"], "claims are read-only"),
    (["suite=memory", "retry=[failed]"], "retry='failed': expected one of out_of_memory, timed_out, crashed"),
    (["suite=memory", "+anything=1"], "no such name"),
    (["suite=memory", "++anything=1"], "no such name"),
    (["suite=memory", "+seed=1"], "seed exists already: use seed=1"),
    (["suite=memory", "+suite.workloads.gpt_5m.seq_len=8"], "use suite.workloads.gpt_5m.seq_len=8"),
    (["suite=memory", "~limits"], "only a workload can be left out"),
    (["suite=memory", "~suite.workloads.gpt_5m.seq_len"], "only a workload can be left out"),
    (["suite=memory", "hydra/launcher=joblib"], "Hydra composes the configuration and runs nothing"),
    (["suite=memory", "++suite.workloads.gpt_5m.num_heads=2"], "num_heads: no such name"),
    (
        ["suite=memory", "suite.workloads.gpt_5m={intermediate:8}"],
        "intermediate: no such name; did you mean intermediate_size?",
    ),
    (["suite=offload", "suite.workloads.llama_5m.learning_rate=0"], "expected a number above 0 or null"),
    (["suite=interconnect", "suite.workloads.ddp.vocab_size=7"], "expected a whole number of at least 8"),
    (
        ["suite=interconnect", "suite.optimizations.local_sgd.techniques=[{local_sgd: {outer_rate: 1}}]"],
        "did you mean outer_learning_rate?",
    ),
    (
        ["suite=kernels", "+suite.workloads.mine={operation: softmax, vocab_size: 7}"],
        "mine.vocab_size=7: not read with operation='softmax', only with 'linear_cross_entropy', 'training_s",
    ),
    (["suite=kernels", "suite.workloads.softmax_16m.num_attention_heads=4"], "not read with operation='soft"),
    (["suite=kernels", "suite.workloads.step_5m_1k.head_size=8"], "only with 'attention', 'rotary'"),
    (["suite=kernels", "suite.workloads.attention_full_64_2k.part=attention"], "only with 'training_step'"),
    (
        ["suite=offload", "suite.workloads.budget_48m.loss_steps=8"],
        "not read with device_memory_budget_B=4800",
    ),
    (["suite=memory_published", "suite.workloads.titan_llama3_8b.recompute=full"], "only with 'megatron'"),
    (
        [
            "suite=memory",
            "+suite.workloads.mine={num_hidden_layers: 2, vocab_size: 8, num_attention_heads: 2}",
        ],
        "mine: missing fields: hidden_size (a whole number of at least 1), num_key_value_heads (a whole n",
    ),
    (
        ["suite=memory", "+suite.workloads.mine={num_hidden_layers: 2}"],
        "vocab_size (a whole number of at least 2), seq_len (a whole number of at least 1), max_position_em",
    ),
    (["suite=memory", "suite.workload_from=no/config.json"], "no/config.json"),
    (["suite=memory", "suite.workload_from=pyproject.toml"], "not JSON at line 1"),
    (
        [
            "suite=memory",
            LLAMA,
            "suite.hf_defaults.seq_len=9999999",
        ],
        "max_position_embeddings",
    ),
    (
        [
            "suite=memory",
            LLAMA,
            "suite.hf_defaults.micro_batch_sise=2",
        ],
        "did you mean micro_batch_size",
    ),
    (["model=x.json"], "model: no such name; use suite.workload_from='x.json'"),
    (
        ["suite=memory", "model=x.json"],
        "use suite.workload_from='x.json' or suite.workloads.NAME.model='x.json'",
    ),
    (["suite=kernels", "workload_from=x.json"], "no such name; use suite.workload_from='x.json'"),
    (["suite=memory", "device=h200"], "device: no such name; use hardware='h200'"),
    (["device=h200"], "device: no such name; use hardware='h200'"),
    (
        ["suite=memory", "suite.workloads.mine={seq_len: 8}"],
        "to add one: +suite.workloads.mine={...}; allowed: ",
    ),
    (["suite=memory", "workloads"], "'workloads': expected KEY=VALUE"),
    (["suite=memory", "techniques=[fsdp2.cpu_offload]"], "is a setting; write {fsdp2: {cpu_offload: true}}"),
    (["suite=memory", "techniques=[fsdp2.shard_within]"], "write {fsdp2: {shard_within: VALUE}}"),
    (["suite=memory", "from_result=x"], "did you mean from_results"),
    (["suite=all", "only=[fsdp2]"], "name one suite"),
]


@pytest.mark.parametrize(("words", "said"), REFUSED, ids=lambda v: " ".join(v) if isinstance(v, list) else "")
def test_a_mistake_is_refused_in_one_line(words, said):
    with pytest.raises(ConfigError) as error:
        load(words)
    assert said in str(error.value)
    assert "\n" not in str(error.value)
    # The line names the key that was wrong.
    if words[1:]:
        assert words[-1].lstrip("+~").split("=")[0].split(".")[-1] in str(error.value)


@pytest.mark.parametrize(
    "word", ["limits.timeout_s=5", "++limits.timeout_s=5", "limits={timeout_s:5}", "++limits={timeout_s: 5}"]
)
def test_every_form_of_a_value_that_hydra_reads_sets_it(word):
    assert load(["suite=congestion", word])[0].limits.timeout_s == 5


@pytest.mark.parametrize("word", ["suite=congestion", "+suite=congestion", "++suite=congestion"])
def test_every_form_of_a_choice_that_hydra_reads_makes_it(word):
    assert load([word])[0].suite == "congestion"


def test_a_refusal_exits_with_2_and_prints_one_line():
    done = subprocess.run(
        [sys.executable, "-m", "harness", "suite=memry"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "memory" in done.stderr


def test_values_reach_the_run():
    run = load(
        ["suite=memory", "only=[fsdp2]", "suite.workloads.llama_7b.micro_batch_size=4", "hardware=h200"]
    )[0]
    assert [variant.name for variant in run.variants] == ["baseline", "fsdp2"]
    assert run.workloads["llama_7b"]["micro_batch_size"] == 4
    assert run.workloads["llama_13b"]["micro_batch_size"] == 1
    assert run.workloads["llama_7b"]["device_memory_B"] == 141e9


def test_variants_are_columns_of_one_optimization():
    _, *variants = load(["suite=memory", "only=[activation_checkpointing]"])[0].variants
    assert [(one.name, one.module, dict(one.techniques)) for one in variants] == [
        ("activation_checkpointing.full", "activation_checkpointing", {"activation_checkpointing": {}}),
        (
            "activation_checkpointing.selective",
            "activation_checkpointing",
            {"activation_checkpointing": {"mode": "selective"}},
        ),
    ]


@pytest.mark.parametrize("plus", ["+", "++"])
def test_a_workload_can_be_added_and_left_out(plus):
    shape = "num_hidden_layers:2,hidden_size:64,num_attention_heads:4,num_key_value_heads:2,"
    shape += "intermediate_size:256,vocab_size:99,max_position_embeddings:64,seq_len:33"
    words = ["suite=memory", f"{plus}suite.workloads.mine={{{shape}}}", "~suite.workloads.llama_7b"]
    run = load([*words, "hardware=h200"])[0]
    assert run.workloads["mine"]["optimizer"] == "adamw"
    assert run.workloads["mine"]["device_memory_B"] == 141e9
    assert "llama_7b" not in run.workloads


def test_a_workload_that_others_need_can_be_left_out():
    run = load(["suite=kernels", "~suite.workloads.copy", "~suite.workloads.step_5m_1k"])[0]
    assert not {"copy", "step_5m_1k"} & {*run.workloads, *run.reference_workloads}
    assert run.slow_bf16_workloads["step_bf16_small"] == ("step_5m_128", "step_30m_512", "step_60m_256")
    run = load(["suite=kernels", "~suite.workloads.matmul_bf16"])[0]
    assert "matmul_bf16_small" not in {*run.workloads, *run.reference_workloads, *run.slow_bf16_workloads}


def test_a_config_json_is_a_workload():
    run = load(
        [
            "suite=memory",
            LLAMA,
            "suite.hf_defaults.seq_len=32",
        ]
    )[0]
    workload = run.workloads["llama"]
    assert workload["hf_config"]["model_type"] == "llama"
    assert (workload["num_hidden_layers"], workload["seq_len"]) == (
        workload["hf_config"]["num_hidden_layers"],
        32,
    )


def test_what_hydras_grammar_forces_is_set():
    assert load(["suite=memory", "++seed=3", "limits={timeout_s: 9}"])[0].seed == 3


def test_under_a_launcher_of_ranks_its_executor_is_chosen_and_no_other(monkeypatch):
    assert load(["suite=memory"])[0].executor == "local"
    for name, value in SRUN.items():
        monkeypatch.setenv(name, value)
    assert load(["suite=memory"])[0].executor == "torchrun"
    with pytest.raises(ConfigError, match="executor=local: torchrun or srun started this process"):
        load(["suite=memory", "executor=local"])


def test_what_replaces_a_workload_where_bf16_is_slow_is_chosen_with_it():
    run = load(["suite=kernels", "workloads=[step_30m_512]"])[0]
    assert "step_30m_512" in run.slow_bf16_workloads["step_bf16_small"]
    assert {"step_30m_512", "step_bf16_small"} <= run.workloads.keys()
    assert "attention_bf16_small" not in run.workloads
    by_name = load(["suite=kernels", "workloads=[step_bf16_small]"])[0]
    assert "step_bf16_small" not in by_name.slow_bf16_workloads  # it is run wherever it is asked for
    assert load(["suite=memory"])[0].slow_bf16_workloads == {}


@pytest.mark.parametrize(
    ("workload", "bounds"),
    [
        ("softmax_small", {"copy", "matmul_fp32"}),
        ("step_30m_512", {"copy", "matmul_fp32", "matmul_bf16", "matmul_bf16_small"}),
        ("step_5m_1k_swiglu", set()),  # the report has no bound for a step of which one part is replaced
        ("rms_norm_64m_bf16_gpu", {"copy_gpu", "matmul_bf16_gpu"}),
        ("copy", {"copy"}),
    ],
)
def test_only_the_bounds_that_a_chosen_workload_needs_are_chosen_with_it(workload, bounds):
    run = load(["suite=kernels", f"workloads=[{workload}]"])[0]
    assert run.workloads.keys() & set(run.reference_workloads) == bounds


def test_all_workloads_come_with_all_bounds():
    run = load(["suite=kernels"])[0]
    assert set(run.reference_workloads) <= run.workloads.keys()


@pytest.mark.parametrize(
    ("key", "name", "listed", "message"),
    [
        ("slow_bf16_workloads", "step_bf16_small", ["step_30"], "no such name; did you mean step_30m_512"),
        ("slow_bf16_workloads", "step_bf16_small", 1, "step_bf16_small=1: expected a list"),
        ("reference_workloads", "copy", [], r"reference_workloads.copy=\[\]: expected a list"),
        ("reference_workloads", "copy", [{"devise": "any"}], r"copy\[0\].devise: no such name; did you mean"),
    ],
)
def test_a_mistake_in_what_workloads_need_is_refused(key, name, listed, message):
    config = OmegaConf.to_container(compose_run("kernels", {}, []), resolve=True)
    config["suite"][key][name] = listed
    with pytest.raises(ConfigError, match=message) as error:
        checked(config, "kernels", "local")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("key", ["reference_workloads", "slow_bf16_workloads"])
def test_a_needed_workload_that_does_not_exist_is_refused(key):
    suite = {"workloads": {"copy": {}}, "reference_workloads": {}, "slow_bf16_workloads": {}}
    with pytest.raises(ConfigError, match=f"suite.{key}.copie: no such name; did you mean copy"):
        check_names({**suite, key: {"copie": ["copy"]}})


def test_the_baseline_comes_first():
    assert load(["suite=memory"])[0].variants[0].name == "baseline"


def test_a_field_that_a_workload_leaves_to_its_default_may_be_set():
    (run,) = load(["suite=interconnect", "suite.workloads.ddp.num_hidden_layers=1"])
    assert run.workloads["ddp"]["num_hidden_layers"] == 1
    assert run.workloads["fsdp2"]["num_hidden_layers"] > 1
    with pytest.raises(
        ConfigError, match=r"suite.workloads.ddp.num_layers: no such name; did you mean num_hidden_layers\?"
    ):
        load(["suite=interconnect", "suite.workloads.ddp.num_layers=1"])


def test_one_name_needs_no_brackets():
    with_brackets = load(["suite=memory", "workloads=[llama_7b]", "only=[fsdp2]"])
    assert load(["suite=memory", "workloads=llama_7b", "only=fsdp2"]) == with_brackets


def test_what_was_asked_for_runs_before_the_reference_workloads():
    run = load(["suite=kernels", "workloads=[step_30m_512]", "only=[torch_compile]"])[0]
    names = list(run.workloads)
    first = [name for name in names if name not in run.reference_workloads]
    assert {"copy", "matmul_fp32"} <= set(names)
    assert names == [*first, *names[len(first) :]]
    assert "step_30m_512" in first
    assert set(names[len(first) :]) <= set(run.reference_workloads)
