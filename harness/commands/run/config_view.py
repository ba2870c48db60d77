"""What Hydra's `--cfg` and `--info` show, for the configuration of one suite."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from harness.config.overrides import first_line, keys_of
from harness.config.run import Choice, choose, compose_run, load_suite
from harness.config.validation import ConfigError, unknown
from harness.config.variants.optimizations import CONF


def config_yaml(words: Sequence[str], package: str = "", resolve: bool = False) -> str:
    """Return the configuration that the words mean as YAML, or the part of it at `package`.

    It is checked as a run's is; raises ConfigError.
    """
    choice = _one_suite(words)
    load_suite(*choice)
    config: Any = compose_run(*choice)
    for depth, part in enumerate(path := package.split(".") if package else []):
        if not isinstance(config, DictConfig) or part not in config:
            raise unknown(f"--package {'.'.join(path[: depth + 1])}", part, keys_of(config))
        config = config[part]
    header = f"# @package {package}\n" if package else ""
    if not isinstance(config, DictConfig):
        raise ConfigError(f"--package {package}: a value, not a part of the configuration")
    try:
        return header + OmegaConf.to_yaml(config, resolve=resolve)
    except OmegaConfBaseException as error:
        raise ConfigError(first_line(error)) from None


def info_lines(words: Sequence[str], kind: str) -> Iterator[str]:
    """Yield what Hydra's `--info` would: the files that the configuration is composed of, and from where."""
    choice = _one_suite(words)
    if kind in ("searchpath", "all"):
        yield "# Config search path"
        yield f"{CONF}"
        yield "structured://harness.config_schema  (run_schema: names and types)"
    if kind in ("defaults", "all"):
        yield "# Defaults list: file, package"
        yield from (f"conf/{path}.yaml  {package or '<root>'}" for path, package, _ in _defaults(choice))
    if kind in ("defaults-tree", "all"):
        yield "# Defaults tree"
        yield from _tree(_defaults(choice))
    if kind in ("plugins", "all"):
        yield "# Plugins"
        yield "none: Hydra composes the configuration, the harness runs the cells (executor=NAME)"
    if kind in ("config", "all"):
        yield "# Config"
        yield config_yaml(words).rstrip()


def _one_suite(words: Sequence[str]) -> Choice:
    choice = choose(words)
    if choice.suite == "all":
        raise ConfigError("suite=all: a configuration is shown for one suite; name it")
    return choice


def _defaults(choice: Choice) -> list[tuple[str, str, str]]:
    """Return each file of the defaults list, with its package and the file that names it."""
    compose_run(choice.suite, choice.groups, ())  # registers the schema and the suite's optimizations
    groups = [f"suite={choice.suite}", *(f"{group}={option}" for group, option in choice.groups.items())]
    with initialize_config_dir(str(CONF), version_base="1.3"):
        loader = GlobalHydra.instance().config_loader()
        defaults = loader.compute_defaults_list("config", groups, RunMode.RUN).defaults
    paths = [(str(one.config_path), str(one.package or ""), str(one.parent or "")) for one in defaults]
    return [one for one in paths if (CONF / f"{one[0]}.yaml").is_file()]


def _tree(defaults: Sequence[tuple[str, str, str]], parent: str = "config", depth: int = 0) -> Iterator[str]:
    """Yield the defaults as a tree; each suite's `every` includes the YAML files of its folder."""
    if not depth:
        yield "config"
    for path, _, named_by in defaults:
        if named_by.removesuffix("/every") == parent and path != parent:
            yield f"{'  ' * (depth + 1)}{path}"
            yield from _tree(defaults, path, depth + 1)
