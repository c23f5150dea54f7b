"""Digests that name logical work: of declared code, of values, of bytes.

What belongs here: turning things into a stable hexadecimal name. The same source text, constants and helper functions
give the same digest in every process and on every machine; comments and docstrings do not count.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import json
import re
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import polars as pl

__all__ = ["digest", "digest_bytes", "digest_file", "digest_function"]

_SIZE = 16
"""Bytes in a digest: 128 bits, so that among 2**40 partitions a collision has odds below 1e-14."""

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def digest(*parts: Any) -> str:
    """Name a structure of plain values: 32 hexadecimal characters."""
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"), default=str)
    return digest_bytes(text.encode())


def digest_bytes(data: bytes) -> str:
    """Name some bytes: 32 hexadecimal characters of SHA-256."""
    return hashlib.sha256(data).hexdigest()[: 2 * _SIZE]


def digest_file(path: Path) -> str:
    """Name a file by its bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[: 2 * _SIZE]


def digest_function(function: Callable[..., Any]) -> str:
    """Name a function by what it does: its code, and the helpers and constants of its own project that it uses.

    A helper counts if it is defined in the same top-level package as the function, so that mending a helper makes the
    partitions stale that were built with it. Other packages do not count; their versions are part of the evidence of
    every commit instead.
    """
    return digest(_describe(function, seen=set()))


def _describe(function: Callable[..., Any], seen: set[int]) -> Any:
    function = inspect.unwrap(function)
    if not isinstance(function, FunctionType):
        return _plain(function)
    if id(function) in seen:
        return function.__qualname__
    seen.add(id(function))
    used = _Used((function.__module__ or "").partition(".")[0], _names(function), seen)
    values = {name: function.__globals__[name] for name in used.names if name in function.__globals__}
    values |= inspect.getclosurevars(function).nonlocals
    defaults = [function.__defaults__, function.__kwdefaults__]
    return [
        _source(function),
        [[name, used.describe(value)] for name, value in sorted(values.items())],
        used.describe(defaults) if any(defaults) else None,
    ]


def _names(function: FunctionType) -> frozenset[str]:
    return frozenset(name for code in _codes(function) for name in code.co_names)


def _codes(function: FunctionType) -> list[CodeType]:
    """The function's own code and that of every function inside it."""
    codes = [function.__code__]
    for code in codes:
        codes += [constant for constant in code.co_consts if inspect.iscode(constant)]
    return codes


@dataclass(frozen=True)
class _Used:
    """What a function uses, described so that another process describes it alike.

    Attributes:
        home: the top-level package of the function.
        names: all names in its code, those of attributes included.
        seen: functions that are described already.
    """

    home: str
    names: frozenset[str]
    seen: set[int]

    def describe(self, value: Any) -> Any:
        """A value as plain parts."""
        match value:
            case dict():
                found: Any = [[repr(key), self.describe(each)] for key, each in value.items()]
            case list() | tuple():
                found = [self.describe(each) for each in value]
            case set() | frozenset():
                found = sorted(repr(self.describe(each)) for each in value)
            case pl.DataFrame() | pl.Series():
                found = value.to_init_repr(n=max(len(value), 1))
            case pl.Expr():
                found = str(value)
            case partial():
                found = [self.describe(part) for part in (value.func, value.args, value.keywords)]
            case ModuleType():
                # Of a module of the project, what the function reaches through it counts.
                reached = sorted(self.names & vars(value).keys()) if self._is_own(value.__name__) else []
                found = [value.__name__, [[name, self.describe(vars(value)[name])] for name in reached]]
            case _:
                found = self._callable(value) if callable(value) else _plain(value)
        return found

    def _callable(self, value: Any) -> Any:
        value = inspect.unwrap(value)
        if not self._is_own(getattr(value, "__module__", None) or ""):
            return getattr(value, "__qualname__", None) or _plain(value)
        if isinstance(value, type):
            return _source(value)
        return _describe(value, self.seen)

    def _is_own(self, module: str) -> bool:
        return module.partition(".")[0] == self.home


def _plain(value: Any) -> str:
    path = getattr(value, "path", None)
    if isinstance(path, str):
        return path  # a declared table: what it holds counts as an input, not as code
    shown = repr(value)
    # What prints its address differs between processes: it counts by its type only.
    return type(value).__qualname__ if _ADDRESS.search(shown) else shown


def _source(function: FunctionType | type) -> str:
    """The code of a function or class without comments, docstrings, decorators and layout."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, SyntaxError, TypeError):
        # No source (an interactive session, a lambda inside a call): the byte code stands for it.
        return function.__qualname__ if isinstance(function, type) else repr(list(map(_byte_code, _codes(function))))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            node.decorator_list = []
            first = node.body[0]
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                node.body = node.body[1:] or [ast.Pass()]
    return ast.unparse(tree)


def _byte_code(code: CodeType) -> Any:
    constants = [each for each in code.co_consts if not inspect.iscode(each)]
    shown = [sorted(map(repr, each)) if isinstance(each, frozenset) else each for each in constants]
    return code.co_code.hex(), code.co_names, shown
