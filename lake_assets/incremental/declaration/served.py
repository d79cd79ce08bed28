"""How readers see a target in the serving part, in short or as Apache Pinot's table configuration says it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import yaml

from lake_assets.errors import ConfigurationError
from lake_assets.settings import SERVED_TABLE

Frequency = Literal["HOURLY", "DAILY"]
SECONDS: Mapping[str, int] = {"HOURLY": 3_600, "DAILY": 86_400}

_SIZE = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[KMGTP]?)B?", re.IGNORECASE)
_UNITS = "KMGTP"
TO_NAME = "Use letters, digits, _ and -, with at most one database before a dot: orders, orders-eu, sales.orders."
TO_WRITE = 'Write served=True, served=Served(name="..."), or the table configuration of Pinot: a dict, or its file.'


@dataclass(frozen=True)
class Served:
    """How readers see a target in the serving part. Each push replaces the rows of the push before.

    Attributes:
        name: The served table; None for the target without its namespace.
        rows: `"newest"` serves the newest complete hour or day, for a target in which each contains all that is known.
            `"all"` serves all published rows. None: newest of a sequential target, all of others.
        frequency: `"HOURLY"` or `"DAILY"`: an automatic push follows the one before after an hour or a day at the
            earliest. None: after each change.
        quota: The most that all snapshots of the table may take, such as `"10G"`; None: LAKE_SERVING_QUOTA_MB.
    """

    name: str | None = None
    rows: Literal["newest", "all"] | None = None
    frequency: Frequency | None = None
    quota: str | None = None

    def __post_init__(self) -> None:
        if self.name is not None and not (isinstance(self.name, str) and SERVED_TABLE.fullmatch(self.name)):
            raise ConfigurationError(f"A served table is called {self.name!r}.", remedy=TO_NAME)
        if self.rows not in (None, "newest", "all"):
            raise ConfigurationError(f"Served has rows={self.rows!r}.", remedy="Use 'newest' or 'all'.")
        if self.frequency is not None and str(self.frequency) not in SECONDS:
            raise ConfigurationError(
                f"Served has the frequency {self.frequency!r}.", remedy=f"Use {' or '.join(SECONDS)}, or leave it out."
            )
        if self.quota is not None and not self.quota_bytes:
            raise ConfigurationError(f"Served has the quota {self.quota!r}.", remedy='Write a size such as "10G".')

    @property
    def quota_bytes(self) -> int | None:
        """The quota in bytes. As in Pinot, a kilobyte has 1,024."""
        found = _SIZE.fullmatch(self.quota.strip()) if isinstance(self.quota, str) else None
        if found is None:
            return None
        return int(float(found["number"]) * 1024 ** (_UNITS.find(found["unit"].upper()) + 1 if found["unit"] else 0))

    @classmethod
    def from_pinot(cls, config: Mapping[str, Any] | str | Path) -> Served:
        """Return what a table configuration of Apache Pinot declares. Keys that serving has no use for are ignored.

        Args:
            config: The configuration, or its file of JSON or YAML.

        Raises:
            ConfigurationError: The file cannot be read, or the table is none that is pushed as whole snapshots.
        """
        found, place = config, "The table configuration"
        if not isinstance(config, Mapping):
            place = str(config)
            try:
                found = yaml.safe_load(Path(config).read_text(encoding="utf-8"))
            except (OSError, UnicodeError, yaml.YAMLError) as error:
                raise ConfigurationError(
                    f"{place}, a table configuration of Pinot, cannot be read: {' '.join(str(error).split())}.",
                    remedy="Name a file of JSON or YAML, relative to the file that declares the table.",
                ) from None
        if isinstance(found, Mapping) and "tableName" not in found:
            found = found.get("OFFLINE", found)  # as a controller answers `GET /tables/<table>`
        name = found.get("tableName") if isinstance(found, Mapping) else None
        if not isinstance(found, Mapping) or not isinstance(name, str):
            raise ConfigurationError(f"{place} has no tableName.", remedy='Write "tableName": "orders".')
        place = f"{place} of {name}"
        of_batches = _within(found, place, "ingestionConfig", "batchIngestionConfig")
        of_segments = _within(found, place, "segmentsConfig")  # where Pinot had them before
        kind = "REALTIME" if name.endswith("_REALTIME") else str(found.get("tableType", "OFFLINE")).upper()
        ingestion = of_batches.get("segmentIngestionType") or of_segments.get("segmentPushType") or "REFRESH"
        consistent = str(of_batches.get("consistentDataPush", True)).lower()
        if kind != "OFFLINE":
            raise ConfigurationError(
                f"{place} has the tableType {kind}. A served table is pushed as whole snapshots, from no stream.",
                remedy="Write OFFLINE. Rows of a stream land in a raw table (`Topic`), and a target of it is served.",
            )
        if str(ingestion).upper() != "REFRESH":
            raise ConfigurationError(
                f"{place} has the segmentIngestionType {ingestion}. Each push replaces all rows of a served table.",
                remedy="Write REFRESH. The rows to append belong into the target, all of whose rows are then served.",
            )
        if consistent != "true":
            raise ConfigurationError(
                f"{place} has consistentDataPush: {consistent}. Readers would see a mixture while a push runs.",
                remedy="Write consistentDataPush: true, or leave it out.",
            )
        frequency = of_batches.get("segmentIngestionFrequency") or of_segments.get("segmentPushFrequency")
        return cls(
            name=name.removesuffix("_OFFLINE"),
            rows=found.get("rows"),
            frequency=cast("Frequency | None", frequency.upper() if isinstance(frequency, str) else frequency),
            quota=_within(found, place, "quota").get("storage"),
        )


def _within(config: Mapping[str, Any], place: str, *keys: str) -> Mapping[str, Any]:
    """Return a part of a configuration; nothing if there is none."""
    found: Mapping[str, Any] = config
    for key in keys:
        found = found.get(key) or {}
        if not isinstance(found, Mapping):
            raise ConfigurationError(f"{place} has {key}: {found!r}.", remedy=f"Write the keys of {key} below it.")
    return found


def declared_served(table: str, value: object, folder: Path) -> Served | None:
    """Return how a target is served.

    Args:
        table: The target.
        value: Of `served=`: whether it is, how, or Pinot's configuration or its file.
        folder: Of the declaration, to which the name of a file is relative.

    Raises:
        ConfigurationError: The value is none of these.
    """
    if isinstance(value, bool) or value is None:
        return Served() if value else None
    if isinstance(value, Served):
        return value
    if isinstance(value, Mapping):
        return Served.from_pinot(value)
    if isinstance(value, Path) or (isinstance(value, str) and value.endswith((".json", ".yaml", ".yml"))):
        return Served.from_pinot(folder / value)
    raise ConfigurationError(f"served= of {table} is {value!r}.", remedy=TO_WRITE)
