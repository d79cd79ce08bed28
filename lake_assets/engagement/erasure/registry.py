"""The registry of erased persons: late records about them, sent before the erasure, make no row.

The table `erasure` stores keyed hashes, no ids. This process compares ids with it, so no plan or log of Spark contains
the key. The intent of a batch fixes the version of the table, so a record that is checked again gets the same result.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import networkx as nx
import pyarrow as pa

from lake_assets.engagement.model.checkpoint import Batch
from lake_assets.engagement.model.delta_log import open_table, read_rows
from lake_assets.engagement.model.table_schemas import ERASED, ERASURE
from lake_assets.engagement.model.tables import LakeTables

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

HASHED_SUBJECT = "who"
"""Name of the ids' subject in the keyed hash."""

_ERASED_UNTIL = pa.schema(
    [
        ("org_id", pa.string()),
        ("who_id", pa.string()),
        ("until", pa.timestamp("us", "UTC")),
    ]
)

HashedId = tuple[str, str]
"""(org, hash of an id)"""

ErasedUntil = Mapping[tuple[str, str], datetime]
"""(org, id or its hash) → time until which its records are erased, inclusive."""


@dataclass(frozen=True)
class ErasureRegistry:
    """Recognizes erased persons in the batches of a lake."""

    tables: LakeTables
    spark: SparkSession

    def reject_erased(
        self, messages: DataFrame, people: Mapping[str, str], batch: Batch, *, include_valid: bool = True
    ) -> DataFrame:
        """Mark the messages that name an erased person as invalid.

        Nothing is computed while nobody was erased.

        Args:
            messages: As `validate_messages` returns them.
            people: SQL of the id of a person → column with the time of the record. A record without a time is
                treated as sent before the erasure.
            include_valid: Whether to check valid messages, too.

        Returns:
            The same messages; where they name an erased person, reason is `ERASED` and message is null.
        """
        from pyspark.sql import functions as F

        erased = self._erased_in(messages, people, batch, include_valid=include_valid)
        if not erased:
            return messages
        is_checked = F.lit(True) if include_valid else F.col("reason").isNotNull()
        names_erased = F.lit(False)
        for who_column, time_column in people.items():
            names_erased |= F.coalesce(_sent_before_erasure(who_column, time_column), F.lit(False))
        is_erased = is_checked & names_erased
        by_org = erased_by_org(self.spark.createDataFrame(_erased_table(erased)))
        joined = messages.join(F.broadcast(by_org), F.expr("org_id = of_org"), "left")
        marked = joined.withColumns(
            {
                "reason": F.when(is_erased, ERASED).otherwise(F.col("reason")),
                "message": F.when(~is_erased, F.col("message")),
            }
        )
        return marked.select(*messages.columns)

    def _erased_in(
        self, messages: DataFrame, people: Mapping[str, str], batch: Batch, *, include_valid: bool
    ) -> ErasedUntil:
        """Return the erased ids that messages name."""
        if not people:
            return {}
        erased = self.erased_hashes(batch.reads[ERASURE])
        if not erased:
            return {}
        checked = messages if include_valid else messages.where("reason is not null")
        return self._named(checked, people, erased)

    def erased_hashes(self, version: int) -> ErasedUntil:
        """Return the hashes of all erased ids at a version of the table.

        Raises:
            ConfigurationError: They were hashed with another key.
        """
        rows = self._rows(version)
        self.tables.keyed.check(self.tables.location(ERASURE), (row["key_id"] for row in rows))
        until: dict[tuple[str, str], datetime] = {}
        for row in sorted(rows, key=lambda row: row["erased_until"]):
            until[row["org_id"], row["id_hash"]] = row["erased_until"]
        return until

    def by_person(self, version: int, ids: Iterable[tuple[str, str]]) -> dict[HashedId, list[str]]:
        """Group those of some ids that were erased at a version of the table by person.

        Ids belong to one person if erasures, also successive ones, treated them so.

        Args:
            ids: (org, id) pairs.

        Returns:
            (org, hash of the person) → ids, in the order given.
        """
        person_of = self._person_of_hash(version)
        found: dict[HashedId, list[str]] = {}
        for org, who_id in ids:
            person = person_of.get((org, self.hash(org, who_id)))
            if person is not None:
                found.setdefault(person, []).append(who_id)
        return found

    def hash(self, org: str, who_id: str) -> str:
        """Return the keyed hash of an id of an org."""
        return self.tables.keyed.of(HASHED_SUBJECT, org, who_id)

    def _person_of_hash(self, version: int) -> dict[HashedId, HashedId]:
        same_person: nx.Graph[HashedId] = nx.Graph()
        for row in self._rows(version):
            id_hash = (row["org_id"], row["id_hash"])
            person_hash = (row["org_id"], row["person_hash"])
            same_person.add_edge(id_hash, person_hash)
        person_of: dict[HashedId, HashedId] = {}
        for hashes in nx.connected_components(same_person):
            person_of.update(dict.fromkeys(hashes, min(hashes)))
        return person_of

    def _rows(self, version: int) -> list[dict[str, Any]]:
        table = open_table(self.tables.location(ERASURE), version)
        rows: list[dict[str, Any]] = read_rows(table).to_pylist()
        return rows

    def _named(self, messages: DataFrame, people: Iterable[str], erased: ErasedUntil) -> ErasedUntil:
        """Return the erased ids that the people columns of messages contain."""
        from pyspark.sql import functions as F

        orgs = sorted({org for org, _ in erased})
        of_orgs = messages.where(F.col("org_id").isin(orgs))
        who_ids = F.array_compact(F.array(*map(F.expr, people)))
        ids = of_orgs.select("org_id", F.explode(who_ids).alias("who_id")).distinct()
        found: dict[tuple[str, str], datetime] = {}
        for row in ids.toArrow().to_pylist():
            org, who_id = row["org_id"], row["who_id"]
            until = erased.get((org, self.hash(org, who_id)))
            if until is not None:
                found[org, who_id] = until
        return dict(sorted(found.items()))


def erased_by_org(people: DataFrame) -> DataFrame:
    """Return one row for each org: of_org string, erased map of id → time until which it is erased, inclusive.

    Args:
        people: org_id string, who_id string, until timestamp.
    """
    from pyspark.sql import functions as F

    entries = F.collect_list(F.struct("who_id", "until"))
    by_org = people.groupBy(F.col("org_id").alias("of_org"))
    return by_org.agg(F.map_from_entries(entries).alias("erased"))


def _erased_table(erased: ErasedUntil) -> pa.Table:
    rows = [{"org_id": org, "who_id": who_id, "until": until} for (org, who_id), until in erased.items()]
    return pa.Table.from_pylist(rows, schema=_ERASED_UNTIL)


def _sent_before_erasure(who_column: str, time_column: str) -> Column:
    """Return whether a column names an erased person, and a time is not after the erasure; null for nobody."""
    from pyspark.sql import functions as F

    until = F.try_element_at("erased", F.expr(who_column))
    sent_at = F.col(time_column)
    return until.isNotNull() & (sent_at.isNull() | (sent_at <= until))
