"""`suite.model=package.module:function`: the user's own code is what is traced, or one line says why not."""

import sys
from dataclasses import replace

import pytest
import torch

from harness.config.code_fingerprint import ROOT, imports_of
from harness.config.run import load
from harness.config.validation import ConfigError
from harness.config.workloads import model_digest
from harness.records import Unavailable
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
def on_the_path(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(EXAMPLE))
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.fixture
def module(tmp_path):
    """Return a function that writes a module and returns a workload whose model its function `make` is."""

    def written(source, name="make"):
        number = len(list(tmp_path.glob("*.py")))
        stem = f"{tmp_path.name}_{number}".replace("-", "_")
        (tmp_path / f"{stem}.py").write_text(source)
        return replace(TINY, model=f"{stem}:{name}")

    return written


BF16 = {"mixed_precision": {"gradients": "bf16"}}


@pytest.mark.parametrize(
    ("function", "techniques"),
    [("make", [BF16, "activation_checkpointing"]), ("from_transformers", [])],
    ids=str,
)
def test_the_dry_run_of_the_example_is_the_real_steps_peak(function, techniques):
    """By the allocator's events of a real step on this CPU."""
    step = build_step(replace(TINY, model=f"my_models:{function}"), techniques, 1)
    assert step.features.model_code == f"my_models:{function}"
    assert step.layers_alike
    real = max(one.live_B for one in measure_peak(step, CPU, steady_steps=1).peaks)
    assert dry_run(step, memory.Device("host", measured=True)).peak_B == pytest.approx(real, rel=1e-6)


BAD = {
    "raise KeyError('no width')": "KeyError: 'no width' (",
    "return 3": "returned a int",
    "return M(lambda x: x)": "a tensor of shape (2, 24, 96)",
    "return M(lambda x: x.mean().detach())": "does not depend on any parameter",
    "return M(lambda x: x.mean() + missing)": "forward: NameError: name 'missing'",
    "return M(lambda x: x.mean() * x.sum().item())": "DataDependent",
    "m = M(lambda x: x.mean()); m.h.weight.sum().item(); return m": "item()",
    "return M(lambda x: x.cuda().mean())": "forward: ",
    "return nn.Identity()": "no parameters",
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
UNUSABLE = {
    "def mak(w): ...": "has no function make; did you mean mak?",
    "import nothing_of_this_name": "'nothing_of_this_name'",
    "1 / 0": "ZeroDivisionError: division by zero (",
}


@pytest.mark.parametrize("body", [*BAD, *UNUSABLE])
def test_a_mistake_of_the_code_is_one_line(module, body):
    with pytest.raises(Unavailable) as error:
        build_step(module(CODE.format(body) if body in BAD else body), (), 1)
    text = str(error.value)
    assert (BAD | UNUSABLE)[body] in text
    assert "\n" not in text


def test_what_the_parent_can_know_is_refused_before_anything_runs(tmp_path):
    (tmp_path / "wrong_syntax.py").write_text("def make(w):\n    return (\n")
    of_memory, small = "suite=memory", "suite.workload_from=tests/data/small_configs/gpt2.json"
    for words, said in (
        ([of_memory, "suite.model=my_models:"], "suite.model='my_models:'"),
        ([of_memory, "suite.model=my_modles:make"], "no module my_modles"),
        (["suite=kernels", "suite.model=my_models:make"], "this suite takes no model code"),
        ([of_memory, "suite.model=my_models:make", small], "give one of the two"),
        ([of_memory, "suite.model=wrong_syntax:make"], "wrong_syntax.py:2: '(' was never closed"),
    ):
        with pytest.raises(ConfigError) as error:
            load(words)
        assert said in str(error.value), words


def test_a_cell_changes_with_the_code_and_with_what_it_imports_which_the_parent_does_not(tmp_path):
    (tmp_path / "sizes.py").write_text("WIDTH = 3\n")
    (tmp_path / "modelled.py").write_text("from sizes import WIDTH\ndef make(w): ...\nraise SystemExit\n")

    def ids():
        model_digest.cache_clear()
        imports_of.cache_clear()
        (run,) = load(["suite=memory", "workloads=[gpt_5m]", "suite.model=modelled:make"])
        groups = plan(run, "env", lambda variant: "code", own_code=lambda one: model_digest(one["model"]))
        return {cell.id for group in groups for cell in group.cells}

    first = ids()
    assert ids() == first
    (tmp_path / "sizes.py").write_text("WIDTH = 4\n")
    assert not ids() & first
    assert "modelled" not in sys.modules


def test_formulas_do_not_guess_its_attention():
    (run,) = load(["suite=memory", "workloads=[gpt_5m]"])
    sizes = {name: getattr(TINY, name) for name in ("hidden_size", "vocab_size", "seq_len")}
    more = {"num_hidden_layers": 2, "model": "my_models:make", "measurable": False}
    subject = memory.build({**run.workloads["gpt_5m"], **sizes, **more}, 1)
    memory.check(subject)
    assert memory.conditions(subject)["model_code"] == "my_models:make"
    assert memory.conditions(subject)["attention"] == "unknown"
    taken = memory.sample(subject)
    peaks = {one.method for one in taken if getattr(one, "metric", "") == "peak_memory"}
    assert {"fake_step", "states_16"} <= peaks
    assert not peaks & {"korthikanti", "megatron"}


def test_techniques_that_replace_parts_need_a_function_that_takes_them(module):
    for technique in ("attention", "tensor_parallel"):
        with pytest.raises(Unavailable, match=r"my_models:make|another model's"):
            dry_run(build_step(replace(TINY, model="my_models:make", tp_size=2), [technique], 1))
    takes = "\ndef takes(w, parts):\n    parts['rms_norm']; return make(w)\n"
    source = CODE.format("return M(lambda x: x.mean())") + takes
    with pytest.raises(Unavailable, match="it takes no second argument, the replaced parts: rms_norm"):
        dry_run(replace(build_step(module(source), (), 1), functions={"rms_norm": torch.rms_norm}))
    with pytest.raises(Unavailable, match="KeyError: 'rms_norm'"):
        build_step(module(source, "takes"), (), 1)
