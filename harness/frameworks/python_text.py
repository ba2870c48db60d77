"""Configurations written in Python, read as text: what their functions would return, without executing them.

Arithmetic, names, calls of the file's own functions and keyword arguments are followed. What only a run knows
(the environment, a command line, another file) is `Unresolved`, with its expression.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

OPERATORS: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
COMPARISONS: Mapping[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda one, several: one in several,
    ast.NotIn: lambda one, several: one not in several,
}
FUNCTIONS = {one.__name__: one for one in (int, float, max, min, round, dict)}
LARGEST = 10**30
"""A number beyond which none is calculated."""

DEEPEST, MOST = 20, 2000
"""Calls of the file's functions that are followed, within each other, and with loops' turns in all."""


CONDITIONS = "_conditions"
"""The key of what statements that are not followed may assign, each as `target: statement`."""


class Unresolved(str):
    """An expression that only a run can evaluate."""

    __slots__ = ()


class BuiltObject(dict[str, Any]):
    """Arguments of a call that is not followed, by keyword or position, with the name of what it builds."""

    def __init__(self, name: str, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self.name = name
        self.arguments = frozenset(values)  # of the call, next to what is assigned later


def python_values(text: str, function: str = "", path: Path | None = None) -> dict[str, Any]:
    """Return values by dotted key of what a function returns, or of every call of a script without one.

    The key `_class` has the name of what is built below another key; of a script each key begins with that
    name, as `Optimizer.lr`. `path`: of the file, next to which files of the same name are looked for that it
    imports from. Raises ValueError with one line for what is no Python, and where several functions return a
    configuration and none is named.
    """
    try:
        reader = _Reader(ast.parse(text), path)
        names = [name for name, one in reader.functions.items() if _is_configuration(one)]
        if not names and not function:
            packages = sorted({(one.module or "").partition(".")[0] for one, _ in reader.imported.values()})
            built = dict(_flat({one.name: one for one in reader.script()}))
            return {"_imports": packages, **built, **reader.noted()}
        name = function or (names[0] if len(names) == 1 else "")
        if name not in reader.functions:
            what = f"has no function {name}" if name else "has several configurations"
            listed = ", ".join(sorted(names, key=lambda one: "debug" in one)) or "none"
            raise ValueError(f"{what}; give one after a colon, as config=FILE.py:NAME: {listed}"[:280])
        result = reader.called(reader.functions[name], [], {})
    except (SyntaxError, RecursionError) as error:
        raise ValueError(f"not Python: {error}") from error
    if not isinstance(result, BuiltObject):
        raise ValueError(f"{name} returns {result!r}, which is no configuration"[:200])
    spec = result.get("model_spec")
    module = reader.module_of(spec.name) if isinstance(spec, BuiltObject) else ""
    return {"config": name, "_module": module, **dict(_flat(result)), **reader.noted()}


def built_by(tree: ast.Module, pattern: re.Pattern[str]) -> tuple[list[BuiltObject], list[str]]:
    """Return what a script builds by names of a pattern, and what may be assigned in it, as in CONDITIONS."""
    reader = _Reader(tree, with_options=False)
    reader.script()
    built = [one for one in reader.built if pattern.fullmatch(one.name)]
    of_built = [(key, why) for owner, key, why in reader.conditions if any(owner is one for one in built)]
    return built, list(dict.fromkeys(f"{key.partition('.')[2]}: {why}" for key, why in of_built))


def leaves_of(tree: BuiltObject) -> Iterator[tuple[str, Any]]:
    """Yield the leaves of what was built by dotted key, without classes' names and positional arguments."""
    for key, value in _flat(tree):
        last = key.rpartition(".")[2]
        if last != "_class" and not last.isdigit():
            yield key, value


def _is_configuration(function: ast.FunctionDef) -> bool:
    returns = ast.unparse(function.returns) if function.returns else ""
    return returns.endswith("Trainer.Config") and not function.name.startswith("_")


def _flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the leaves by dotted key; what a list builds is below its name, numbered if it repeats."""
    if isinstance(tree, BuiltObject):
        yield f"{prefix}_class", tree.name
    for name, value in tree.items():
        built = [one for one in value if isinstance(one, BuiltObject)] if isinstance(value, list) else []
        if built:
            classes = [one.name for one in built]
            names = [f"{one}{classes[:at].count(one) or ''}" for at, one in enumerate(classes)]
            yield f"{prefix}{name}", names
            for unique, one in zip(names, built, strict=True):
                yield from _flat(dict(one), f"{prefix}{name}.{unique}.")
        elif isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        elif not isinstance(value, ast.AST):
            yield f"{prefix}{name}", _plain(value) if isinstance(value, list) else value


def _plain(value: Any) -> Any:
    """Return an element of a list without what is of this module alone."""
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if isinstance(value, BuiltObject):
        return value.name
    return value if isinstance(value, int | float | None) or type(value) is str else str(value)


class _Returned(Exception):
    """Ends a function's body with its value."""


