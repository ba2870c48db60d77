"""`suite.model=package.module:function`: the user's own code is what is traced, or one line says why not."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from small_steps import LLAMA, make_step

from harness.config.code_fingerprint import ROOT
from harness.config.run import load
from harness.config.validation import ConfigError
from harness.config.workloads import model_digest
from harness.records import Note, Reading, Unavailable
from harness.sweep.plan import plan
from suites.memory import suite as memory
from suites.memory.live_bytes import measure_peak
from suites.training.dry_run.dry_run import dry_run
from suites.training.techniques import build_step
from suites.training.trainer import CPU
from suites.training.workload import Workload

EXAMPLE = ROOT / "tests" / "examples" / "your_own_model"
TINY = Workload(
    num_hidden_layers=5, hidden_size=32, num_attention_heads=4, num_key_value_heads=4, intermediate_size=128,
    vocab_size=96, seq_len=24, micro_batch_size=2, max_position_embeddings=24,
)  # fmt: skip


@pytest.fixture(autouse=True)
def on_the_path(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLE))


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Return a function that writes a module and returns a workload whose model its function `make` is."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def written(source, name="make"):
        number = len(list(tmp_path.glob("*.py")))
        stem = f"{tmp_path.name}_{number}".replace("-", "_")
        (tmp_path / f"{stem}.py").write_text(source)
        return replace(TINY, model=f"{stem}:{name}")

    return written


TECHNIQUES = {
    "plain": [],
    "checkpointing": ["activation_checkpointing"],
    "bf16": [{"mixed_precision": {"gradients": "bf16"}}],
    "two micro-batches": [{"gradient_accumulation": {"steps": 2}}],
}


@pytest.mark.parametrize(
    ("function", "given"), [*(("make", given) for given in TECHNIQUES), ("from_transformers", "plain")]
)
def test_the_dry_run_of_the_example_is_the_real_steps_peak(function, given):
    """By the allocator's events of a real step on this CPU."""
    step = build_step(replace(TINY, model=f"my_models:{function}"), TECHNIQUES[given], 1)
    assert step.features.model_code == f"my_models:{function}"
    real = max(one.live_B for one in measure_peak(step, CPU, steady_steps=1).peaks)
    assert dry_run(step, memory.Device("host", measured=True)).peak_B == pytest.approx(real, rel=1e-6)


def test_few_layers_determine_the_rest_and_the_sharded_step_too():
    step = build_step(replace(TINY, num_hidden_layers=6, model="my_models:make"), ["fsdp2"], 1)
    assert step.layers_alike
    assert dry_run(step).peak_B == dry_run(step, full=True).peak_B


def test_it_is_not_our_transformer_that_is_traced():
    short = replace(TINY, num_hidden_layers=1)
    own, users = (build_step(replace(short, model=one), (), 1) for one in (None, "my_models:make"))
    assert dry_run(own).peak_B != dry_run(users).peak_B
    assert own.features.model_code == "suites.training.models.model"


BAD = {
    "raises": ("raise KeyError('no width')", "KeyError: 'no width' (", ":4)"),
    "no module": ("return 3", "returned a int; expected an nn.Module", ""),
    "not a scalar": (
        "return M(lambda x: x)",
        "forward returned a tensor of shape (2, 24, 96); expected a scalar",
        "",
    ),
    "no tensor": (
        "return M(lambda x: (x.mean(),))",
        "forward returned a tuple; expected the loss, a tensor",
        "",
    ),
    "no gradient": ("return M(lambda x: x.mean().detach())", "does not depend on any parameter", ""),
    "forward raises": ("return M(lambda x: x.mean() + missing)", "forward: NameError: name 'missing'", ":4)"),
    "reads a value": (
        "return M(lambda x: x.mean() * x.sum().item())",
        "DataDependent",
        "leave out what reads them",
    ),
    "reads a mask": ("return M(lambda x: x[x > 0].mean())", "Dynamic", "leave out what reads them"),
    "reads while built": (
        "m = M(lambda x: x.mean()); m.h.weight.sum().item(); return m",
        "item()",
        "leave out",
    ),
    "needs a GPU": ("return M(lambda x: x.mean()).cuda()", "", "create tensors without a device"),
    "needs a GPU later": (
        "return M(lambda x: x.cuda().mean())",
        "forward: ",
        "create tensors without a device",
    ),
    "no parameters": ("return nn.Identity()", "the model has no parameters", ""),
}
CODE = (
    "import torch\nfrom torch import nn\ndef make(w):\n    {}\n"
    + """
class M(nn.Module):
    def __init__(self, loss):
        super().__init__()
        self.e, self.h, self.loss = nn.Embedding(96, 8), nn.Linear(8, 96), loss
    def forward(self, tokens, targets):
        return self.loss(self.h(self.e(tokens)))
"""
)


@pytest.mark.parametrize("mistake", BAD)
def test_a_mistake_of_the_code_is_one_line(module, mistake):
    body, said, advice = BAD[mistake]
    with pytest.raises(Unavailable) as error:
        build_step(module(CODE.format(body)), (), 1)
    text = str(error.value)
    assert said in text
    assert advice in text
    assert "\n" not in text
    assert "M(" not in text


