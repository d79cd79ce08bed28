"""The claim of a lake by the current lock holder: a fencing token in a property of the engagement table.

A property change conflicts with every commit that began before it. So after a claim, no commit of a former holder can
succeed. Tokens grow from holder to holder.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lake_assets.base.failpoints import CLAIM_CHECKED, reach
from lake_assets.coordination import check_claim
from lake_assets.engagement.model.delta_log import open_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOKEN_PROPERTY = "coordinator.epoch"
"""Property of the engagement table: the token of the last holder that claimed it."""


@dataclass(frozen=True)
class Claims:
    """Reads and writes the fencing token of one lake.

    Attributes:
        location: Address of the engagement table.
        identifier: Name of the engagement table in SQL.
    """

    location: str
    identifier: str

    def token(self, version: int | None = None) -> int | None:
        """Return the token at a version of the table.

        Args:
            version: Version to read; None for the newest.

        Returns:
            The token; None if nobody had claimed the table.
        """
        properties = open_table(self.location, version).metadata().configuration
        found = properties.get(TOKEN_PROPERTY)
        return None if found is None else int(found)

    def check(self, token: int) -> None:
        """Check that no later holder has claimed the table.

        Raises:
            CoordinationError: The table has a greater token.
        """
        check_claim(self.location, self.token(), token)

    def claim(self, spark: SparkSession, token: int) -> None:
        """Write the token of the lock holder. Commits that began before can no longer succeed.

        Raises:
            CoordinationError: A later holder's token is there, or was written during this call; it is restored.
        """
        version = open_table(self.location).version()
        self.check(token)
        reach(CLAIM_CHECKED)
        greatest = self._write_greatest(spark, token, since=version)
        check_claim(self.location, greatest, token)

    def lower(self, spark: SparkSession, token: int) -> bool:
        """Replace a greater token, which another ZooKeeper has issued.

        Nobody else may work on the lake: a holder of a lock in the other ZooKeeper would not be refused.

        Returns:
            Whether a greater token was replaced.
        """
        found = self.token()
        if found is None or found <= token:
            return False
        self._write(spark, token)
        return True

    def _write(self, spark: SparkSession, token: int) -> None:
        spark.sql(f"ALTER TABLE {self.identifier} SET TBLPROPERTIES ('{TOKEN_PROPERTY}' = '{int(token)}')")

    def _write_greatest(self, spark: SparkSession, token: int, *, since: int) -> int:
        """Write a token; if a greater one was written after version `since`, write that one again. Return the last."""
        self._write(spark, token)
        newest = open_table(self.location).version()
        tokens = [self.token(version) or 0 for version in range(since + 1, newest + 1)]
        greatest = max(tokens)
        if tokens[-1] == greatest:
            return greatest
        return self._write_greatest(spark, greatest, since=since)
