"""Statements of the packages, each with the ways in which it can be broken.

Drawn are breaks that change what a program does wherever it runs:

- a condition negated, `and` for `or`, a comparison turned around, `x if c else y` the other way;
- `<` for `<=` and `>` for `>=` where one side counts: a whole number but 0, or a length;
- other arithmetic; 0 for a number, 1 for 0, True for False; a sign or a `not` left out;
- a call, an error, a `del` left out, `break` for `continue`; a loop over nothing; None for a value.

Not drawn is what as often as not changes nothing, so that no test could tell:

- `<` for `<=` between measured numbers, which are never equal, and at 0, where sums agree;
- a keyword argument left out: its value is a constant, and is then broken itself, or most often
  the default (a seed, threads, a time limit), or it has none, and any call at all would fail;
- texts: messages, names of fields (which would fail at once), logs, and imports.
"""

import ast
import itertools
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

PACKAGES = (
    "core", "models", "data", "runtimes", "export", "training", "results", "robustness", "service"
)  # fmt: skip
_WEIGHT = 3  # of statements whose place names one of these
_WEIGHTED = re.compile(
    "scor|result|evaluat|interval|stats|mask|limit|allow|key|resum|state|parity|tolerance"
)
_PAIRS = (
    (ast.Lt, ast.GtE), (ast.LtE, ast.Gt), (ast.Eq, ast.NotEq), (ast.Is, ast.IsNot),
    (ast.In, ast.NotIn), (ast.And, ast.Or), (ast.Add, ast.Sub), (ast.Mult, ast.Div),
)  # fmt: skip
_OPERATORS: dict[type[ast.AST], type[ast.AST]] = {
    **dict(_PAIRS),
    **{other: one for one, other in _PAIRS},
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
_BOUNDARIES: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt
}  # fmt: skip
_COUNTING = re.compile(r"(len\(.*\)|.*\.(ndim|shape\[[^]]*\]|count\(.*\)))", re.DOTALL)
_LOGGING = re.compile(r"(self\.)?(_?log(ger|ging)?|warnings)\.", re.IGNORECASE)
_NEVER = ("TYPE_CHECKING", "__name__ == '__main__'")
_LOOP = {ast.Continue: "break", ast.Break: "continue", ast.Delete: "pass", ast.Raise: "pass"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One broken statement.

    Attributes:
        path: its file, from the root.
        line: where the statement begins.
        end: its last line; of a compound statement the last of its header.
        scope: qualified name of the function it stands in; empty where it runs at import.
        names: what it binds where it runs at import.
        before: the code that is replaced.
        after: what replaces it.
        start: where that code begins, in bytes of the file.
        stop: where it ends.
    """

    path: str
    line: int
    end: int
    scope: str
    names: tuple[str, ...]
    before: str
    after: str
    start: int
    stop: int

    def __str__(self) -> str:
        """`file:line  before -> after` on one line."""
        return f"{self.path}:{self.line}  {_short(self.before)}  ->  {_short(self.after)}"

    def apply(self, source: bytes) -> bytes:
        """The file's bytes with the statement broken."""
        return source[: self.start] + self.after.encode() + source[self.stop :]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Statement:
    path: str
    scope: str
    node: ast.stmt


def draw(root: Path, *, count: int, seed: str, packages: Sequence[str] = PACKAGES) -> list[Mutant]:
    """Draw statements of some packages, at least one of each, and break each in a drawn way.

    Args:
        root: the tree.
        count: how many, at least as many as there are packages.
        seed: any text; the same tree and seed give the same mutants.
        packages: the folders of the tree to draw from.
    """
    rng = random.Random(seed)
    files = (path for name in packages for path in sorted((root / name).rglob("*.py")))
    named = (path for path in files if path.name != "__init__.py")
    sources = {str(path.relative_to(root)): path.read_bytes() for path in named}
    drawn = [(rng.random(), each) for name in sources for each in _statements(name, sources[name])]
    drawn.sort(key=lambda pair: pair[0] ** (1 / _weight(pair[1])), reverse=True)
    order = [statement for _, statement in drawn]
    chosen: list[_Statement] = []
    for name in packages:
        of_package = (each for each in order if each.path.startswith(f"{name}/"))
        chosen.append(next(filter(_can_break, of_package)))
    rest = filter(_can_break, (each for each in order if each not in chosen))
    chosen += itertools.islice(rest, count - len(chosen))
    mutants = [_break(each, sources[each.path], rng) for each in chosen]
    return sorted(mutants, key=lambda mutant: (mutant.path, mutant.line))


def _weight(statement: _Statement) -> int:
    place = f"{statement.path}::{statement.scope}".lower()
    return _WEIGHT if _WEIGHTED.search(place) else 1


def _statements(path: str, source: bytes) -> Iterator[_Statement]:
    """Every statement, in the order of the file."""

    def walk(body: Sequence[ast.stmt], scope: str, *, running: bool) -> Iterator[_Statement]:
        """Those of a block and of the blocks in it."""
        for node in body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                inner = f"{scope}.{node.name}".strip(".")
                function = not isinstance(node, ast.ClassDef)
                yield from walk(node.body, inner, running=running or function)
                continue
            if isinstance(node, ast.If) and ast.unparse(node.test) in _NEVER:
                continue
            yield _Statement(path=path, scope=scope if running else "", node=node)
            for block in _blocks(node):
                yield from walk(block, scope, running=running)

    yield from walk(ast.parse(source).body, "", running=False)


def _can_break(statement: _Statement) -> bool:
    return bool(_breaks(statement.node, running=bool(statement.scope)))


def _blocks(node: ast.stmt) -> Iterator[list[ast.stmt]]:
    for name in ("body", "orelse", "finalbody"):
        yield getattr(node, name, [])
    for handler in getattr(node, "handlers", []):
        yield handler.body
    for case in getattr(node, "cases", []):
        yield case.body


def _break(statement: _Statement, source: bytes, rng: random.Random) -> Mutant:
    node = statement.node
    target, after = rng.choice(_breaks(node, running=bool(statement.scope)))
    start, stop = (_offset(source, *place) for place in (_begin(target), _end(target)))
    header = getattr(node, "body", None)
    last = header[0].lineno - 1 if header else node.end_lineno or node.lineno
    return Mutant(
        path=statement.path,
        line=node.lineno,
        end=max(node.lineno, last),
        scope=statement.scope,
        names=() if statement.scope else _bound(node),
        before=source[start:stop].decode(),
        after=after,
        start=start,
        stop=stop,
    )


def _begin(node: ast.expr | ast.stmt) -> tuple[int, int]:
    return node.lineno, node.col_offset


def _end(node: ast.expr | ast.stmt) -> tuple[int, int]:
    return node.end_lineno or node.lineno, node.end_col_offset or node.col_offset


def _offset(source: bytes, line: int, column: int) -> int:
    return sum(len(text) for text in source.splitlines(keepends=True)[: line - 1]) + column


def _bound(node: ast.stmt) -> tuple[str, ...]:
    stored = (n for n in ast.walk(node) if isinstance(n, ast.Name))
    return tuple(n.id for n in stored if isinstance(n.ctx, ast.Store))


def _short(code: str) -> str:
    line = " ".join(code.split())
    return line if len(line) <= 70 else f"{line[:67]}..."


Break = tuple[ast.expr | ast.stmt, str]


def _breaks(node: ast.stmt, *, running: bool) -> list[Break]:
    """The ways to break a statement: which part of it is replaced, and by what code."""
    if _is_plain(node):
        return []
    for kind, after in _LOOP.items():
        if isinstance(node, kind):
            return [(node, after)] if running else []
    found = [each for part in _header(node) for each in _of_expression(part, running=running)]
    if isinstance(node, ast.AugAssign):
        found += [(node, text) for text in _replaced(node, "op")]
    if isinstance(node, ast.If | ast.While):
        found.append((node.test, f"not ({ast.unparse(node.test)})"))
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call | ast.Await) and running:
        found.append((node, "pass"))
    return found or (_nothing(node) if running else [])


