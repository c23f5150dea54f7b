"""Whatever is declared and whatever comes: a verdict or a DeclarationError, no row lost, no panic."""

import datetime as dt
import warnings
from collections import Counter
from typing import Any

import pandera.polars as pa
import polars as pl
import pytest

from medallion.contract import METADATA_KEY
from medallion.errors import DeclarationError
from medallion.gate import FAILURES, WARNINGS, Gate, Split
from medallion.partitions import Daily, Keys
from medallion.rules import at_least, belongs_to_partition, distribution, fresh, kpi, reconciles, volume
from medallion.severity import ERROR, Severity
from tests.gate.oracle import NoVerdict, ask
from tests.gate.strategies import Maker, Pair

BLOCK = 250
ODD_NAMES = [
    "",
    "*",
    "^x$",
    "^c.$",
    "_warnings",
    "_mask0",
    "_row",
    "_raw.c0",
    "_source_row",
    "a\nb",
    "table",
    "len",
    "ä" * 90,
]
DAY = Daily("day", start="2017-01-01", end="2017-02-01")
REGION = Keys("region", values=("north", "south"))


class Fuzzer(Maker):
    """Declares what nobody should, and delivers what nobody expects."""

    def check(self, name: str) -> pa.Check:
        kind = self.kind()
        wild = [
            lambda: pa.Check(lambda data: data.lazyframe.select(pl.col(data.key) / 0 > 1)),
            lambda: pa.Check(lambda data: data.lazyframe.select(pl.col("nowhere") > 1)),
            lambda: pa.Check(lambda data: data.lazyframe.select(pl.col(data.key).str.to_integer() > 1)),
            lambda: pa.Check(lambda data: data.lazyframe.filter(pl.col(data.key).is_null())),
            lambda: pa.Check(lambda data: data.lazyframe.select(pl.col(data.key).sort())),
            lambda: pa.Check(lambda data: data.lazyframe.select(pl.col(data.key).head(1) == 1)),
            lambda: pa.Check(lambda data: data.lazyframe.select(pl.all().is_not_null())),
            lambda: pa.Check(lambda data: data.lazyframe.select(pl.col(data.key))),
            lambda: pa.Check(lambda data: data.lazyframe.collect()[0, data.key] is None),
            lambda: pa.Check(lambda data: data.lazyframe.select(pl.col(data.key).max()).collect().item() > 1),
            lambda: pa.Check(lambda data: None),
            lambda: pa.Check(lambda data: 1 / 0),
            lambda: pa.Check(lambda value: 1 / value > 0, element_wise=True),
            lambda: pa.Check(lambda value: "text", element_wise=True),
            lambda: pa.Check(lambda value: None, element_wise=True),
            lambda: pa.Check.str_matches("(?=a)"),
            lambda: pa.Check.isin([]),
            lambda: pa.Check.isin([None, 1, "a"]),
            lambda: pa.Check.gt(self.rng.choice([dt.date(2017, 1, 1), "a", 1.5, b"a", float("nan"), True])),
        ]
        if self.maybe(0.15):
            return self.rng.choice(wild)()
        return self.column_check(kind, name, [])

    def wild_pair(self) -> Pair:
        sample = self.pair()
        for name, column in sample.schema.columns.items():
            if self.maybe(0.25):
                column.checks = [*column.checks, self.check(name)]
            if self.maybe(0.1):
                column.coerce = column.dtype is not None
            if self.maybe(0.08):
                severity = self.rng.choice([*Severity, {"type": self.rng.choice([*Severity])}, {"nothing": ERROR}])
                column.metadata = {METADATA_KEY: {"severity": severity}}
        if self.maybe(0.05):
            sample.schema.columns[self.rng.choice(ODD_NAMES)] = pa.Column(pl.Int64, name="odd", nullable=True)
        if self.maybe(0.1):
            sample.schema.metadata = {METADATA_KEY: {"pipeline": self.pipeline([*sample.schema.columns])}}
        sample.frame = self.wild_frame(sample.frame)
        return sample

    def wild_frame(self, frame: pl.DataFrame) -> pl.DataFrame:
        height = frame.height
        if self.maybe(0.1) and height:
            kind = self.kind()
            # Renamed afterwards: polars takes some of these names for patterns when it makes a struct.
            odd = pl.Series("odd", self.values(kind, height), kind.dtype).rename(self.rng.choice(ODD_NAMES))
            frame = frame.with_columns(odd) if odd.name not in {"*", ""} else frame
        if self.maybe(0.1) and frame.width:
            name = self.rng.choice(frame.columns)
            others = [
                pl.Series(name, [None] * height, pl.Null),
                pl.Series(name, list(range(height)), pl.Int128),
                pl.Series(name, [object() for _ in range(height)], pl.Object),
                pl.Series(name, [[{"x": [1]}] for _ in range(height)]),
                pl.Series(name, [["1", "x"] for _ in range(height)], pl.List(pl.String)),
            ]
            frame = frame.drop(name).with_columns(self.rng.choice(others))
        if self.maybe(0.3) and height:
            frame = pl.concat([frame, frame.sample(min(height, 2), seed=self.seed)])
        return frame

    def pipeline(self, names: list[str]) -> dict[str, Any]:
        name = self.rng.choice([*names, "nowhere"])
        column = pl.col(name)
        rules = [
            at_least(self.rng.randint(0, 5)),
            volume(warning=0.1, critical=0.5),
            kpi("mean", column.mean(), minimum=0),
            kpi("each", column, minimum=0),
            kpi("text", column.str.len_chars().sum(), maximum=3),
            fresh(name, within=dt.timedelta(hours=1)),
            distribution(name, warning=0.1, critical=0.5),
            distribution(name, warning=0.1, critical=0.5, categorical=True),
            reconciles("raw", count=True, sums={name: name}),
            belongs_to_partition(name),
        ]
        return {f"rule{n}": self.rng.choice(rules) for n in range(self.rng.randint(1, 2))}

    def gate(self, sample: Pair) -> tuple[Gate, tuple[str, ...]]:
        names = [name for name, column in sample.schema.columns.items() if not column.regex and column.required]
        settings: dict[str, Any] = {}
        keys: tuple[str, ...] = ("all",)
        if names and self.maybe(0.35):
            settings["key"] = self.rng.sample(names, k=self.rng.randint(1, len(names)))
            if self.maybe(0.4):
                settings["version_column"] = self.rng.choice(names)
        if self.maybe(0.15):
            settings["max_quarantined"] = self.rng.choice([0.0, 0.5, {"*": 0.3}, {"c0.not_null": 0.1}, 2.0])
        if self.maybe(0.2):
            settings["partition"] = self.rng.choice([DAY, REGION])
            keys = settings["partition"].keys()[:2]
            values = [settings["partition"].value(self.rng.choice(keys)) for _ in range(sample.frame.height)]
            column = pl.Series(settings["partition"].column, values, settings["partition"].dtype)
            sample.frame = sample.frame.with_columns(column) if sample.frame.width else column.to_frame()
        return Gate(sample.schema, **settings), keys


