"""Import transformers without what building one language model does not need.

transformers reads the sources of all its models for the names that it exports, twice, and loads scipy for
the losses of object detectors. Here names are read when one is missing, and scipy is taken to be absent.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

HOME = "transformers.utils.import_utils"
"""Where transformers reads what its modules export."""

PREFIXES = {"transformers": "models", "transformers.models": None}
"""Modules of which not all names are read, and the prefix of models' modules in them."""

AUTO = "auto"
"""The folder of models whose names are read at once: it finds the classes of all others."""


def import_lightly() -> None:
    """Import transformers so, unless it is loaded already; do nothing where it is not installed."""
    if "transformers" in sys.modules or find_spec("transformers") is None:
        return
    finder = NamesOnDemand()
    sys.meta_path.insert(0, finder)
    try:
        with scipy_taken_as_absent():
            import_module("transformers")
            import_module("transformers.modeling_utils")
    finally:
        sys.meta_path.remove(finder)


@contextmanager
def scipy_taken_as_absent() -> Iterator[None]:
    """Let `find_spec` not find scipy inside the block, unless it is loaded already."""
    if "scipy" in sys.modules:
        yield
        return
    sys.modules["scipy"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules["scipy"]
        is_available: Any = getattr(sys.modules.get(HOME), "is_scipy_available", None)
        if hasattr(is_available, "cache_clear"):
            is_available.cache_clear()


class NamesOnDemand(MetaPathFinder, Loader):
    """Loads `transformers.utils.import_utils`, and replaces what reads the names of models."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the module's spec with this loader in front of its own."""
        spec = PathFinder.find_spec(fullname, path) if fullname == HOME else None
        if spec is not None:
            self._own, spec.loader = spec.loader, self
        return spec

    def exec_module(self, module: ModuleType) -> None:
        """Run the module, then replace what reads names."""
        assert self._own is not None
        self._own.exec_module(module)
        changed: Any = module
        define, lazy = changed.define_import_structure, changed._LazyModule
        base: Any = lazy
        models = Path(str(module.__file__)).parents[1] / "models"

        def of_some(module_path: Any, prefix: str | None = None) -> Any:
            if Path(module_path) not in (models, models / "__init__.py"):
                return define(module_path, prefix)
            return define(str(models / AUTO), AUTO if prefix is None else f"{prefix}.{AUTO}")

        class CompletedModule(base):  # type: ignore[misc]
            """A module of lazily imported names, which reads those of all models when one is missing."""

            def __getattr__(self, name: str) -> Any:
                try:
                    return super().__getattr__(name)
                except AttributeError:
                    prefix = PREFIXES.get(self.__name__, "")
                    if prefix == "" or "completed" in vars(self) or name.startswith("__"):
                        raise
                folder = Path(self.__path__[0])
                if (folder / f"{name}.py").is_file() or (folder / name).is_dir():
                    return import_module(f"{self.__name__}.{name}")
                full = lazy(self.__name__, self.__file__, define(str(models), prefix), self.__spec__)
                self._modules |= full._modules
                self._class_to_module.update(full._class_to_module)
                self._object_missing_backend.update(full._object_missing_backend)
                self.completed = True
                return getattr(self, name)

        changed.define_import_structure, changed._LazyModule = of_some, CompletedModule
