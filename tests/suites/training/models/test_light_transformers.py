"""transformers imported for one model: every name is there, and scipy is absent for that import alone."""

from __future__ import annotations

import subprocess
import sys
from textwrap import dedent

import pytest
from places import ROOT

pytest.importorskip("transformers", reason="the extra `hf` brings it")


def in_a_process(lines: str) -> None:
    """Run lines in a process that has imported transformers lightly."""
    start = """
        import sys
        from suites.training.models.light_transformers import import_lightly
        import_lightly()
        import transformers
        assert "transformers.models.bert" not in sys.modules and "scipy" not in sys.modules
    """
    program = dedent(start) + dedent(lines)
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, capture_output=True)


NAMES = {
    "a class": "assert transformers.BertModel.__module__ == 'transformers.models.bert.modeling_bert'",
    "a class, imported": "from transformers import LlamaForCausalLM",
    "a folder of a model": "from transformers.models import bert; assert bert.BertConfig().vocab_size",
    "a function": "from transformers import get_cosine_schedule_with_warmup",
    "an automatic class": "assert transformers.AutoConfig.for_model('gpt2').model_type == 'gpt2'",
    "none": """
        try:
            transformers.NoSuchModel
        except AttributeError as error:
            assert 'NoSuchModel' in str(error)
        else:
            raise AssertionError
    """,
    "scipy, afterwards": """
        from importlib.util import find_spec
        from transformers.utils import is_scipy_available
        assert is_scipy_available() == (find_spec('scipy') is not None)
    """,
}


@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_is_used_is_there(name: str) -> None:
    in_a_process(dedent(NAMES[name]))


def test_the_names_are_those_of_an_ordinary_import() -> None:
    in_a_process("""
        import subprocess
        ordinary = "import transformers; print(*transformers._class_to_module)"
        done = subprocess.run([sys.executable, "-c", ordinary], capture_output=True, text=True, check=True)
        names = done.stdout.split()
        assert len(names) > 1000
        transformers.BertConfig  # reads the names of all models
        assert set(names) == set(transformers._class_to_module)
    """)