@pytest.mark.parametrize(
    ("source", "name", "said"),
    [
        ("def mak(w): ...", "make", "has no function make; did you mean mak?"),
        (
            "import nothing_of_this_name",
            "make",
            "no module 'nothing_of_this_name'; is its folder in PYTHONPATH?",
        ),
        ("1 / 0", "make", "ZeroDivisionError: division by zero ("),
        ("make = 3", "make", "has no function make"),
    ],
)
def test_a_module_that_cannot_be_used_is_one_line(module, source, name, said):
    with pytest.raises(Unavailable) as error:
        build_step(module(source, name), (), 1)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["suite=memory", "suite.model=my_models"],
            "suite.model='my_models': expected package.module:function",
        ),
        (["suite=memory", "suite.model=my_models:"], "expected package.module:function"),
        (["suite=memory", "suite.model=my_modles:make"], "no module my_modles; is its folder in PYTHONPATH?"),
        (
            ["suite=memory", "suite.workloads.gpt_5m.model=nowhere:f"],
            "suite.workloads.gpt_5m.model=nowhere:f: no mod",
        ),
        (["suite=kernels", "suite.model=my_models:make"], "this suite takes no model code"),
        (
            [
                "suite=memory",
                "suite.model=my_models:make",
                "suite.workload_from=tests/data/small_configs/gpt2.json",
            ],
            "give one of the two",
        ),
    ],
)
def test_what_the_parent_can_know_is_refused_before_anything_runs(words, said):
    with pytest.raises(ConfigError) as error:
        load(words)
    assert said in str(error.value)


def test_a_syntax_error_is_one_line_with_its_place(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "wrong_syntax.py").write_text("def make(w):\n    return (\n")
    with pytest.raises(ConfigError, match=r"=wrong_syntax:make: wrong_syntax.py:2: '\(' was never closed"):
        load(["suite=memory", "suite.model=wrong_syntax:make"])


def test_a_cell_changes_with_the_code_and_with_what_it_imports(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "sizes.py").write_text("WIDTH = 3\n")
    (tmp_path / "modelled.py").write_text("from sizes import WIDTH\ndef make(w): ...\n")

    def ids():
        model_digest.cache_clear()
        from harness.config.code_fingerprint import imports_of

        imports_of.cache_clear()
        (run,) = load(["suite=memory", "workloads=[gpt_5m]", "suite.model=modelled:make"])
        groups = plan(run, "env", lambda variant: "code", own_code=lambda one: model_digest(one["model"]))
        return {cell.id for group in groups for cell in group.cells}

    first = ids()
    assert ids() == first
    (tmp_path / "sizes.py").write_text("WIDTH = 4\n")
    assert not ids() & first


def test_the_parent_does_not_import_the_code(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "never_imported.py").write_text("raise SystemExit('imported')\n")
    assert load(["suite=memory", "suite.model=never_imported:make"])
    assert "never_imported" not in sys.modules


def subject_of(**fields):
    (run,) = load(["suite=memory", "workloads=[gpt_5m]"])
    sizes = {name: getattr(TINY, name) for name in ("hidden_size", "vocab_size", "seq_len")}
    sizes["num_hidden_layers"] = 2
    return memory.build({**run.workloads["gpt_5m"], **sizes, **fields}, 1)


def test_which_code_was_traced_is_a_condition_and_a_note_and_formulas_do_not_guess_its_attention():
    subject = subject_of(model="my_models:make", measurable=False)
    memory.check(subject)
    assert memory.conditions(subject)["model_code"] == "my_models:make"
    assert memory.conditions(subject)["attention"] == "unknown"
    taken = list(memory.sample(subject))
    notes = [one.text for one in taken if isinstance(one, Note)]
    methods = {one.method for one in taken if isinstance(one, Reading) and one.metric == "peak_memory"}
    assert "model_code: the model is built by my_models:make" in notes
    assert {"fake_step", "states_16"} <= methods
    assert not methods & {"korthikanti", "megatron"}
    assert any("which the user's own code chooses" in note for note in notes)


@pytest.mark.parametrize("given", ["attention", "tensor_parallel"])
def test_techniques_that_change_our_transformer_alone_are_refused(given):
    with pytest.raises(Unavailable, match=r"my_models:make|another model's"):
        dry_run(build_step(replace(TINY, model="my_models:make", tp_size=2), [given], 1))


def test_replaced_parts_go_to_a_function_that_takes_them(module):
    source = (
        CODE.format("return M(lambda x: x.mean())")
        + "def takes(w, parts):\n    parts['rms_norm']; return make(w)\n"
    )
    with pytest.raises(Unavailable, match="it takes no second argument, the replaced parts: rms_norm"):
        dry_run(replace(build_step(module(source), (), 1), functions={"rms_norm": torch.rms_norm}))
    workload = module(source, "takes")
    with pytest.raises(Unavailable, match="KeyError: 'rms_norm'"):
        build_step(workload, (), 1)


def test_our_transformer_still_says_what_it_is():
    assert memory.conditions(subject_of())["model_code"] == "suites.training.models.model"
    assert make_step(LLAMA).features.model_code == "suites.training.models.model"


def test_a_command_runs_it_from_the_users_folder(tmp_path):
    words = [
        "suite=memory",
        "workloads=[gpt_5m]",
        "only=[baseline]",
        "suite.model=my_models:make",
        f"out={tmp_path}",
    ]
    words += ["suite.workloads.gpt_5m.num_hidden_layers=2", "suite.workloads.gpt_5m.measurable=false"]
    environ = {**os.environ, "PYTHONPATH": f"{ROOT}:{EXAMPLE}"}
    done = subprocess.run(
        [sys.executable, "-m", "harness", *words], cwd=ROOT, capture_output=True, text=True, env=environ
    )
    assert done.returncode == 0, done.stderr
    (record,) = map(json.loads, (tmp_path / "records.jsonl").read_text().splitlines())
    assert record["status"] == "ok", record["reason"]
    assert record["conditions"]["model_code"] == "my_models:make"
    assert "my_models:make" in (tmp_path / "report.md").read_text()
