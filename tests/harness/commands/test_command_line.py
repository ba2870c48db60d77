"""What Hydra's users type: it works, or it is refused with the command to use instead."""

import re
import subprocess
import sys

import pytest
import yaml

from harness.commands.command_line import SHOWN, USAGE, Command, read
from harness.commands.listing import WIDTH, config_yaml, info_lines, list_lines
from harness.config import optimizations, techniques
from harness.config.code_fingerprint import ROOT
from harness.config.run import names
from harness.config.validation import ConfigError

REFUSED = [
    (["-m", "suite=memory"], "use workloads=[a,b] only=[x,y] repeats=N"),
    (["suite=memory", "--multirun"], "runs the full matrix itself"),
    (["--config-name", "other"], "suite=NAME"),
    (["-cp", "there"], "conf/"),
    (["--config-dir=there"], "conf/suite/"),
    (["--hydra-help"], "--help"),
    (["--experimental-rerun", "x"], "give the same command"),
    (["--cfg"], "expected job"),
    (["--cfg", "hydra", "suite=memory"], "expected job"),
    (["--package", "limits", "suite=memory"], "only with --cfg: use --cfg job --package KEY"),
    (["--resolve", "suite=memory"], "only with --cfg: use --cfg job --resolve"),
    (["--hepl"], "did you mean --help?"),
    (["--version=3"], "takes no value"),
    (["--info=everything", "suite=memory"], "expected defaults-tree or"),
    (["-sc", "install=csh"], "install=bash or install=zsh"),
    (["--cfg", "job", "--version"], "one at a time"),
    (["list", "--info"], "one at a time"),
    (["--info", "workloads"], "expected defaults-tree or"),
    (["--info", "workloads", "suite=memory"], "expected defaults-tree or"),
]


def command(*words):
    done = subprocess.run([sys.executable, "-m", "harness", *words], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(("words", "said"), REFUSED, ids=lambda v: " ".join(v) if isinstance(v, list) else "")
def test_a_flag_that_is_not_ours_is_refused_in_one_line(words, said):
    with pytest.raises(ConfigError) as error:
        read(words)
    assert said in str(error.value)
    assert "\n" not in str(error.value)
    flag = next(word for word in words if word.startswith("-")).partition("=")[0]
    assert flag in str(error.value) or "-sc" in words


@pytest.mark.parametrize("twice", [["suite=memory", "suite=kernels"], ["+seed=1", "seed=2"]])
def test_a_key_that_is_given_twice_is_refused(twice):
    with pytest.raises(ConfigError, match=r"^(suite|seed): given twice$"):
        read(["only=[fsdp2]", *twice])


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ([], Command(())),
        (["plan", "suite=memory"], Command(("suite=memory", "plan=true"))),
        (["suite=memory", "--run", "seed=1"], Command(("suite=memory", "seed=1"))),
        (["suite=memory", "--help", "--cfg", "job"], Command((), "--help")),
        (["-h"], Command((), "--help")),
        (["-c", "job", "suite=memory"], Command(("suite=memory",), "--cfg", "job")),
        (
            ["suite=memory", "--cfg=job", "-p", "limits", "--resolve"],
            Command(("suite=memory",), "--cfg", "job", "limits", True),
        ),
        (["--info", "suite=memory"], Command(("suite=memory",), "--info", "defaults-tree")),
        (["-i", "all", "suite=memory"], Command(("suite=memory",), "--info", "all")),
        (["list", "hardware"], Command(("hardware",), "list")),
    ],
)
def test_flags_and_words_are_distinguished_in_any_order(argv, expected):
    assert read(argv) == expected


def test_help_is_short_and_names_every_flag_and_key():
    printed = command("--help")
    assert printed.strip() == USAGE.strip()
    assert printed.count("\n") <= 60
    assert all(len(line) <= 80 for line in printed.splitlines())
    assert all(flag in printed for flag in SHOWN)
    for key in set(re.findall(r"^  ([a-z_.]+)=", USAGE, re.M)) - {"from_results"}:
        assert key == "suite" or key in {name.partition(":")[0] for name in dotted("suite=memory")}, key


def dotted(*words):
    """Return the keys of a configuration, with those of a part behind its name."""
    import yaml

    config = yaml.safe_load(config_yaml(words))
    return {
        *config,
        *(f"{key}.{name}" for key, part in config.items() if isinstance(part, dict) for name in part),
    }


