import datetime as dt
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from medallion.errors import DeclarationError, UnknownPartition
from medallion.partitions import Daily, Hourly, Keys, Monthly, Partitioning, TimePartitioning, Weekly, Whole
from medallion.refine import Run, refine
from medallion.tables import bronze
from tests.builders import DAY, ZONE, Shop

at = dt.datetime.fromisoformat  # naive local times, as windows are
YEAR = Daily("day", start="2017-01-01", end="2018-01-01", timezone=ZONE)
UNSAFE = [
    "",
    "a/b",
    "x'; --",
    "__HIVE_DEFAULT_PARTITION__",
    "k" * 300,
    "..",
    ".hidden",
    "_x",
    "a b",
    "day=1",
    "é",
    "a\n",
]
TIMES: list[TimePartitioning] = [
    YEAR,
    Weekly("week", start="2016-12-26", end="2018-01-01", timezone=ZONE),
    Monthly("month", start="2017-01-01", end="2018-01-01", timezone=ZONE),
    Hourly("hour", start="2017-03-11", end="2017-03-14", timezone=ZONE),
]
moments = st.datetimes(at("2016-01-01"), at("2019-01-01"))
cuts = st.sampled_from(TIMES)


def hours_between(window: tuple[dt.datetime, dt.datetime]) -> float:
    start, end = (moment.replace(tzinfo=ZoneInfo(ZONE)).astimezone(dt.UTC) for moment in window)
    return (end - start).total_seconds() / 3600


def test_days_are_named_by_their_date_from_the_start_to_before_the_end():
    keys = YEAR.keys()
    assert (keys[0], keys[-1], len(keys)) == ("2017-01-01", "2017-12-31", 365)


def test_weeks_are_named_by_their_first_day_and_begin_on_the_weekday_of_the_start():
    weeks = Weekly("week", start="2016-12-26", end="2017-01-23")
    assert weeks.keys() == ("2016-12-26", "2017-01-02", "2017-01-09", "2017-01-16")
    assert weeks.window("2017-01-02") == (at("2017-01-02"), at("2017-01-09"))


def test_months_have_their_own_lengths_also_in_leap_years():
    months = Monthly("month", start="2016-01-01", end="2017-01-01")
    assert len(months.keys()) == 12
    assert months.window("2016-02-01") == (at("2016-02-01"), at("2016-03-01"))
    assert months.window("2016-12-01") == (at("2016-12-01"), at("2017-01-01"))


def test_hours_are_named_by_date_and_hour_and_kept_as_text():
    hours = Hourly("hour", start="2017-01-01", end="2017-01-02")
    assert (hours.keys()[0], hours.keys()[-1], len(hours.keys())) == ("2017-01-01-00", "2017-01-01-23", 24)
    assert hours.value("2017-01-01-05") == "2017-01-01-05"
    assert hours.window("2017-01-01-23") == (at("2017-01-01T23:00"), at("2017-01-02"))


@pytest.mark.parametrize(("day", "hours"), [("2017-03-11", 24), ("2017-03-12", 23), ("2017-11-05", 25)])
def test_a_day_on_which_the_clocks_change_lasts_from_local_midnight_to_local_midnight(day, hours):
    window = YEAR.window(day)
    assert window == (at(day), at(day) + dt.timedelta(days=1))
    assert hours_between(window) == hours


def test_the_hour_that_is_repeated_when_the_clocks_go_back_is_one_partition():
    hours = Hourly("hour", start="2017-11-05", end="2017-11-06", timezone=ZONE)
    assert hours.keys().count("2017-11-05-01") == 1
    assert hours_between((hours.window("2017-11-05-00")[0], hours.window("2017-11-05-23")[1])) == 25


def test_an_unpartitioned_table_is_one_partition_called_all_that_lies_in_no_folder():
    assert Whole().keys() == ("all",)
    assert Whole().folder("all") == ""


def test_keys_keep_the_order_in_which_they_are_declared():
    assert Keys("region", ("west", "east")).keys() == ("west", "east")


def test_two_declarations_of_the_same_days_are_equal():
    assert Daily("day", start="2017-01-01", end="2018-01-01", timezone=ZONE) == YEAR
    assert Daily("day", start="2017-01-01", end="2018-01-01") != YEAR


@given(cuts)
def test_keys_sort_as_text_in_the_order_of_time(cut):
    assert list(cut.keys()) == sorted(cut.keys())


@given(cuts)
def test_windows_follow_each_other_without_gap_or_overlap(cut):
    windows = [cut.window(key) for key in cut.keys()]  # noqa: SIM118 - not a dictionary
    assert all(start < end for start, end in windows)
    assert [end for _, end in windows[:-1]] == [start for start, _ in windows[1:]]