def check_conservation(split: Split, frame: pl.DataFrame) -> None:
    read = sum(verdict.read for verdict in split.verdicts.values())
    assert read == frame.height
    if any(finding.scope == "shape" and finding.blocks for v in split.verdicts.values() for finding in v.findings):
        return
    accepted = sum(verdict.accepted for verdict in split.verdicts.values())
    quarantined = sum(verdict.quarantined for verdict in split.verdicts.values())
    collapsed = sum(verdict.collapsed for verdict in split.verdicts.values())
    assert accepted == split.accepted.height
    assert quarantined == split.quarantined.height
    assert accepted + quarantined + collapsed == frame.height
    assert split.quarantined[FAILURES].list.len().min() != 0


def check_accepted(sample: Pair, gate: Gate, split: Split) -> str:
    """What is accepted must pass pandera, except for rules about the whole and what is only tagged."""
    blocking = [finding for verdict in split.verdicts.values() for finding in verdict.blocking]
    if not split.accepted.width or any(finding.scope != "row" for finding in blocking):
        return "not judged again"
    if any(column.metadata for column in sample.schema.columns.values()) or gate.partition.column:
        return "not judged again"  # pandera knows no severities and no partitions
    try:
        errors, _ = ask(sample.schema, split.accepted.drop(WARNINGS))
    except NoVerdict:
        return "pandera crashed"
    assert not [error.reason_code.name for error in errors], f"{sample}\n{split.accepted}\n{errors}"
    return "passed again"


def fuzz(first: int, count: int) -> Counter[str]:
    seen: Counter[str] = Counter()
    for seed in range(first, first + count):
        fuzzer = Fuzzer(seed)
        sample = fuzzer.wild_pair()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                gate, keys = fuzzer.gate(sample)
                split = gate.judge(sample.frame, keys, inputs={"raw": sample.frame.lazy()})
        except DeclarationError:
            seen["refused"] += 1
            continue
        except BaseException as error:  # a Rust panic is no Exception
            raise AssertionError(f"{type(error).__name__}: {error}\nin {sample}") from error
        check_conservation(split, sample.frame)
        assert set(split.verdicts) == set(keys)
        seen["blocked" if any(v.blocked for v in split.verdicts.values()) else "published"] += 1
        seen[check_accepted(sample, gate, split)] += 1
    return seen


@pytest.mark.parametrize("block", range(8))
def test_every_contract_and_frame_end_in_a_verdict_or_a_refusal(block):
    seen = fuzz(5_000_000 + block * BLOCK, BLOCK)
    assert seen["published"] > 0.2 * BLOCK
    assert seen["refused"] > 0
    assert seen["passed again"] > 0.1 * BLOCK


@pytest.mark.slow
@pytest.mark.parametrize("block", range(32))
def test_ten_thousand_contracts_and_frames_end_in_a_verdict_or_a_refusal(block):
    fuzz(6_000_000 + block * BLOCK, BLOCK)
