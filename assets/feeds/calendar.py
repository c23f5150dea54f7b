"""The retailer's calendar: store-local days, weeks from Monday, calendar months, all in New York time."""

from medallion.partitions import Daily, Monthly, Weekly

ZONE = "America/New_York"
DAY = Daily("day", start="2017-01-01", end="2018-01-01", timezone=ZONE)
WEEK = Weekly("week_start", start="2016-12-26", end="2018-01-01", timezone=ZONE)
MONTH = Monthly("month", start="2017-01-01", end="2018-01-01", timezone=ZONE)
