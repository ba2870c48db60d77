"""What a suite loads by name decides which cells are another: `loads` of its YAML."""

import pytest

from harness.config.validation import ConfigError
from harness.sweep import sweep
from harness.sweep.sweep import loaded_digest


def test_a_file_below_a_folder_or_of_the_configuration_makes_other_cells(tmp_path, monkeypatch):
    monkeypatch.setattr(sweep, "ROOT", tmp_path)
    monkeypatch.setattr(sweep, "CONF", tmp_path / "elsewhere")
    for name in ("suites/a/one.py", "elsewhere/b.yaml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("1")
    paths = ["suites/a", "conf/b.yaml"]
    before = loaded_digest(paths)
    (tmp_path / "suites/a/__pycache__").mkdir()
    (tmp_path / "suites/a/__pycache__/one.pyc").write_text("2")
    (tmp_path / "suites/a/.hidden.d").mkdir()
    assert loaded_digest(paths) == before
    digests = {before, loaded_digest([]), loaded_digest(["suites/a"])}
    (tmp_path / "elsewhere/b.yaml").write_text("2")
    digests.add(loaded_digest(paths))
    (tmp_path / "suites/a/two.py").write_text("1")
    digests.add(loaded_digest(paths))
    assert len(digests) == 5
    with pytest.raises(ConfigError, match=r"^suite\.loads: conf/c\.yaml: no such file"):
        loaded_digest(["conf/c.yaml"])
