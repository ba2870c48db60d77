"""What a suite and an optimization must have: what lacks it is refused by the worker in one line."""

import shutil
import subprocess
import sys
from importlib import import_module
from types import ModuleType

import pytest
from places import SUPPORT
from toy.sweep import cell, group, sweep

from harness.config.code_fingerprint import ROOT
from harness.config.optimizations import code_of, read_yaml
from harness.config.protocols import SEE, check_optimization, check_suite, optimization_module
from harness.config.run import load, names
from harness.config.validation import ConfigError
from harness.records import Status

TOY = SUPPORT / "toy" / "toy_suites"
LATE = "def late(subject, time_s: float = 3): raise ValueError(f'late by {time_s}')\n"


@pytest.mark.parametrize("suite", names("suite"))
def test_every_suite_of_the_project_is_complete(suite):
    """And its package imports nothing, so that its workload.py can be imported without torch."""
    module = import_module(code_of(suite).module)
    own = read_yaml(ROOT / "conf" / "suite" / f"{suite}.yaml")
    check_suite(module, techniques=own.get("takes_techniques", False))
    assert hasattr(module, "apply_techniques") == own.get("takes_techniques", False)
    assert hasattr(module, "bf16_FLOP") == own.get("bf16_products", False)
    for variant in load([f"suite={suite}"])[0].variants:
        if (optimization := optimization_module(code_of(suite), variant.module)) is not None:
            check_optimization(optimization)
    assert not (code_of(suite).folder / "__init__.py").read_text()


def test_what_the_parent_imports_of_suites_needs_no_torch():
    code = f"""
import sys
from harness.config.optimizations import code_of, entry_of, optimizations, settings_of, workload_fields
from harness.config.protocols import function_of
for suite in {names("suite")}:
    workload_fields(suite)
    for name in optimizations(suite):
        entry = entry_of(suite, name)
        if function_of(code_of(suite), name) or entry.get("settings"):
            settings_of(code_of(suite), name)
print({{"torch", "triton", "transformers", "deepspeed", "scipy", "pandas", "ray"}} & set(sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "set()\n", done.stderr


def module(name, text):
    made = ModuleType(name)
    exec(text, vars(made))
    return made


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "suite",
            "def build(workload): ...",
            r"build\(workload\) is there, expected build\(workload, seed\); ch",
        ),
        (
            "suite",
            "x = 1",
            r".*conditions\(session\) is missing; .*apply_techniques\(subject, techniques\) is mis",
        ),
        ("fast", "def apply(subject, settings): ...", r".*expected apply\(subject\)"),
        ("fast", "class Settings: ...\ndef apply(subject): ...", r".*expected apply\(subject, settings\)"),
    ],
)
def test_a_module_that_lacks_functions_is_refused_in_one_line_that_names_them(name, text, message):
    made = module(f"suites.toy.{name}", text)
    with pytest.raises(ConfigError, match=rf"^suites/toy/{name}\.py: {message}") as error:
        check_suite(made, techniques=True) if name == "suite" else check_optimization(made)
    assert str(error.value).endswith(SEE)


def test_a_child_finds_an_optimization_in_a_folder_or_a_function_and_refuses_what_is_incomplete(
    tmp_path, monkeypatch
):
    suites = shutil.copytree(TOY, tmp_path / "toy_suites")
    (suites / "timed/folder").mkdir()
    (suites / "timed/folder/late.py").write_text(
        "def apply(subject):\n    raise ValueError('from the folder')\n"
    )
    (suites / "timed/incomplete.py").write_text("def apply(subject, further): ...\n")
    (suites / "timed/optimizations.py").write_text(LATE.replace("def late", "def by_function"))
    shutil.copytree(suites / "timed", suites / "spoilt")
    text = (suites / "spoilt/suite.py").read_text()
    (suites / "spoilt/suite.py").write_text(text.replace("def conditions(", "def circumstances("))
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{tmp_path}")
    said = {
        ("timed", "late"): "ValueError: from the folder",
        ("timed", "by_function"): "ValueError: late by 1.0",
        ("timed", "incomplete"): "toy_suites/timed/incomplete.py: apply(subject, further) is there",
        ("spoilt", "late"): "toy_suites/spoilt/suite.py: conditions(session) is missing",
    }
    cells = [cell(suite=suite, module=module, time_s=1.0) for suite, module in said]
    for record in sweep(tmp_path / "out", [group(one) for one in cells]).values():
        assert record.status == Status.CRASHED
        assert said[record.cell.suite, record.cell.module] in record.reason
