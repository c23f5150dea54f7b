"""What a user writes about a table's rows: ordinary pandera models, plus a severity for every rule.

A :class:`Contract` is a ``pandera.polars.DataFrameModel``; every pandera check keeps working, in pandera as well. What
this module adds travels in pandera's own ``metadata`` under the key ``"medallion"``, so that a plain
``DataFrameSchema`` can carry the same.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import pandera.backends.polars.builtin_checks  # noqa: F401 - must be registered before the first check is made
import pandera.polars as pa
import polars as pl

from medallion.errors import DeclarationError
from medallion.pipeline_rule import PipelineRule
from medallion.severity import CRITICAL, ERROR, INFO, WARNING, Severity

__all__ = [
    "CRITICAL",
    "ERROR",
    "INFO",
    "METADATA_KEY",
    "RULE_ATTRIBUTE",
    "WARNING",
    "Contract",
    "FrameRule",
    "Reference",
    "Severity",
    "field",
    "rule",
    "schema_of",
]

METADATA_KEY = "medallion"


@dataclass(frozen=True)
class Reference:
    """A column whose values must be known in another table's committed version."""

    table: Any
    column: str


class Contract(pa.DataFrameModel):
    """Base class of contracts. Text is coerced to the declared types; what cannot be coerced is quarantined as text."""

    _pipeline_rules: ClassVar[dict[str, PipelineRule]] = {}

    class Config:
        """pandera's options; ``coerce`` is on, because sources deliver text."""

        coerce = True
        strict = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        # pandera takes every public attribute for a column, so the rules about partitions are taken out first.
        rules = {name: value for name, value in vars(cls).items() if isinstance(value, PipelineRule)}
        for name in rules:
            delattr(cls, name)
        cls._pipeline_rules = {**getattr(cls, "_pipeline_rules", {}), **rules}
        super().__init_subclass__(**kwargs)  # type: ignore[no-untyped-call] # pandera does not annotate it

    @classmethod
    def to_schema(cls) -> pa.DataFrameSchema:
        """The pandera schema of this model, with what its rules say beyond pandera in ``schema.metadata``."""
        schema = super().to_schema()
        rules: dict[str, FrameRule] = {}
        for base in reversed(cls.__mro__):
            for name, value in vars(base).items():
                declared = getattr(getattr(value, "__func__", None), RULE_ATTRIBUTE, None)
                if declared is not None:
                    rules[name] = declared
        schema.metadata = {**(schema.metadata or {}), METADATA_KEY: {"rules": rules, "pipeline": cls._pipeline_rules}}
        return schema


def schema_of(contract: Any, where: str = "contract") -> pa.DataFrameSchema:
    """The pandera schema of a model, or the schema itself.

    Raises:
        DeclarationError: for anything else.
    """
    if isinstance(contract, pa.DataFrameSchema):
        return contract
    if isinstance(contract, type) and issubclass(contract, pa.DataFrameModel):
        schema: pa.DataFrameSchema = contract.to_schema()
        own = getattr(contract.Config, "metadata", None) or {}  # pandera keeps it out of the schema
        if METADATA_KEY in own:
            found = schema.metadata or {}
            merged = {**own[METADATA_KEY], **found.get(METADATA_KEY, {})}
            schema.metadata = {**own, **found, METADATA_KEY: merged}
        return schema
    raise DeclarationError(f"{where}: {contract!r} is neither a Contract nor a pandera DataFrameSchema")


def field(
    *,
    severity: Severity | Mapping[str, Severity] = ERROR,
    known_in: Any = None,
    format: str | None = None,  # noqa: A002 - the word that everybody uses for it
    metadata: Mapping[str, Any] | None = None,
    **checks: Any,
) -> Any:
    """A column of a contract: ``pandera.Field`` with a severity.

    Args:
        severity: of all rules of this column, or by rule: ``{"le": WARNING, "not_null": CRITICAL}``. Rule names are
            pandera's short ones (``gt``, ``ge``, ``isin``, ``str_matches`` ...), ``not_null``, ``unique``, ``type``
            and ``known_in``. What is not named is ERROR.
        known_in: a declared table with a one-column key, or ``(table, "column")``: every value that is not null must
            be there, in the version that is pinned when the partition is refined.
        format: how text is parsed into a date or time (chrono's letters, as ``"%d.%m.%Y"``); ISO 8601 if not given.
        metadata: pandera metadata of your own.
        **checks: everything else is given to ``pandera.Field``.

    Raises:
        DeclarationError: for a reference to a table without a one-column key.
    """
    extra: dict[str, Any] = {"severity": severity}
    if known_in is not None:
        extra["known_in"] = _reference(known_in)
    if format is not None:
        extra["format"] = format
    return pa.Field(metadata={**(metadata or {}), METADATA_KEY: extra}, **checks)


def _reference(target: Any) -> Reference:
    table, column = target if isinstance(target, tuple) else (target, None)
    key = getattr(table, "key", None)
    if not key:
        raise DeclarationError(
            f"known_in={target!r}: give a declared silver or gold table, as known_in=products, or "
            "known_in=(products, 'product_id')"
        )
    if column is None:
        if len(key) != 1:
            raise DeclarationError(
                f"known_in={table.path}: its key is {list(key)}; name one, as known_in=({table.name}, {key[0]!r})"
            )
        column = key[0]
    return Reference(table, column)


class _Rows:
    """Stands for the rows inside a rule: ``rows.quantity`` is ``pl.col("quantity")``."""

    def __getattr__(self, name: str) -> pl.Expr:
        if name.startswith("__"):
            raise AttributeError(name)
        return pl.col(name)

    def __getitem__(self, name: str) -> pl.Expr:
        return pl.col(name)


RULE_ATTRIBUTE = "__medallion_rule__"
RuleFunction = TypeVar("RuleFunction", bound=Callable[..., pl.Expr])


@dataclass(frozen=True)
class FrameRule:
    """What ``@rule`` says beyond the expression."""

    severity: Severity
    table: bool
    function: Callable[..., pl.Expr]
    ROWS: ClassVar[_Rows] = _Rows()


def rule(severity: Severity = ERROR, *, table: bool = False) -> Callable[[Callable[..., pl.Expr]], Any]:
    """Declare a rule over several columns, or over the whole partition, inside a contract.

    The function takes the rows and returns a polars expression that is true where the rule holds::

        @rule(WARNING)
        def discount_within_price(rows):
            return rows.coupon_disc <= rows.sales_value

        @rule(CRITICAL, table=True)
        def enough_rows(rows):
            return pl.len() >= 100

    Args:
        severity: of breaking it.
        table: the expression gives one value per partition; it is evaluated on the rows that are about to be
            published. A null counts as broken for a table rule and as held for a row rule (as pandera's
            ``ignore_na``).

    Raises:
        DeclarationError: if the decorated object is not a function of one argument.
    """

    def decorate(function: Callable[..., pl.Expr]) -> Any:
        if len(inspect.signature(function).parameters) != 1:
            raise DeclarationError(f"@rule {function.__name__}: write a function of one argument, the rows")

        def check(cls: type, data: Any) -> pl.LazyFrame:
            frame: pl.LazyFrame = data.lazyframe.select(function(FrameRule.ROWS))
            return frame

        check.__name__ = function.__name__
        check.__doc__ = function.__doc__
        setattr(check, RULE_ATTRIBUTE, FrameRule(severity, table, function))
        return pa.dataframe_check(check, name=function.__name__)

    return decorate
