"""What a shell completes: as functions, and in bash itself."""

import subprocess
import sys

import pytest

from harness.commands.listing import choices, completion_lines
from harness.config.code_fingerprint import ROOT
from harness.config.run import names


def completed(words):
    return choices(f"python -m harness {words}")


def test_suites_are_completed():
    assert completed("suite=") == sorted(f"suite={name}" for name in [*names("suite"), "all"])
    assert completed("suite=me") == ["suite=memory", "suite=memory_published"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("suite=congestion only=[dcqcn.", ["only=[dcqcn.relaxed", "only=[dcqcn.strict"]),
        ("suite=congestion only=[baseline,dcqcn.s", ["only=[baseline,dcqcn.strict"]),
        (
            "suite=congestion workloads=[incast_16_",
            ["workloads=[incast_16_200g", "workloads=[incast_16_small"],
        ),
        ("hardware=h2", ["hardware=h200"]),
        ("executor=", ["executor=local", "executor=ray", "executor=slurm", "executor=torchrun"]),
        ("suite=memory executor=slurm executor.part", ["executor.partition="]),
        ("limits.t", ["limits.timeout_s="]),
        ("suite=memory plan=", ["plan=false", "plan=true"]),
        ("suite=memory suite.workloads.gpt_5m.optimizer=a", ["suite.workloads.gpt_5m.optimizer=adamw"]),
        (
            "suite=memory ~suite.workloads.llama_7",
            ["~suite.workloads.llama_70b.", "~suite.workloads.llama_7b."],
        ),
        ("suite=memory --cfg ", ["job"]),
        ("--ver", ["--version"]),
        ("list har", ["hardware"]),
        ("suite=memory suite.nothing.x", []),
        ("suite=nothing only=[", []),
    ],
)
def test_names_and_keys_are_completed_as_far_as_the_suite_has_them(words, expected):
    assert completed(words) == expected


def test_the_first_word_may_be_any_key():
    found = completed("")
    assert {"suite=", "only=", "workloads=", "out=", "limits.", "list", "from_results="} <= set(found)
    assert "executor=" in found
    assert "executor." in found


COMPLETE = """
eval "$({python} -m harness --shell-completion install=bash)"
complete -p python > /dev/null || exit 3
COMP_LINE={line!r}; COMP_POINT=${{#COMP_LINE}}
_harness_completion {python} {word!r} before
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


def in_bash(line, word):
    """Return what bash would offer, which splits words at = and passes the last part as `word`."""
    script = COMPLETE.format(python=sys.executable, line=line, word=word)
    done = subprocess.run(["bash", "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_bash_is_offered_the_piece_that_it_replaces():
    assert in_bash("python -m harness suite=me", "me") == ["memory", "memory_published"]
    assert in_bash("python -m harness suite=congestion only=[dcqcn.s", "[dcqcn.s") == ["[dcqcn.strict"]


def test_bash_completes_files_where_python_runs_something_else():
    assert in_bash("python -m other suite=me", "me") == []


def test_zsh_is_given_bashs_completion_and_it_can_be_removed():
    (zsh,), (bash,) = completion_lines("install=zsh"), completion_lines("install=bash")
    assert zsh.endswith(bash)
    assert "bashcompinit" in zsh
    assert "unset -f _harness_completion" in completion_lines("uninstall=bash")[0]