def test_the_parent_that_only_prints_imports_neither_hydra_nor_the_report():
    code = (
        "import sys; from harness.commands.main import main; main(['--help']); "
        "not_needed = ('hydra', 'omegaconf', 'yaml', 'torch', 'pandas', 'rich', 'scipy', 'harness.report'); "
        "sys.exit(any(m in sys.modules for m in (*not_needed, 'harness.claims.judge')))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True).returncode == 0


def test_a_run_is_loaded_without_pandas_and_scipy():
    code = (
        "import sys, harness.commands.main, harness.sweep.sweep\n"
        "from harness.config.run import load; load(['suite=congestion']); "
        "sys.exit(any(m in sys.modules for m in ('torch', 'pandas', 'scipy', 'matplotlib', 'jinja2')))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


def test_the_version_is_printed():
    assert re.fullmatch(r"throughput-harness \S+, torch \S+\n", command("--version"))


def test_the_configuration_is_printed_as_yaml_and_means_the_same_again():
    import yaml

    printed = yaml.safe_load(command("suite=congestion", "seed=3", "--cfg", "job"))
    assert printed["seed"] == 3
    assert set(printed["suite"]["optimizations"]) >= {"dcqcn", "receiver_admission"}
    assert printed["executor"] == {"workers": None}


def test_a_part_of_the_configuration_is_printed_with_its_package():
    text = config_yaml(["suite=memory", "limits.timeout_s=9"], "limits")
    assert text == "# @package limits\ntimeout_s: 9.0\nmemory_B: null\n"
    with pytest.raises(ConfigError, match=r"--package limit: no such name; did you mean limits\?"):
        config_yaml(["suite=memory"], "limit")
    with pytest.raises(ConfigError, match="--package seed: a value"):
        config_yaml(["suite=memory"], "seed")


def test_interpolations_are_resolved_where_that_is_asked_for():
    words = ["suite=congestion", "repeats=${seed}", "seed=4"]
    assert "repeats: ${seed}" in config_yaml(words)
    assert "repeats: 4" in config_yaml(words, resolve=True)


def test_a_configuration_that_would_be_refused_is_not_printed():
    with pytest.raises(ConfigError, match="at least 0"):
        config_yaml(["suite=memory", "seed=-1"])
    with pytest.raises(ConfigError, match="for one suite"):
        config_yaml(["suite=all"])


def test_info_shows_the_files_that_a_configuration_is_composed_of():
    tree = list(info_lines(["suite=congestion", "hardware=h200"], "defaults-tree"))
    assert "  hardware/h200" in tree
    assert tree.index("  suite/congestion") < tree.index("    suite/congestion/dcqcn")
    defaults = list(info_lines(["suite=congestion"], "defaults"))
    assert "conf/suite/congestion/dcqcn.yaml  suite.optimizations.dcqcn" in defaults
    everything = "\n".join(info_lines(["suite=congestion"], "all"))
    assert str(ROOT / "conf") in everything
    assert all(line in everything for line in defaults)
    assert "question:" in everything


def test_the_list_has_a_line_for_each_thing(monkeypatch):
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    lines = list(list_lines([]))
    assert all(any(line.startswith(f"{suite} ") for line in lines) for suite in names("suite"))
    assert any(line.startswith("h200 ") for line in lines)
    assert any(line.startswith("torchrun ") for line in lines)
    memory = list(list_lines(["suite=memory"]))
    for name in ("llama_7b", "activation_checkpointing.full"):
        (line,) = [line for line in memory if line.startswith(f"{name} ")]
        assert len(line) > len(name) + 10
    assert all(len(line) <= WIDTH for line in [*lines, *memory])
    every = list(list_lines(["variants"]))
    assert any(line.startswith("congestion dcqcn.strict ") for line in every)


def test_lines_are_as_long_as_the_terminal_is_wide(monkeypatch):
    longest = {}
    for columns in (60, 200):
        monkeypatch.setenv("COLUMNS", str(columns))
        longest[columns] = max(map(len, list_lines(["workloads"])))
    assert longest[60] == 60
    assert WIDTH < longest[200] <= 200


def test_a_suite_is_listed_with_its_question_without_quotes(monkeypatch):
    monkeypatch.setattr(optimizations, "read_yaml", lambda path: yaml.safe_load('question: "Why: so?"'))
    assert list(list_lines(["suites", "suite=memory"])) == ["memory  Why: so?"]


def test_techniques_are_listed_with_their_settings_defaults_and_what_is_allowed(monkeypatch):
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    lines = list(list_lines(["techniques"]))
    assert all(len(line) <= WIDTH for line in lines)
    assert [line.partition(" ")[0] for line in lines if not line.startswith(" ")] == techniques.names()
    listed = [line.split(maxsplit=1) for line in lines]
    assert ["local_sgd", "Local steps with an outer one, as in DiLoCo (arXiv 2311.08105)."] in listed
    assert ["inner_steps=4", "a whole number of at least 1"] in listed
    assert ["mode=full", "one of full, selective, per_op"] in listed
    assert ["targets=layers", "see suites/training/techniques/lora.py"] in listed
    assert ["buckets=null", "a whole number of at least 1 or null"] in listed


def test_techniques_are_listed_without_torch():
    code = (
        "import sys; from harness.commands.main import main; main(['list', 'techniques']); "
        "sys.exit(any(m in sys.modules for m in ('torch', 'pandas')))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True).returncode == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["workload"], "did you mean workloads"),
        (["suite=memry"], "did you mean memory"),
        (["seed=3"], "list takes suite=NAME alone"),
    ],
)
def test_a_list_of_what_there_is_not_is_refused(words, said):
    with pytest.raises(ConfigError, match=said):
        list(list_lines(words))


def test_a_command_without_words_shows_three_examples():
    done = subprocess.run([sys.executable, "-m", "harness"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stdout.count("python -m harness") == 4


def test_whoever_reads_a_list_may_stop():
    """As `head` does: the pipe is closed before anything is written to it."""
    command = [sys.executable, "-m", "harness", "list", "suite=kernels"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert (process.stderr.read(), process.wait()) == ("", 0)
    process.stderr.close()
