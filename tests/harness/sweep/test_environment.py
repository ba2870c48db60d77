"""What machine this is: right, quick, and nothing of who or where."""

import getpass
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import numpy
import psutil

from harness.sweep import environment
from harness.sweep.environment import Gpu, describe


def test_it_describes_this_machine_and_names_neither_host_nor_user_nor_path():
    found = describe()
    assert found.memory_B == psutil.virtual_memory().total
    assert found.cores == len(psutil.Process().cpu_affinity())
    assert found.python == ".".join(map(str, sys.version_info[:3]))
    assert found.versions["numpy"] == numpy.__version__
    assert found.cpu in Path("/proc/cpuinfo").read_text()
    assert platform.release() in found.system
    text = json.dumps(found)
    for private in (platform.node(), os.path.expanduser("~"), str(Path(__file__).parents[3]), sys.prefix):
        assert private not in text
    assert f'"{getpass.getuser()}"' not in text


def test_its_digest_names_all_and_its_host_what_lasts():
    here = describe()
    assert (describe(), describe().digest) == (here, here.digest)
    later = here._replace(
        commit="0" * 40, dirty=not here.dirty, memory_B=here.memory_B - 4096, system="Linux 7"
    )
    assert later.digest != here.digest
    assert later.host == here.host
    for changed in (
        here._replace(cpu="another"),
        here._replace(memory_B=here.memory_B * 2),
        here._replace(versions={"torch": "2.11"}),
        here._replace(gpus=(Gpu("A GPU", 80 << 30),)),
        describe("2 x 8"),  # ranks that an executor brings
    ):
        assert changed.host != here.host
        assert changed.digest != here.digest
    rated = here._replace(matmul_FLOP_per_s={"fp32": 5e10, "bf16": 2e9})
    assert (rated.digest, rated.host) == (here.digest, here.host)
    assert rated.to_dict()["matmul_FLOP_per_s"]["bf16"] == 2e9


def git(folder, *words):
    settings = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    command = ["git", *settings, "-C", str(folder), *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_the_commit_and_whether_files_differ_from_it(tmp_path, monkeypatch):
    def found():
        return describe().commit, describe().dirty

    git(tmp_path, "init", "-q")
    (tmp_path / "file").write_text("1")
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "-qm", "first")
    commit = git(tmp_path, "rev-parse", "HEAD")
    monkeypatch.setattr(environment, "ROOT", tmp_path)
    assert found() == (commit, False)
    (tmp_path / "new").write_text("")
    assert found() == (commit, True)
    (tmp_path / "new").unlink()
    (tmp_path / "file").write_text("2")
    assert found() == (commit, True)
    (tmp_path / "site-packages").mkdir()  # the code lies deep in another checkout
    monkeypatch.setattr(environment, "ROOT", tmp_path / "site-packages")
    assert found() == ("", False)
    monkeypatch.setattr(environment, "ROOT", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))  # without git
    assert found() == ("", False)
