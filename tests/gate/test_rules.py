"""The rules made for pipelines: about a partition's volume, figures, time, past, source and share of refused rows."""

import datetime as dt
import random
from collections.abc import Sequence
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from polars.testing import assert_frame_equal
from scipy.stats import ks_2samp

from medallion.contract import CRITICAL, ERROR, INFO, WARNING, Contract, field
from medallion.errors import DeclarationError
from medallion.gate import Gate
from medallion.partitions import Daily, Hourly, Keys, Monthly, Partitioning, Weekly
from medallion.pipeline_rule import Setting
from medallion.published import History
from medallion.rules import at_least, belongs_to_partition, distribution, fresh, kpi, reconciles, volume
from medallion.verdict import Finding, Verdict

ZONE = "America/New_York"
DAY = Daily("day", start="2017-01-01", end="2018-01-01", timezone=ZONE)
TODAY = "2017-02-01"


class Sales(Contract):
    amount: float
    shop: str = field(nullable=True)


def with_rule(rule: Any, base: type[Contract] = Sales) -> type[Contract]:
    return type("Ruled", (base,), {"checked": rule, "__module__": __name__, "__annotations__": {}})


def frame(
    amounts: Sequence[float | None], key: str = TODAY, partition: Partitioning = DAY, **more: Any
) -> pl.DataFrame:
    rows = pl.DataFrame({"amount": pl.Series(amounts, dtype=pl.Float64), **more})
    rows = rows if "shop" in more else rows.with_columns(shop=pl.lit("a"))
    return rows.with_columns(partition.series([key] * rows.height))


def past(accepted: Sequence[int], measures: Sequence[Any] | None = None, *, blocked: bool = False) -> History:
    """A history of days before today, the last of them yesterday."""
    keys = DAY.keys()
    today = keys.index(TODAY)
    finding = Finding("table.some", CRITICAL, "table", 0, "no")
    verdicts = {
        key: Verdict(
            "sales",
            key,
            count,
            count,
            findings=(finding,) if blocked else (),
            measures={"table.checked": (measures or [{}] * len(accepted))[n]},
        )
        for n, (key, count) in enumerate(zip(keys[today - len(accepted) : today], accepted, strict=True))
    }
    return History(keys, verdicts.get)


def found(rule: Any, rows: pl.DataFrame, *, base: type[Contract] = Sales, key: str = TODAY, **given: Any) -> Any:
    """The severity and message of what a rule finds in one day; None if it finds nothing."""
    gate = Gate(with_rule(rule, base), partition=given.pop("partition", DAY))
    verdict = gate.judge(rows, [key], **given).verdicts[key]
    for finding in verdict.findings:
        if finding.rule == "table.checked":
            return finding.severity, finding.message
    return None


# Volume


@pytest.mark.parametrize(
    ("rows", "severity"), [(60, CRITICAL), (97, None), (85, WARNING), (100, None), (115, WARNING), (170, CRITICAL)]
)
def test_k21_a_day_with_far_fewer_or_more_rows_than_usual_is_held_back(rows, severity):
    rule = volume(warning=0.1, critical=0.3)
    seen = found(rule, frame([1.0] * rows), history=past([98, 100, 102, 100, 99, 101, 100]))
    assert (seen and seen[0]) == severity
    if severity == CRITICAL:
        assert f"{rows} rows, usually 100" in seen[1]


def test_volume_says_nothing_without_enough_of_a_past():
    rule = volume(warning=0.1, critical=0.3, least=7)
    assert found(rule, frame([1.0]), history=past([100] * 6)) is None
    assert found(rule, frame([1.0]), history=past([100] * 7)) is not None


def test_blocked_and_empty_days_are_no_past():
    rule = volume(warning=0.1, critical=0.3, least=1)
    assert found(rule, frame([1.0]), history=past([100] * 9, blocked=True)) is None
    assert found(rule, frame([1.0]), history=past([0] * 9)) is None


def test_a_day_without_rows_differs_wholly_from_the_usual():
    assert found(volume(warning=0.1, critical=0.3), frame([]), history=past([100] * 7))[0] == CRITICAL


