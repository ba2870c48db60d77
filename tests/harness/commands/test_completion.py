"""What a shell completes: as functions, and in bash itself."""

import subprocess
import sys

import pytest

from harness.commands.listing import choices
from harness.config.code_fingerprint import ROOT
from harness.config.run import names


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("suite=", sorted(f"suite={name}" for name in [*names("suite"), "all"])),
        ("suite=me", ["suite=memory", "suite=memory_published"]),
        ("suite=congestion only=[baseline,dcqcn.s", ["only=[baseline,dcqcn.strict"]),
        ("hardware=h2", ["hardware=h20", "hardware=h200"]),
        ("suite=memory executor=slurm executor.part", ["executor.partition="]),
        ("suite=memory suite.workloads.gpt_5m.optimizer=a", ["suite.workloads.gpt_5m.optimizer=adamw"]),
        ("suite=memory ~suite.workloads.llama_70", ["~suite.workloads.llama_70b."]),
        ("suite=memory --cfg ", ["job"]),
        ("list har", ["hardware"]),
        ("suite=memory plan=", ["plan=false", "plan=true"]),
        ("suite=memory suite.nothing.x", []),
        ("suite=nothing only=[", []),
    ],
)
def test_names_and_keys_are_completed_as_far_as_the_suite_has_them(words, expected):
    assert choices(f"python -m harness {words}") == expected


COMPLETE = """
eval "$({python} -m harness --shell-completion install=bash)"
complete -p python > /dev/null || exit 3
COMP_LINE={line!r}; COMP_POINT=${{#COMP_LINE}}
_harness_completion {python} {word!r} before
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.mark.parametrize(
    ("line", "word", "expected"),
    [
        ("python -m harness suite=congestion only=[dcqcn.s", "[dcqcn.s", ["[dcqcn.strict"]),
        ("python -m other suite=me", "me", []),
    ],
)
def test_bash_is_offered_the_piece_that_it_replaces(line, word, expected):
    """Bash splits words at = and passes the last part; where Python runs something else, it has files."""
    script = COMPLETE.format(python=sys.executable, line=line, word=word)
    done = subprocess.run(["bash", "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == expected
