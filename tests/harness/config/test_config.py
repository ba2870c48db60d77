"""What the command line may say, the quick selection among it, and how it is refused."""

import pytest
from launched import SRUN

from harness.claims.load import load_claims
from harness.config.run import left_out, load, select
from harness.config.validation import ConfigError
from harness.report import gather
from harness.report.markdown import counted
from harness.sweep.plan import Plan, read_plan, write_plan
from harness.sweep.sweep import stages

CHECKPOINTING = "activation_checkpointing"
SHAPE = "num_hidden_layers:2,hidden_size:64,num_attention_heads:4,num_key_value_heads:2,intermediate_size:256"
SHAPE += ",vocab_size:99,max_position_embeddings:64,seq_len:33"


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
    assert load(["suite=congestion"])[0].executor == "local"
    for name, value in SRUN.items():
        monkeypatch.setenv(name, value)
    assert load(["suite=congestion"])[0].executor == "torchrun"
    with pytest.raises(ConfigError, match="executor=local: torchrun or srun started this process"):
        load(["suite=congestion", "executor=local"])


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


QUICK = {"first": ["b"], "workloads": ["a"], "only": ["fast"]}


def chosen(quick=QUICK, file=None, **words):
    suite = {"quick": quick, "workloads": {"a": {}, "b": {}, "c": {}}, "workload_from": file, "trace": None}
    return select("toy", {"selection": "quick", "suite": suite, "workloads": [], "only": [], **words})


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"selection": "quik"}, "did you mean quick"),
        ({"file": "config.json"}, "selection=quick: suite.workload_from names the only workload"),
        ({"workloads": ["a"]}, "workloads: selection=quick chooses"),
        ({"quick": {}}, "suite toy has no quick selection; allowed: full"),
        ({"quick": {"first": ["d"]}}, r"suite.quick.first=\[d\]: no such name"),
        ({"quick": {"workloads": "a"}}, "expected a list of names"),
    ],
)
def test_a_selection_that_cannot_be_is_refused(changed, message):
    with pytest.raises(ConfigError, match=message):
        chosen(**changed)


def test_what_is_left_out_is_reported_with_the_command_that_runs_it(tmp_path):
    variants, taken = ["baseline", "fast", "slow"], ["a", "b", "baseline", "fast"]
    said = left_out("toy", chosen(), ["a", "b", "c"], variants, taken, "x")
    assert said == (
        "selection=quick leaves out 1 of 3 workloads: c",
        "selection=quick leaves out 1 of 3 variants: slow",
        "the rest: python -m harness suite=toy out=x",
    )
    write_plan(tmp_path, Plan("memory", (), {"a.b": "A, b"}, said))
    assert read_plan(tmp_path) == ("memory", (), {"a.b": "A, b"}, said)
    report = counted(gather("memory", [], [], tmp_path, {}, said))
    assert all(sentence in report for sentence in said)


def test_the_quick_run_of_memory_reports_the_papers_table_first():
    run = load(["suite=memory", "selection=quick"])[0]
    first, whole = stages(run)
    assert list(first.workloads) == list(whole.workloads)[:5]
    assert whole == run
    assert first.left_out[-1] == "still to be run: gpt_5m, llama_12m, gpt_25m_sgd"
    table_1 = [claim for claim in load_claims("memory") if claim.id.startswith("table_1")]
    claimed = {name for claim in table_1 for one in claim.interpretations for name in one.variants}
    assert set() != claimed <= {variant.name for variant in first.variants}
    (full,) = load(["suite=memory"])
    assert list(stages(full)) == [full]