def test_the_days_of_one_run_are_the_past_of_the_days_after_them_unless_they_are_blocked():
    class Counted(Contract):
        amount: float = field(gt=0, severity=CRITICAL)
        usual = volume(warning=0.1, critical=0.3, least=2)

    keys = DAY.keys()[:5]
    days = [frame([1.0] * 10, keys[0]), frame([1.0] * 99 + [0.0], keys[1]), frame([1.0] * 10, keys[2])]
    days += [frame([1.0] * 3, keys[3]), frame([1.0] * 10, keys[4])]
    split = Gate(Counted, partition=DAY).judge(pl.concat(days).drop("shop"), keys, history=History(keys))
    assert [split.verdicts[key].blocked for key in keys] == [False, True, False, True, False]


# At least, and figures


def test_a_day_with_too_few_rows_is_held_back():
    assert found(at_least(3), frame([1.0, 2.0])) == (CRITICAL, "2 rows, at least 3 are expected")
    assert found(at_least(2), frame([1.0, 2.0])) is None
    assert found(at_least(1, WARNING), frame([]))[0] == WARNING


def test_what_is_counted_is_what_is_published():
    class Positive(Sales):
        amount: float = field(gt=0)

    assert found(at_least(2), frame([1.0, -1.0]), base=Positive)[0] == CRITICAL


@pytest.mark.parametrize(
    ("amounts", "outside"), [([1.0, 3.0], False), ([9.0], True), ([0.0], True), ([], True), ([float("nan")], True)]
)
def test_a_figure_outside_its_range_is_found(amounts, outside):
    class Loose(Contract):
        amount: float = field(nullable=True)
        shop: str = field(nullable=True)

    rule = kpi("mean sale", pl.col("amount").mean(), minimum=1, maximum=5)
    assert (found(rule, frame(amounts), base=Loose) is not None) == outside


def test_a_figure_is_kept_in_the_verdict():
    contract = with_rule(kpi("total", pl.col("amount").sum(), maximum=5, severity=INFO))
    verdict = Gate(contract, partition=DAY).judge(frame([1.0, 2.0]), [TODAY]).verdict
    assert verdict.measures == {"table.checked": {"value": 3.0}}


@pytest.mark.parametrize(
    "rule",
    [
        kpi("each", pl.col("amount")),
        kpi("typo", pl.col("amuont").sum()),
        kpi("text", pl.col("shop").str.to_date().dt.year().median().dt.date()),
        belongs_to_partition("amount"),
        belongs_to_partition("nowhere"),
        fresh("nowhere", within=dt.timedelta(1)),
        distribution("nowhere", warning=0.1, critical=0.2),
        reconciles("raw", sums={"shop": "shop"}),
    ],
)
def test_a_rule_that_cannot_be_evaluated_is_refused_where_it_is_declared(rule):
    with pytest.raises(DeclarationError, match=r"table\.checked"):
        Gate(with_rule(rule), partition=DAY)


# Distribution


def quantiles(values: Sequence[float]) -> dict[str, list[float]]:
    series = pl.Series(values)
    return {"quantiles": [float(series.quantile(step / 50, "nearest") or 0) for step in range(51)]}


def test_numbers_that_are_distributed_otherwise_are_found():
    chance = random.Random(1)
    usual = [[chance.gauss(10, 2) for _ in range(400)] for _ in range(5)]
    rule = distribution("amount", warning=0.15, critical=0.4)
    history = past([400] * 5, [quantiles(day) for day in usual])
    assert found(rule, frame([chance.gauss(10, 2) for _ in range(400)]), history=history) is None
    assert found(rule, frame([chance.gauss(11, 2) for _ in range(400)]), history=history)[0] == WARNING
    assert found(rule, frame([chance.gauss(20, 2) for _ in range(400)]), history=history)[0] == CRITICAL


def test_the_statistic_is_that_of_scipy_to_two_hundredths():

    chance = random.Random(2)
    before, now = [chance.gauss(0, 1) for _ in range(2000)], [chance.gauss(0.5, 1) for _ in range(2000)]
    rule = distribution("amount", warning=0, critical=1, least=1)
    _, message = found(rule, frame(now), history=past([2000], [quantiles(before)]))
    measured = float(message.split(": ")[1].split(",")[0])
    assert measured == pytest.approx(float(ks_2samp(before, now).statistic), abs=0.03)


def test_categories_that_are_distributed_otherwise_are_found():
    rule = distribution("shop", warning=0.2, critical=0.6, categorical=True)
    usual = {"counts": [{"value": "a", "count": 50}, {"value": "b", "count": 50}]}
    history = past([100] * 3, [usual] * 3)
    cases = {None: ["a"] * 48 + ["b"] * 52, WARNING: ["a"] * 20 + ["b"] * 80, CRITICAL: ["c"] * 100}
    for severity, shops in cases.items():
        seen = found(rule, frame([1.0] * 100, shop=shops), history=history)
        assert (seen and seen[0]) == severity