@given(cuts, moments, moments)
def test_overlapping_gives_exactly_the_declared_windows_that_meet_an_interval(cut, one, other):
    start, end = min(one, other), max(one, other) + dt.timedelta(microseconds=1)
    met = [key for key in cut.keys() if cut.window(key)[0] < end and start < cut.window(key)[1]]  # noqa: SIM118
    assert list(cut.overlapping(start, end)) == met


@given(st.sampled_from(YEAR.keys()), st.integers(1, 40))
def test_a_trailing_window_is_clipped_where_the_table_begins(day, days):
    start, end = YEAR.window(day)
    position = YEAR.keys().index(day)
    expected = YEAR.keys()[max(0, position - days + 1) : position + 1]
    assert YEAR.overlapping(start - dt.timedelta(days=days - 1), end) == expected


def test_an_interval_before_the_start_or_after_the_end_meets_nothing():
    assert YEAR.overlapping(at("2015-01-01"), at("2017-01-01")) == ()
    assert YEAR.overlapping(at("2018-01-01"), at("2019-01-01")) == ()


@given(cuts)
def test_every_key_may_name_a_folder_and_is_known(cut):
    for key in cut.keys():  # noqa: SIM118 - not a dictionary
        assert cut.check(key) == key
        assert cut.folder(key) == f"{cut.column}={key}"


# K10


@pytest.mark.parametrize("value", UNSAFE)
@pytest.mark.parametrize("cut", [YEAR, Keys("region", ("west", "east")), Whole()], ids=lambda cut: type(cut).__name__)
def test_an_unsafe_value_is_refused_with_the_value_and_the_rule(cut: Partitioning, value: str):
    with pytest.raises(UnknownPartition) as refused:
        cut.check(value)
    shown = value if len(value) <= 60 else value[:57]
    assert repr(shown)[1:-1] in str(refused.value)
    assert refused.value.key == value
    assert "reserved" in refused.value.rule or "a key has 1 to 128 characters" in refused.value.rule


@pytest.mark.parametrize("value", UNSAFE)
def test_unsafe_values_cannot_be_declared_as_keys_either(value):
    with pytest.raises(UnknownPartition):
        Keys("region", ("west", value))


def test_a_missing_value_is_refused_like_any_other_unsafe_one():
    with pytest.raises(UnknownPartition, match="'None' is not a partition here: a key is text"):
        DAY.check(None)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [*UNSAFE, None, "2017-02-30", "2016-12-31"])
def test_nothing_is_read_or_written_when_one_of_several_keys_is_refused(landed: Run, shop: Shop, value):
    with pytest.raises(UnknownPartition, match="Nothing was read or written"):
        refine(shop.raw_orders, ["2017-01-30", value], landed)
    assert list(landed.lake.root.iterdir()) == []


def test_a_day_that_the_table_does_not_have_is_refused_with_the_days_that_it_has():
    with pytest.raises(UnknownPartition, match="the table has 365 partitions, 2017-01-01 to 2017-12-31"):
        YEAR.check("2018-01-01")


# Declarations


@pytest.mark.parametrize(
    ("declare", "says"),
    [
        (lambda: Daily("day", start="1.1.2017", end="2018-01-01"), "Write start and end as YYYY-MM-DD"),
        (lambda: Daily("day", start="2017-01-01", end=""), "Write start and end as YYYY-MM-DD"),
        (lambda: Daily("day", start="2018-01-01", end="2017-01-01"), "start 2018-01-01 is not before end 2017-01-01"),
        (lambda: Daily("day", start="2017-01-01", end="2017-01-01"), "is not before end"),
        (lambda: Daily("day", start="2017-01-01", end="2018-01-01", timezone="Mars/Base"), "'America/New_York'"),
        (lambda: Daily("day", start="2017-01-01", end="2018-01-01", timezone="America"), "'America/New_York'"),
        (lambda: Daily("day", start="2017-01-01", end="2018-01-01", timezone=""), "'America/New_York'"),
        (lambda: Daily("", start="2017-01-01", end="2018-01-01"), "beginning with a letter, as 'day'"),
        (lambda: Daily("_day", start="2017-01-01", end="2018-01-01"), "beginning with a letter, as 'day'"),
        (lambda: Daily("a/b", start="2017-01-01", end="2018-01-01"), "beginning with a letter, as 'day'"),
        (lambda: Monthly("month", start="2017-01-02", end="2018-01-01"), "is not the first day of a month"),
        (lambda: Keys("region", ()), "needs at least one key, each only once"),
        (lambda: Keys("region", ("west", "west")), "needs at least one key, each only once"),
    ],
)
def test_a_partitioning_that_is_declared_wrongly_says_what_to_write(declare, says):
    with pytest.raises(DeclarationError) as refused:
        declare()
    assert says in str(refused.value)


def test_a_closed_day_must_be_a_day_of_the_table():
    with pytest.raises(UnknownPartition, match="2017-12-25"):
        bronze("orders", source="orders/{day}.csv", partition=DAY, closed={"2017-12-25": "Christmas"})
