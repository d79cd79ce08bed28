"""Running services and a home on them, for lakes that are hit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lake_assets_tests.engagement.scenario import Traffic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lake_assets.settings import Settings

SEEN = "what is seen"


@dataclass(frozen=True)
class World:
    """The services, and a home whose lakes are told apart by their names. kafka, zookeeper: `host:port`."""

    home: Settings
    spark: SparkSession
    kafka: str
    zookeeper: str

    def mail(self, name: str, *, kafka: str | None = None, zookeeper: str | None = None) -> Traffic:
        """A lake. kafka: another broker. zookeeper: for turns with the coordinator; without it nobody else is there."""
        return Traffic(self.home.model_copy(update={"zookeeper": zookeeper}), self.spark, kafka or self.kafka, name)