@pytest.mark.parametrize("categorical", [False, True])
def test_what_a_day_measured_is_the_past_of_the_next_days_even_as_json(categorical):
    column = "shop" if categorical else "amount"
    rule = distribution(column, warning=0.2, critical=0.9, least=1, categorical=categorical)
    gate = Gate(with_rule(rule), partition=DAY)
    keys = DAY.keys()[:2]
    first = gate.judge(frame([1.0, 2.0, 3.0], keys[0]), keys[:1]).verdict
    kept = Verdict.from_json(first.to_json())
    history = History(keys, {keys[0]: kept}.get)
    same = gate.judge(frame([1.0, 2.0, 3.0], keys[1]), keys[1:], history=history).verdict
    assert not same.findings
    other = gate.judge(frame([7.0, 8.0], keys[1], shop=["x", "y"]), keys[1:], history=history).verdict
    assert other.blocked


def test_a_day_without_values_has_no_distribution():
    rule = distribution("shop", warning=0.2, critical=0.6, least=1, categorical=True)
    history = past([1], [{"counts": [{"value": "a", "count": 1}]}])
    assert found(rule, frame([1.0], shop=pl.Series([None], dtype=pl.String)), history=history) is None
    assert found(rule, frame([]), history=history) is None


# Time


class Moments(Contract):
    at: pl.Datetime("us", "UTC")  # type: ignore[valid-type]


def moments(*texts: str, key: str, partition: Partitioning) -> pl.DataFrame:
    at = pl.Series(
        "at", [dt.datetime.fromisoformat(text).replace(tzinfo=dt.UTC) for text in texts], pl.Datetime("us", "UTC")
    )
    return at.to_frame().with_columns(partition.series([key] * len(texts)))


@pytest.mark.parametrize(
    ("key", "inside", "outside"),
    [
        ("2017-01-05", ["2017-01-05T05:00", "2017-01-06T04:59:59"], ["2017-01-05T04:59:59", "2017-01-06T05:00"]),
        # 23 hours, for the clocks go forward, and 25, for they go back
        ("2017-03-12", ["2017-03-12T05:00", "2017-03-13T03:59:59"], ["2017-03-12T04:59:59", "2017-03-13T04:00"]),
        ("2017-11-05", ["2017-11-05T04:00", "2017-11-06T04:59:59"], ["2017-11-05T03:59:59", "2017-11-06T05:00"]),
    ],
)
def test_a_row_belongs_to_its_local_day_also_when_the_clocks_change(key, inside, outside):
    rule = belongs_to_partition("at", timezone=ZONE)
    rows = moments(*inside, *outside, key=key, partition=DAY)
    assert found(rule, moments(*inside, key=key, partition=DAY), base=Moments, key=key) is None
    gate = Gate(with_rule(rule, Moments), partition=DAY)
    verdict = gate.judge(rows, [key]).verdict
    assert (verdict.quarantined, verdict.blocked) == (len(outside), True)


WEEK = Weekly("week", start="2016-12-26", end="2018-01-01")
MONTH = Monthly("month", start="2017-01-01", end="2018-01-01")
HOUR = Hourly("hour", start="2017-01-01", end="2017-01-03")


@pytest.mark.parametrize(
    ("partition", "every", "key", "inside", "outside"),
    [
        (WEEK, "1w", "2017-01-02", ["2017-01-02T00:00", "2017-01-08T23:59"], ["2017-01-01T23:59", "2017-01-09T00:00"]),
        (MONTH, "1mo", "2017-02-01", ["2017-02-01T00:00", "2017-02-28T23:59"], ["2017-01-31T23:59", "2017-03-01"]),
        (
            HOUR,
            "1h",
            "2017-01-01-05",
            ["2017-01-01T05:00", "2017-01-01T05:59"],
            ["2017-01-01T04:59", "2017-01-01T06:00"],
        ),
    ],
)
def test_a_row_belongs_to_its_week_month_or_hour(partition, every, key, inside, outside):
    rule = belongs_to_partition("at", partition.column, timezone="UTC", every=every, severity=ERROR)
    gate = Gate(with_rule(rule, Moments), partition=partition)
    verdict = gate.judge(moments(*inside, *outside, key=key, partition=partition), [key]).verdict
    assert (verdict.accepted, verdict.quarantined) == (len(inside), len(outside))


