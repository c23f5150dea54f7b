"""Digests that name logical work: of declared code, of values, of bytes.

What belongs here: turning things into a stable hexadecimal name. The same source text, constants and helper functions
give the same digest in every process and on every machine; comments and docstrings do not count.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import json
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import polars as pl

__all__ = ["digest", "digest_bytes", "digest_file", "digest_function"]

_SIZE = 16
"""Bytes in a digest: 128 bits, so that among 2**40 partitions a collision has odds below 1e-14."""


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
        return repr(function)
    if id(function) in seen:
        return function.__qualname__
    seen.add(id(function))
    names = {name: function.__globals__[name] for name in _names(function) if name in function.__globals__}
    closure = inspect.getclosurevars(function).nonlocals
    home = function.__module__.partition(".")[0]
    return [
        _source(function),
        [[name, _value(value, home, seen)] for name, value in sorted({**names, **closure}.items())],
    ]


def _names(function: FunctionType) -> set[str]:
    names: set[str] = set()
    codes = [function.__code__]
    while codes:
        code = codes.pop()
        names.update(code.co_names)
        codes.extend(constant for constant in code.co_consts if inspect.iscode(constant))
    return names


def _value(value: Any, home: str, seen: set[int]) -> Any:
    if isinstance(value, FunctionType):
        return _describe(value, seen) if value.__module__.partition(".")[0] == home else value.__qualname__
    if isinstance(value, ModuleType | type):
        return value.__name__
    if isinstance(value, pl.Expr):
        return str(value)
    if isinstance(value, str | int | float | bool | None.__class__ | list | tuple | dict):
        return repr(value)
    if isinstance(value, set | frozenset):
        return sorted(map(repr, value))
    # Anything else may print its address, which differs between processes: it counts by its type only.
    return getattr(value, "path", type(value).__qualname__)


def _source(function: FunctionType) -> str:
    """The function's code without comments, docstrings, decorators and layout."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, SyntaxError, TypeError):
        # No source (an interactive session, a lambda inside a call): the byte code stands for it.
        code = function.__code__
        return code.co_code.hex() + repr([c for c in code.co_consts if not inspect.iscode(c)])
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