def _is_plain(node: ast.stmt) -> bool:
    """Whether a statement computes nothing: a docstring, an import, a yield, a line of the log."""
    if isinstance(node, ast.Expr):
        texts = isinstance(node.value, ast.Constant | ast.Yield | ast.YieldFrom)
        return texts or _LOGGING.match(ast.unparse(node)) is not None
    return isinstance(node, ast.Import | ast.ImportFrom | ast.Pass | ast.Global | ast.Nonlocal)


def _header(node: ast.stmt) -> list[ast.expr]:
    """The expressions of a statement that run before any block of it, without annotations."""
    parts = [getattr(node, name, None) for name in ("value", "test", "iter")]
    parts += [item.context_expr for item in getattr(node, "items", [])]
    return [part for part in parts if isinstance(part, ast.expr)]


def _nothing(node: ast.stmt) -> list[Break]:
    """The last resort: a value that is not there, a loop over nothing."""
    if isinstance(node, ast.For):
        return [(node.iter, "()")]
    value = getattr(node, "value", None)
    if isinstance(node, ast.Return | ast.Assign | ast.AnnAssign) and isinstance(value, ast.expr):
        return [] if ast.unparse(value) == "None" else [(value, "None")]
    return []


def _of_expression(whole: ast.expr, *, running: bool) -> Iterator[Break]:
    for node in _inside(whole):
        for kind, ways in _WAYS.items():
            if isinstance(node, kind):
                for after in ways(node):
                    if running or not isinstance(getattr(node, "op", None), ast.BitOr):
                        yield node, after