def test_a_date_belongs_to_the_day_that_it_names():
    class Dated(Contract):
        on: dt.date

    rows = pl.DataFrame({"on": [dt.date(2017, 2, 1), dt.date(2017, 2, 2)], "day": DAY.series([TODAY] * 2)})
    assert "lies in its partition" in found(belongs_to_partition("on"), rows, base=Dated)[1]
    assert (
        Gate(with_rule(belongs_to_partition("on"), Dated), partition=DAY).judge(rows, [TODAY]).verdict.quarantined == 1
    )


def test_a_day_whose_newest_row_is_old_is_found():
    rule = fresh("at", within=dt.timedelta(hours=3), timezone=ZONE)
    late = moments("2017-02-02T03:00", key=TODAY, partition=DAY)  # 22:00 in New York
    early = moments("2017-02-01T12:00", key=TODAY, partition=DAY)
    assert found(rule, late, base=Moments) is None
    severity, message = found(rule, early, base=Moments)
    assert severity == WARNING
    assert "17:00:00 before the partition's end" in message
    assert found(rule, early.clear(), base=Moments) == (WARNING, "there is no at")


def test_freshness_asks_for_partitions_of_time():
    with pytest.raises(DeclarationError, match="when a partition ends"):
        Gate(with_rule(fresh("at", within=dt.timedelta(hours=3)), Moments), partition=Keys("region", values=("north",)))


# Source


def test_totals_agree_with_the_input():
    raw = frame([1.0, 2.0, 3.0]).rename({"amount": "gross"}).lazy()
    rule = reconciles("raw", count=True, sums={"amount": "gross"})
    assert found(rule, frame([3.0, 2.0, 1.0]), inputs={"raw": raw}) is None
    assert found(rule, frame([6.0]), inputs={"raw": raw})[1].startswith("rows add up to 1.00 here and 3.00 in raw")
    assert (
        "amount (gross) add up to 7.00 here and 6.00 in raw"
        in found(rule, frame([1.0, 2.0, 4.0]), inputs={"raw": raw})[1]
    )


def test_the_same_input_column_may_be_compared_with_two_columns():
    class Two(Sales):
        net: float

    rows = frame([1.0], net=[5.0])
    raw = pl.LazyFrame({"gross": [5.0], "day": rows["day"]})
    assert (
        "amount"
        in found(reconciles("raw", sums={"amount": "gross", "net": "gross"}), rows, base=Two, inputs={"raw": raw})[1]
    )


def test_totals_agree_group_by_group():
    raw = frame([1.0, 2.0, 3.0], shop=["a", "a", "b"]).lazy()
    moved = frame([1.0, 5.0], shop=["a", "b"])
    assert found(reconciles("raw", sums={"amount": "amount"}), moved, inputs={"raw": raw}) is None
    assert found(reconciles("raw", sums={"amount": "amount"}, by=["shop"]), moved, inputs={"raw": raw}) == (
        CRITICAL,
        "amount (amount) for a add up to 1.00 here and 3.00 in raw; "
        "amount (amount) for b add up to 5.00 here and 3.00 in raw",
    )


def test_groups_that_are_missing_on_one_side_differ_and_many_are_counted():
    raw = frame([1.0, 2.0], shop=["a", "b"]).lazy()
    rule = reconciles("raw", count=True, by=["shop"], severity=WARNING)
    severity, message = found(rule, frame([1.0, 1.0, 1.0], shop=["c", "d", "d"]), inputs={"raw": raw})
    assert severity == WARNING
    assert message.startswith("rows for a add up to 0.00 here and 1.00 in raw; rows for b")
    assert message.endswith("; and 1 more groups differ")


def test_a_count_may_be_a_column_that_adds_up_to_the_inputs_rows():
    class Grouped(Sales):
        lines: int

    raw = frame([1.0, 2.0, 3.0]).lazy()
    assert found(reconciles("raw", count="lines"), frame([6.0], lines=[3]), base=Grouped, inputs={"raw": raw}) is None
    assert (
        found(reconciles("raw", count="lines"), frame([6.0], lines=[2]), base=Grouped, inputs={"raw": raw}) is not None
    )