class _Reader:
    """Follows a module's statements."""

    def __init__(self, tree: ast.Module, path: Path | None = None, with_options: bool = True) -> None:
        self.path, self.with_options = path, with_options
        self.functions = {one.name: one for one in tree.body if isinstance(one, ast.FunctionDef)}
        for owner in (one for one in tree.body if isinstance(one, ast.ClassDef)):
            methods = [one for one in owner.body if isinstance(one, ast.FunctionDef)]
            self.functions |= {f"{owner.name}.{one.name}": one for one in methods}
        imports = [one for one in ast.walk(tree) if isinstance(one, ast.ImportFrom)]
        self.imported = {
            (name.asname or name.name): (one, name.name) for one in imports for name in one.names
        }
        self.main = [one for one in tree.body if isinstance(one, ast.If)]
        self.options: dict[str, Any] = {}  # defaults of the script's own command line
        self.built: list[BuiltObject] = []
        self.conditions: list[tuple[Any, str, str]] = []  # whose attribute, the target and the statement
        self.seen: set[int] = set()  # functions that were followed
        self.depth = self.calls = 0
        self.names: dict[str, Any] = {"__name__": "__main__"}
        self.body([one for one in tree.body if one not in self.main], self.names)

    def script(self) -> list[BuiltObject]:
        """Return what a script builds: its functions are followed with what they are passed on with."""
        top = self.built
        for _ in range(2):  # the first time finds the options' defaults
            self.built, self.seen = [*top], set()
            self.body(self.main, self.names)
            passed = [(value, [one]) for one in self.built for value in one.values()]
            followed = [one for one in passed if isinstance(one[0], ast.FunctionDef)]
            self.seen |= {id(function) for function, _ in followed}
            others: list[tuple[ast.FunctionDef, list[Any]]] = [
                (one, []) for one in self.functions.values() if id(one) not in self.seen
            ]
            for function, args in (*others, *followed):
                self.called(function, args, {})
        own = ("global_batch_size", "max_sequence_length")
        return [one for one in self.built if one.name[:1].isupper() or any(name in one for name in own)]

    def elsewhere(self, name: str) -> tuple[_Reader, ast.FunctionDef] | None:
        """Return the reader and the function of a file of the same name that this one imports."""
        node, own = self.imported.get(name, (None, ""))
        *folders, last = (node.module or "").split(".") if node else [""]
        if node is None or self.path is None or last != self.path.stem:
            return None
        parents = self.path.resolve().parents
        for base in parents[node.level - 1 : node.level] if node.level else parents:
            file = base.joinpath(*folders, self.path.name)
            if file.is_file() and file != self.path.resolve():
                reader = _Reader(ast.parse(file.read_text(encoding="utf-8")), file)
                return (reader, reader.functions[own]) if own in reader.functions else None
        return None

    def noted(self) -> dict[str, Any]:
        """Return what statements that are not followed may assign."""
        noted = dict.fromkeys(f"{key}: {why}" for _, key, why in self.conditions)
        return {CONDITIONS: list(noted)} if noted else {}

    def module_of(self, name: str) -> str:
        """Return the last part of the module that a name is imported from, of `from .` the file's folder."""
        node = self.imported.get(name, (None, ""))[0]
        if node is None or node.module:
            return ((node and node.module) or "").rpartition(".")[2]
        return self.path.resolve().parts[-1 - node.level] if self.path else ""

    def called(self, function: ast.FunctionDef, args: list[Any], keywords: Mapping[str, Any]) -> Any:
        """Return what a function of the file returns."""
        self.calls += 1
        if self.depth > DEEPEST or self.calls > MOST:
            return Unresolved(function.name)
        self.seen.add(id(function))
        taken = [*function.args.args, *function.args.kwonlyargs]
        local = {one.arg: Unresolved(one.arg) for one in taken}
        defaults = zip(reversed(function.args.args), reversed(function.args.defaults), strict=False)
        for one, default in (
            *defaults,
            *zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True),
        ):
            if default is not None:
                local[one.arg] = self.value(default, self.names)
        local |= dict(zip([one.arg for one in function.args.args], args, strict=False)) | dict(keywords)
        self.depth += 1
        try:
            self.body(function.body, {**self.names, **local})
        except _Returned as returned:
            return returned.args[0]
        finally:
            self.depth -= 1
        return None

    def body(self, statements: Sequence[ast.stmt], names: dict[str, Any]) -> None:
        """Follow statements; of a condition that only a run knows, what is done where it does not hold."""
        for one in statements:
            match one:
                case ast.Return():
                    raise _Returned(self.value(one.value, names) if one.value else None)
                case ast.Assign():
                    for target in one.targets:
                        self.assign(target, self.value(one.value, names), names)
                case ast.AnnAssign(value=ast.expr() as value):
                    self.assign(one.target, self.value(value, names), names)
                case ast.AugAssign():
                    whole = ast.BinOp(_load(one.target), one.op, one.value)
                    self.assign(one.target, self.value(whole, names), names)
                case ast.Expr():
                    self.value(one.value, names)
                case ast.If():
                    holds = self.holds(one.test, names)
                    if holds is None:
                        self.passed_over(one.body, f"if {ast.unparse(one.test)}", names)
                    self.body(one.body if holds else one.orelse, names)
                case ast.With() | ast.Try():
                    self.body(one.body, names)
                case ast.For(target=ast.Name()) if self.listed(one, names):
                    for value in self.value(one.iter, names):
                        self.calls += 1
                        self.assign(one.target, value, names)
                        self.body(one.body, names)
                case ast.For() | ast.While() | ast.Match() | ast.Delete():
                    for target in self.passed_over([one], ast.unparse(one).partition("\n")[0], names):
                        self.assign(target, Unresolved(ast.unparse(target)), names)
                case _:
                    pass

    def holds(self, test: ast.expr, names: Mapping[str, Any]) -> bool | None:
        """Return whether a condition holds; None where only a run knows."""
        negated = isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)
        inner = test.operand if isinstance(test, ast.UnaryOp) and negated else test
        value = self.value(inner, names)
        returned = isinstance(value, BuiltObject) and isinstance(inner, ast.Call)
        return None if returned or isinstance(value, Unresolved) else bool(value) != negated

    def listed(self, loop: ast.For, names: Mapping[str, Any]) -> bool:
        """Return whether a loop's values are known and it ends with the last of them."""
        ends = (ast.Break, ast.Continue, ast.Return)
        ends_early = any(isinstance(one, ends) for one in ast.walk(loop))
        return isinstance(self.value(loop.iter, names), list) and not ends_early and self.calls < MOST

    def passed_over(
        self, statements: Sequence[ast.stmt], why: str, names: Mapping[str, Any]
    ) -> Sequence[ast.expr]:
        """Return the names and attributes that statements assign, and note those that may be settings."""
        nodes = [node for one in statements for node in ast.walk(one)]
        stored = (ast.Name, ast.Attribute)
        targets = [one for one in nodes if isinstance(one, stored) and not isinstance(one.ctx, ast.Load)]
        named = [ast.unparse(one) for one in targets if isinstance(one, ast.Attribute)]
        own = [one for one in named if not one.startswith("self.")]
        self.conditions += [(names.get(one.partition(".")[0]), one, why) for one in own]
        return targets

    def assign(self, target: ast.expr, value: Any, names: dict[str, Any]) -> None:
        """Give a name, an attribute or an element of what was built a value."""
        match target:
            case ast.Name():
                names[target.id] = value
            case ast.Tuple() if isinstance(value, list) and len(value) == len(target.elts):
                for one, element in zip(target.elts, value, strict=True):
                    self.assign(one, element, names)
            case ast.Attribute():
                owner = self.value(target.value, names)
                if isinstance(owner, Unresolved) and isinstance(target.value, ast.Attribute):
                    owner = BuiltObject("", {})
                    self.assign(target.value, owner, names)
                if isinstance(owner, BuiltObject):
                    owner[target.attr] = value
            case _:
                pass

    def value(self, node: ast.expr, names: Mapping[str, Any]) -> Any:
        """Return the value of an expression."""
        match node:
            case ast.Constant():
                return node.value
            case ast.Name():
                return names.get(node.id, self.functions.get(node.id, Unresolved(node.id)))
            case ast.Attribute():
                return self.attribute(node, names)
            case ast.List() | ast.Tuple():
                return [self.value(one, names) for one in node.elts]
            case ast.Dict():
                pairs = zip(node.keys, node.values, strict=True)
                return {str(self.value(k, names)): self.value(v, names) for k, v in pairs if k is not None}
            case ast.Subscript():
                owner, key = self.value(node.value, names), self.value(node.slice, names)
                if isinstance(owner, dict) and not isinstance(key, Unresolved) and str(key) in owner:
                    return owner[str(key)]
            case ast.BinOp():
                return self.calculated(node, names)
            case ast.UnaryOp(op=ast.USub()):
                inner = self.value(node.operand, names)
                return -inner if isinstance(inner, int | float) else Unresolved(ast.unparse(node))
            case ast.UnaryOp(op=ast.Not()):
                inner = self.value(node.operand, names)
                return Unresolved(ast.unparse(node)) if isinstance(inner, Unresolved) else not inner
            case ast.IfExp():
                test = self.value(node.test, names)
                if not isinstance(test, Unresolved):
                    return self.value(node.body if test else node.orelse, names)
            case ast.BoolOp():
                values = [self.value(one, names) for one in node.values]
                ends = bool if isinstance(node.op, ast.Or) else operator.not_
                if not any(isinstance(one, Unresolved) for one in values):
                    return next((one for one in values if ends(one)), values[-1])
                if isinstance(node.op, ast.Or) and isinstance(node.values[0], ast.Attribute):
                    return values[-1]  # an option of the command line, or its default
            case ast.Compare(ops=[op], comparators=[other]):
                sides = self.value(node.left, names), self.value(other, names)
                if not any(isinstance(one, Unresolved) for one in sides):
                    try:
                        return COMPARISONS[type(op)](*sides)
                    except TypeError:
                        pass
            case ast.Call():
                return self.call(node, names)
            case _:
                pass
        return Unresolved(ast.unparse(node))

    def attribute(self, node: ast.Attribute, names: Mapping[str, Any]) -> Any:
        """Return an attribute of what was built, an option's default, or the member of an enumeration."""
        owner = self.value(node.value, names)
        if isinstance(owner, Mapping):
            return owner.get(node.attr, self.options.get(node.attr, Unresolved(ast.unparse(node))))
        if isinstance(owner, Unresolved) and owner[:1].isupper() and "(" not in owner:
            return node.attr
        return self.options.get(node.attr, Unresolved(ast.unparse(node)))

    def calculated(self, node: ast.BinOp, names: Mapping[str, Any]) -> Any:
        """Return a sum, product or power of two numbers."""
        left, right = self.value(node.left, names), self.value(node.right, names)
        numbers = all(isinstance(one, int | float) and abs(one) < LARGEST for one in (left, right))
        small = not isinstance(node.op, ast.Pow) or (numbers and abs(right) <= 64)
        if numbers and small and type(node.op) in OPERATORS:
            try:
                return OPERATORS[type(node.op)](left, right)
            except ArithmeticError:
                pass
        return Unresolved(ast.unparse(node))

    def call(self, node: ast.Call, names: Mapping[str, Any]) -> Any:
        """Return what a call returns: of the file's own functions their result, else what it builds."""
        name = ast.unparse(node.func)
        if isinstance(names.get(name), Unresolved):
            name = str(names[name])
        last = name.rpartition(".")[2]
        args = [self.value(one, names) for one in node.args if not isinstance(one, ast.Starred)]
        keywords = {one.arg: self.value(one.value, names) for one in node.keywords if one.arg}
        if name in self.functions:
            return self.called(self.functions[name], args, keywords)
        if found := self.elsewhere(name):
            return found[0].called(found[1], args, keywords)
        if name in FUNCTIONS:
            try:
                return FUNCTIONS[name](*args, **keywords)
            except (TypeError, ValueError):
                return Unresolved(ast.unparse(node))
        if name == "setattr" and len(args) == 3 and isinstance(args[0], BuiltObject):
            known = not isinstance(args[1], Unresolved)
            args[0].update({args[1]: args[2]} if known else dict.fromkeys(args[0], Unresolved(args[1])))
            return None
        if last == "add_argument" and args:
            if self.with_options:
                self.options[str(args[0]).lstrip("-").replace("-", "_")] = keywords.get("default")
            return None
        owner = self.value(node.func.value, names) if isinstance(node.func, ast.Attribute) else None
        first = args[0] if args else None
        if isinstance(owner, BuiltObject):  # a method that returns the changed object
            return owner
        if last == "replace" and isinstance(first, BuiltObject):
            return BuiltObject(first.name, {**first, **keywords})
        if last.startswith("to_") and isinstance(first, BuiltObject):
            return first
        if last in ("cast", "deepcopy") and args:
            return args[-1]
        if last == "getattr" and len(args) > 1:
            return Unresolved(f"{first}.{args[1]}")
        if last == "partial":
            name = str(args.pop(0))
        own = {str(index): one for index, one in enumerate(args)}
        built = BuiltObject(name.removesuffix(".Config"), {**own, **keywords})
        self.built.append(built)
        return built


def _load(target: ast.expr) -> ast.expr:
    return ast.parse(ast.unparse(target), mode="eval").body
