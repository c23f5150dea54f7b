"""Households: what those loyalty-card holders who filled in the form say about themselves."""

import polars as pl

from medallion.contract import INFO, Contract, field
from medallion.tables import bronze, silver


class Household(Contract):
    """One household that answered the survey."""

    household_id: int = field(gt=0)
    age: str = field(isin=["19-24", "25-34", "35-44", "45-54", "55-64", "65+"])
    income: str = field(str_matches=r"^(Under 15K|250K\+|\d+-\d+K)$")
    home_ownership: str = field(severity={"not_null": INFO}, description="a question that may be left out")
    marital_status: str = field(
        isin=["Married", "Unmarried"], severity={"not_null": INFO}, description="a question that may be left out"
    )
    household_size: str = field(isin=["1", "2", "3", "4", "5+"])
    household_comp: str = field()
    kids_count: str = field(isin=["0", "1", "2", "3+"])


raw_households = bronze("households", source="households.csv", description="The household survey, as delivered.")


@silver(raw=raw_households, contract=Household, key=["household_id"], owners=["team:loyalty"])
def households(raw: pl.LazyFrame) -> pl.LazyFrame:
    """The household survey: one row a household that answered."""
    return raw