def test_each_day_is_compared_with_its_own_input():
    rows = pl.concat([frame([1.0], "2017-01-01"), frame([2.0], "2017-01-02")])
    raw = pl.concat([frame([1.0], "2017-01-01"), frame([3.0], "2017-01-02")]).lazy()
    gate = Gate(with_rule(reconciles("raw", sums={"amount": "amount"})), partition=DAY)
    split = gate.judge(rows, DAY.keys()[:2], inputs={"raw": raw})
    assert [verdict.blocked for verdict in split.verdicts.values()] == [False, True]


def test_a_figure_that_is_no_number_agrees_with_nothing():
    class Loose(Contract):
        amount: float = field(nullable=True)
        shop: str

    rows = frame([float("nan")])
    assert (
        found(reconciles("raw", sums={"amount": "amount"}), rows, base=Loose, inputs={"raw": rows.lazy()}) is not None
    )


def test_an_input_that_is_not_given_blocks_and_is_never_skipped():
    severity, message = found(reconciles("raw", count=True, severity=WARNING), frame([1.0]), inputs={})
    assert severity == ERROR
    assert "no input 'raw'" in message


# The share of refused rows


class Refusing(Contract):
    a: int = field(gt=0, ne=7)


@pytest.mark.parametrize(
    ("limit", "blocked"),
    [
        (0.5, False),
        (0.49, True),
        (0.0, True),
        ({"*": 0.5}, False),
        ({"a.gt": 0.2}, True),
        ({"a.gt": 0.25, "a.ne": 0.25}, False),
    ],
)
def test_more_refused_rows_than_allowed_block_overall_and_by_rule(limit, blocked):
    verdict = Gate(Refusing, max_quarantined=limit).judge(pl.DataFrame({"a": [1, 2, 0, 7]})).verdict
    assert verdict.quarantined == 2
    assert verdict.blocked == blocked
    assert {finding.rule for finding in verdict.blocking} == ({"table.quarantined_share"} if blocked else set())


def test_the_message_says_which_share_was_passed():
    (finding,) = (
        Gate(Refusing, max_quarantined={"*": 0.1, "a.gt": 0.1}).judge(pl.DataFrame({"a": [0, 1]})).verdict.blocking
    )
    assert finding.message == (
        "50.0% of the rows are refused, and max_quarantined is 10.0%; "
        "50.0% of the rows break a.gt, and max_quarantined is 10.0%"
    )


def test_an_empty_partition_is_said_to_be_empty():
    verdict = Gate(Refusing, max_quarantined=0.0).judge(pl.DataFrame(schema={"a": pl.Int64})).verdict
    assert [(finding.rule, finding.severity) for finding in verdict.findings] == [("table.no_rows", WARNING)]


@pytest.mark.parametrize("seed", range(20))
def test_the_distance_between_two_distributions_is_scipys_kolmogorov_smirnov_statistic(seed):
    chance = random.Random(seed)
    now = [chance.choice([chance.gauss(0, 1), 0.0, 1.0]) for _ in range(51)]
    past = [[chance.gauss(0.3, 2) for _ in range(51)] for _ in range(chance.randrange(1, 8))]
    expected = ks_2samp(now, [value for each in past for value in each]).statistic
    measured = {"quantiles": now}
    before = [Verdict("t", str(n), 1, 1, measures={"table.d": {"quantiles": each}}) for n, each in enumerate(past)]
    drift = distribution("x", warning=expected - 1e-9, critical=expected + 1e-9, window=9, least=1)
    found = list(drift.judge(measured, Setting("k", 1, "table.d", past=before)))
    assert [severity for severity, _ in found] == [WARNING]


@given(st.lists(st.one_of(st.none(), st.just(float("nan")), st.floats(-1e6, 1e6)), min_size=1, max_size=120))
def test_the_quantiles_that_a_distribution_measures_are_the_nearest_ranks_of_polars(values: list[float | None]) -> None:
    rows = pl.DataFrame(
        {"value": pl.Series(values, dtype=pl.Float64), "day": pl.Series([1] * len(values), dtype=pl.Int8)}
    )
    number = pl.col("value").drop_nulls().drop_nans()
    each = pl.concat_list([number.quantile(q / 50, "nearest") for q in range(51)]).alias("quantiles")
    measured = distribution("value", warning=0.1, critical=0.2).measures()["quantiles"].alias("quantiles")
    assert_frame_equal(rows.select(measured), rows.select(each))
    assert_frame_equal(rows.group_by("day").agg(measured), rows.group_by("day").agg(each))
