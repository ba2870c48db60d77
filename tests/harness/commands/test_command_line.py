"""What Hydra's users type: it works, or it is refused with the command to use instead."""

import re
import subprocess
import sys

import pytest
import yaml

from harness.commands.command_line import SHOWN, START, USAGE, Command, read
from harness.commands.entry import DONE, MISTAKE
from harness.commands.listing import WIDTH, config_yaml, list_lines
from harness.commands.main import main
from harness.config import techniques
from harness.config.code_fingerprint import ROOT


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ([], Command(())),
        (["plan", "suite=memory"], Command(("suite=memory", "plan=true"))),
        (["suite=memory", "--run", "seed=1"], Command(("suite=memory", "seed=1"))),
        (["suite=memory", "--help", "--cfg", "job"], Command((), "--help")),
        (["-h"], Command((), "--help")),
        (["a=b", "--cfg=job", "-p", "c", "--resolve"], Command(("a=b",), "--cfg", "job", "c", True)),
        (["--info", "suite=memory"], Command(("suite=memory",), "--info", "defaults-tree")),
        (["list", "hardware"], Command(("hardware",), "list")),
    ],
)
def test_flags_and_words_are_distinguished_in_any_order(argv, expected):
    assert read(argv) == expected


def test_help_names_every_flag_and_key(capsys):
    assert main(["--help"]) == DONE
    assert capsys.readouterr().out.strip() == USAGE.strip()
    assert all(flag in USAGE for flag in SHOWN)
    config = yaml.safe_load(config_yaml(["suite=memory"]))
    keys = {f"{key}.{name}" for key, part in config.items() if isinstance(part, dict) for name in part}
    keys |= {"suite", "from_results", *config}
    assert set(re.findall(r"^  ([a-z_.]+)=", USAGE, re.M)) <= keys
    assert main([]) == MISTAKE
    assert capsys.readouterr().out == START
    assert main(["--version"]) == DONE
    assert re.fullmatch(r"throughput-harness \S+, torch \S+\n", capsys.readouterr().out)


LIGHT = """
import sys
from harness.commands.main import main

def without(*modules):
    imported = set(modules) & set(sys.modules)
    assert not imported, imported

main(["--help"])
without("hydra", "omegaconf", "yaml", "torch", "pandas", "rich", "scipy", "numpy")
without("harness.report", "harness.claims.judge")
import harness.statistics
without("scipy", "numpy")
main(["compare", "--help"])
without("torch", "pandas", "scipy", "yaml", "hydra")
main(["list", "techniques"])
import harness.sweep.sweep
from harness.config.run import load
load(["suite=congestion"])
without("torch", "pandas", "scipy", "matplotlib", "jinja2")
main(["compare", "results/reference/overlap", "results/reference/overlap"])
main(["profile", "tests/data/traces/communication_without_nccl.json"])
without("torch")
"""


def test_what_only_prints_imports_no_library_that_it_does_not_need():
    done = subprocess.run([sys.executable, "-c", LIGHT], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_configuration_is_printed_as_yaml_and_means_the_same_again(capsys):
    assert main(["suite=congestion", "seed=3", "--cfg", "job"]) == DONE
    printed = yaml.safe_load(capsys.readouterr().out)
    assert printed["seed"] == 3
    assert set(printed["suite"]["optimizations"]) >= {"dcqcn", "receiver_admission"}
    words = ["suite=congestion", "repeats=${seed}", "seed=4"]
    assert "repeats: ${seed}" in config_yaml(words)
    assert "repeats: 4" in config_yaml(words, resolve=True)
    part = config_yaml(["suite=memory", "limits.timeout_s=9"], "limits")
    assert part == "# @package limits\ntimeout_s: 9.0\nmemory_B: null\n"


def test_techniques_are_listed_with_their_settings_defaults_and_what_is_allowed(monkeypatch):
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    lines = list(list_lines(["techniques"]))
    assert all(len(line) <= WIDTH for line in lines)
    assert [line.partition(" ")[0] for line in lines if not line.startswith(" ")] == techniques.names()
    listed = [line.split(maxsplit=1) for line in lines]
    assert ["inner_steps=4", "a whole number of at least 1"] in listed
    assert ["mode=full", "one of full, selective, per_op"] in listed
    memory = [line.split()[0] for line in list_lines(["suite=memory"]) if line]
    assert {"llama_7b", "activation_checkpointing.full"} <= set(memory)


def test_whoever_reads_a_list_may_stop():
    """As `head` does: the pipe is closed before anything is written to it."""
    command = [sys.executable, "-m", "harness", "list", "hardware"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process.stdout.close()
    assert (process.stderr.read(), process.wait()) == ("", 0)
    process.stderr.close()
