"""Products: the catalogue of everything the stores sell, delivered complete."""

import polars as pl

from medallion.contract import INFO, WARNING, Contract, field, rule
from medallion.tables import bronze, silver


class Product(Contract):
    """One product of the catalogue."""

    product_id: int = field(gt=0)
    manufacturer_id: int = field(ge=0)
    department: str = field(str_length={"min_value": 1})
    brand: str = field(isin=["National", "Private"], description="a national brand or the retailer's own")
    product_category: str = field(
        severity={"not_null": WARNING},
        description="coupons and store supplies have none; reports by category would miss them silently",
    )
    product_type: str = field(severity={"not_null": WARNING})
    package_size: str = field(
        severity={"not_null": INFO}, description="a third of the catalogue has none, loose goods above all"
    )

    @rule(WARNING)
    def type_has_category(rows):
        """A product type without a category cannot be placed in the hierarchy."""
        return rows.product_type.is_null() | rows.product_category.is_not_null()


raw_products = bronze("products", source="products.parquet", description="The product catalogue, as delivered.")


@silver(raw=raw_products, contract=Product, key=["product_id"], owners=["team:category-management"])
def products(raw: pl.LazyFrame) -> pl.LazyFrame:
    """The product catalogue: one row a product."""
    return raw