def _inside(node: ast.AST) -> Iterator[ast.expr]:
    """An expression and its parts, without what only makes a text."""
    if isinstance(node, ast.JoinedStr):
        return
    if isinstance(node, ast.expr):
        yield node
    for child in ast.iter_child_nodes(node):
        yield from _inside(child)


def _replaced(
    node: ast.expr | ast.stmt,
    field: str,
    others: Mapping[type[ast.AST], type[ast.AST]] = _OPERATORS,
) -> list[str]:
    """The code of a node under the operator that stands in for its own, if one does."""
    own = getattr(node, field)
    single = own[0] if isinstance(own, list) else own
    kind = others.get(type(single))
    if kind is None:
        return []
    setattr(node, field, [kind(), *own[1:]] if isinstance(own, list) else kind())
    text = ast.unparse(node)
    setattr(node, field, own)
    return [f"({text})" if isinstance(node, ast.expr) else text]


def _binary(node: ast.BinOp) -> list[str]:
    """Other arithmetic, but not on texts, which only gives a type error."""
    sides = (node.left, node.right)
    if any(isinstance(each, ast.JoinedStr) or _is_text(each) for each in sides):
        return []
    return _replaced(node, "op")


def _compared(node: ast.Compare) -> list[str]:
    """The comparison turned around, and, where one side counts, with its boundary moved."""
    counts = any(map(_is_count, (node.left, node.comparators[0])))
    return _replaced(node, "ops") + (_replaced(node, "ops", _BOUNDARIES) if counts else [])


def _is_count(node: ast.expr) -> bool:
    if isinstance(node, ast.Constant):
        return type(node.value) is int and node.value != 0
    return _COUNTING.fullmatch(ast.unparse(node)) is not None


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _constant(node: ast.Constant) -> list[str]:
    value = node.value
    if isinstance(value, bool):
        return [str(not value)]
    return [repr(type(value)(not value))] if isinstance(value, int | float) else []


def _unary(node: ast.UnaryOp) -> list[str]:
    if isinstance(node.op, ast.Not | ast.USub):
        return [f"({ast.unparse(node.operand)})"]
    return []


_WAYS: dict[type[ast.expr], Callable[..., list[str]]] = {
    ast.Compare: _compared,
    ast.BoolOp: lambda node: _replaced(node, "op"),
    ast.BinOp: _binary,
    ast.UnaryOp: _unary,
    ast.Constant: _constant,
    ast.IfExp: lambda node: [
        f"({ast.unparse(node.orelse)} if {ast.unparse(node.test)} else {ast.unparse(node.body)})"
    ],
}
