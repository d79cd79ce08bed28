"""Erasure from a lake: who was erased, which texts mention an id, and the certificate.

The table `erasure` stores keyed hashes, no ids. This process compares ids with it, so no plan or log of Spark contains
the key. The intent of a batch fixes the version of the table, so a record that is checked again gets the same result.

An id belongs to an org: rows, messages and files of other orgs are not searched. The certificate also lists the topics
that still have messages with the id.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from lake_assets.base.id_matcher import IdMatcher
from lake_assets.engagement.checkpoint import Batch
from lake_assets.engagement.delta_log import open_table, read_rows
from lake_assets.engagement.lake import STREAMS, EngagementLake
from lake_assets.engagement.requests import PERSON
from lake_assets.engagement.tables import ENGAGEMENT, ERASED, ERASURE, MUTATION_REQUEST, SENT_WHO_ID, LakeTables
from lake_assets.engagement.topics import KafkaTopic, RetainedMessages, retained_messages
from lake_assets.incremental.engine.retention import list_files, read_bytes
from lake_assets.incremental.erasure.certificate import (
    Certificate,
    FileFacts,
    FileSource,
    Kind,
    ProgressCallback,
    Reference,
    matcher_for,
    search_sources,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

MatchersByOrg = Mapping[str, Sequence[IdMatcher]]
"""Org → matchers of the ids to look for."""

_ORG = "org_id"


def matchers_by_org(ids: Iterable[tuple[str, str]]) -> MatchersByOrg:
    """Return matchers for (org, id) pairs."""
    found: defaultdict[str, list[IdMatcher]] = defaultdict(list)
    for org, who_id in ids:
        found[org].append(IdMatcher(who_id))
    return dict(found)


def mentions(text: str | None, wanted: MatchersByOrg) -> bool:
    """Return whether a text contains one of the ids as a word, in any JSON spelling, and is not of another org."""
    if text is None:
        return False
    decoded = _decode(text)
    for org, matchers in wanted.items():
        if decoded.may_be_of(org) and any(matcher.in_text(decoded.text) for matcher in matchers):
            return True
    return False


def decoded_text(text: str | None, org: str | None = None) -> str | None:
    """Return a JSON text without escapes; a text that is no JSON is returned as it is.

    Args:
        org: Return None if the text is of another org; None for any org.
    """
    if text is None:
        return None
    decoded = _decode(text)
    if org is not None and not decoded.may_be_of(org):
        return None
    return decoded.text


@dataclass(frozen=True)
class _Decoded:
    """A text without JSON escapes, and the orgs that it names."""

    text: str
    orgs: frozenset[str] = frozenset()

    def may_be_of(self, org: str) -> bool:
        """Return whether the text may be of an org. A text without an org, or with a blank one, may be of any."""
        return not self.orgs or org in self.orgs


def _decode(text: str) -> _Decoded:
    """Decode a JSON text. Numbers keep their spelling, as in Spark. If an object repeats a name, both values count."""
    try:
        value = json.loads(text, object_pairs_hook=tuple, parse_int=str, parse_float=str)
        unescaped = json.dumps(value, ensure_ascii=False)
    except (ValueError, RecursionError):
        return _Decoded(text)
    pairs = value if isinstance(value, tuple) else ()
    orgs = set()
    for name, org in pairs:
        if name == _ORG and org is not None:
            orgs.add(_as_text(org))
    named = frozenset(org for org in orgs if org.strip())
    encodable = unescaped.encode(errors="replace").decode()  # a lone surrogate cannot be encoded
    return _Decoded(encodable, named)


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


HASHED_SUBJECT = "who"
"""Name of the ids' subject in the keyed hash."""

_ERASED_UNTIL = pa.schema(
    [
        ("org_id", pa.string()),
        ("who_id", pa.string()),
        ("until", pa.timestamp("us", "UTC")),
    ]
)

HashedLink = tuple[str, str, str, datetime]
"""(org, hash of an id, hash of another one of the same person, since when requests connect them)"""

ErasedUntil = Mapping[tuple[str, str], datetime]
"""(org, id or its hash) → time until which its records are erased, inclusive."""


@dataclass(frozen=True)
class ErasureRegistry:
    """Recognizes erased persons in the batches of a lake."""

    tables: LakeTables
    spark: SparkSession

    def reject_erased(
        self,
        messages: DataFrame,
        people: Mapping[str, str],
        batch: Batch,
        *,
        include_valid: bool = True,
        also: Sequence[tuple[Mapping[str, str], Mapping[str, Column]]] = (),
    ) -> DataFrame:
        """Mark the messages that name an erased person as invalid.

        Nothing is computed while nobody was erased.

        Args:
            messages: As `validate_messages` returns them.
            people: SQL of the id of a person → SQL of the time of the record. A record without a time is
                treated as sent before the erasure.
            include_valid: Whether to check valid messages, too.
            also: Further people, with column → the value that it gets where a message names one who is erased.

        Returns:
            The same messages; where they name an erased person of `people`, reason is `ERASED` and message is null.
        """
        from pyspark.sql import functions as F

        marks = [(people, {"reason": F.lit(ERASED), "message": F.lit(None)}), *also]
        named = {who: time for of_mark, _ in marks for who, time in of_mark.items()}
        erased = self._erased_in(messages, named, batch, include_valid=include_valid)
        if not erased:
            return messages
        is_checked = F.lit(True) if include_valid else F.col("reason").isNotNull()
        marked: dict[str, Column] = {}
        for of_mark, values in marks:
            names_erased = F.lit(False)
            for who_column, time_column in of_mark.items():
                names_erased |= F.coalesce(_sent_before_erasure(who_column, time_column), F.lit(False))
            is_erased = is_checked & names_erased
            marked |= {name: F.when(is_erased, value).otherwise(F.col(name)) for name, value in values.items()}
        by_org = erased_by_org(self.spark.createDataFrame(_erased_table(erased)))
        joined = messages.join(F.broadcast(by_org), F.expr("org_id = of_org"), "left")
        return joined.withColumns(marked).select(*messages.columns)

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

    def cut_offs(self, version: int) -> DataFrame | None:
        """Return the cut-offs of orgs at a version of the table: of_org string, expired_until timestamp, inclusive.

        None if there are none.
        """
        rows = self._rows(version, of_ids=False)
        cut_offs = sorted((row["org_id"], row["erased_until"]) for row in rows)
        if not cut_offs:
            return None
        return self.spark.createDataFrame([*dict(cut_offs).items()], "of_org string, expired_until timestamp")

    def links(self, reads: Mapping[str, int], orgs: Collection[str] | None = None) -> list[HashedLink]:
        """Return the requests of erased persons, hashed, and what older erasures tell of whose ids were connected.

        Args:
            reads: Table → version.
            orgs: Orgs to read; None for all.
        """
        names = "org_id, old_id, new_id, executed_at"
        statement = f"SELECT DISTINCT {names} FROM {MUTATION_REQUEST} WHERE status = '{ERASED}'"
        requests = self.tables.query(MUTATION_REQUEST, statement, reads[MUTATION_REQUEST])
        links = [(row["org_id"], row["old_id"], row["new_id"], row["executed_at"]) for row in requests]
        for row in self._rows(reads[ERASURE]):
            links.append((row["org_id"], row["id_hash"], row["person_hash"], row["erased_until"]))
        return [link for link in links if None not in link and (orgs is None or link[0] in orgs)]

    def late(self, reads: Mapping[str, int]) -> list[tuple[str, str, datetime]]:
        """Return the erasures whose person has got further ids since, by requests that came late.

        Returns:
            (org, hash of an id, time until which it is erased)
        """
        erased = self.erased_hashes(reads[ERASURE])
        found = set()
        for org, *ids, at in self.links(reads) if erased else ():
            known = [(erased[org, each], each) for each in ids if (org, each) in erased]
            until, of_id = max(known, default=(at, ""))
            if known and until >= at and any(erased.get((org, each)) != until for each in ids):
                found.add((org, of_id, until))
        return sorted(found)

    def hash(self, org: str, who_id: str) -> str:
        """Return the keyed hash of an id of an org, also if it is known by its hash alone."""
        if who_id.startswith(self.hashed_name):
            return who_id.removeprefix(self.hashed_name)
        return self.tables.keyed.of(HASHED_SUBJECT, org, who_id)

    @cached_property
    def hashed_name(self) -> str:
        """Beginning of what stands for an id that is known by its hash alone. Nobody without the key can send it."""
        return self.tables.keyed.of(HASHED_SUBJECT)

    def hash_request(self, request: Mapping[str, Any]) -> dict[str, str | None]:
        """Return old_id and new_id of a request, hashed; nulls if they are not of persons."""
        ids = {name: request[name] if request["column"] == PERSON else None for name in ("old_id", "new_id")}
        return {name: None if each is None else self.hash(request["org_id"], each) for name, each in ids.items()}

    def _rows(self, version: int, *, of_ids: bool = True) -> list[dict[str, Any]]:
        """Return the rows of erased ids at a version of the table, or (`of_ids` is false) the cut-offs."""
        table = open_table(self.tables.location(ERASURE), version)
        rows: list[dict[str, Any]] = read_rows(table).to_pylist()
        return [row for row in rows if (row["id_hash"] is not None) == of_ids]

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
    """Return whether SQL gives an erased person, and a time that is not after the erasure; null for nobody."""
    from pyspark.sql import functions as F

    until = F.try_element_at("erased", F.expr(who_column))
    sent_at = F.expr(time_column)
    return until.isNotNull() & (sent_at.isNull() | (sent_at <= until))


ORG_FOLDER = "org_id="
NO_ORG = "__HIVE_DEFAULT_PARTITION__"

MESSAGE = "message"
ID_COLUMNS = ("who_id", SENT_WHO_ID, "old_id", "new_id", "record_who_id")

JSON_COLUMNS = (MESSAGE, "insert_record")
"""Columns of JSON text. They are searched without escapes. A record belongs to the org of its request."""


@dataclass(frozen=True)
class LakeCertificate(Certificate):
    """Where an id of an org is under the folder of the lakes.

    Attributes:
        kafka: The topics that still have messages with the id.
    """

    kafka: tuple[RetainedMessages, ...] = ()


def certify(
    root: str,
    lakes: Iterable[EngagementLake],
    org: str,
    value: str,
    servers: str,
    *,
    progress: ProgressCallback = lambda done, size: None,
) -> LakeCertificate:
    """Search every file of the lakes, and the topics of the lakes that exist, for an id of an org.

    Args:
        root: Address of the folder of all lakes.
        lakes: Whose topics are searched.
        org: The org that the id belongs to.
        value: The id.
        servers: Addresses of Kafka.
        progress: Called after each file.

    Raises:
        ServiceError: Kafka does not answer.
        UsageError: The id is empty.
    """
    matcher = matcher_for(value, name="who_id", columns=ID_COLUMNS)
    found = search_sources([LakeFiles(root, org)], matcher, subject=f"org {org}", progress=progress)
    mentions_id = partial(_mentions_id, ids=matchers_by_org([(org, value)]))
    messages = []
    for lake in lakes:
        if DeltaTable.is_deltatable(f"{root}/{lake.name}/{ENGAGEMENT}"):
            topics = [KafkaTopic(servers, lake.topic(stream)) for stream in STREAMS]
            messages += [retained_messages(topic, mentions_id) for topic in topics]
    return LakeCertificate(
        subject=found.subject,
        files=found.files,
        bytes=found.bytes,
        findings=found.findings,
        undecoded=found.undecoded,
        kafka=tuple(each for each in messages if each),
    )


def _mentions_id(message: bytes, *, ids: MatchersByOrg) -> bool:
    return mentions(message.decode(errors="replace"), ids)


class LakeFiles(FileSource):
    """The files under the folder of all lakes that may mention an org: `<lake>/<table>/...`."""

    def __init__(self, location: str, org: str) -> None:
        super().__init__(location)
        self.org = org
        self.row_filter = partial(_rows_of_org, org=org)

    def includes(self, path: str) -> bool:
        """Return whether a file is outside of the folders of other orgs."""
        folders = [name for name in path.split("/") if name.startswith(ORG_FOLDER)]
        orgs = [unquote(folder.removeprefix(ORG_FOLDER)) for folder in folders]
        return all(org in (self.org, NO_ORG) for org in orgs)

    def facts(self, path: str) -> FileFacts:
        inside = self.parts(path)
        lake_and_table = inside[:2]
        kind = _kind(inside)
        location = "/".join([self.location.rstrip("/"), *lake_and_table])
        reference = self._reference(location, kind, inside[-1])
        return FileFacts(".".join(lake_and_table), kind, reference)

    def _reference(self, location: str, kind: Kind, name: str) -> Reference:
        """Return what names a file of a table: its present version, a former version in its log, or nothing."""
        if kind == "metadata":
            return "history"
        if kind == "other" or not DeltaTable.is_deltatable(location):
            return "nothing"
        if any(uri.endswith(f"/{name}") for uri in DeltaTable(location).file_uris()):
            return "main"
        return "history" if self._is_in_log(location, name) else "nothing"

    def _is_in_log(self, location: str, name: str) -> bool:
        for log in list_files(self.io, f"{location}/_delta_log"):
            if log.path.endswith(".json") and name.encode() in read_bytes(self.io, log.location):
                return True
        return False


def _rows_of_org(rows: pa.RecordBatch, *, org: str) -> pa.RecordBatch:
    """Return the rows that belong to no other org, with JSON texts without escapes."""
    fields = [field.with_type(_comparable(field.type)) for field in rows.schema]
    rows = rows.cast(pa.schema(fields))
    if "org_id" in rows.schema.names:
        orgs = rows.column("org_id")
        is_own = pc.fill_null(pc.equal(orgs, org), False)
        rows = rows.filter(pc.or_kleene(pc.is_null(orgs), is_own))
    for name in set(JSON_COLUMNS) & set(rows.schema.names):
        only_org = org if name == MESSAGE else None
        texts = [decoded_text(text, only_org) for text in rows.column(name).to_pylist()]
        position = rows.schema.get_field_index(name)
        rows = rows.set_column(position, name, pa.array(texts, pa.string()))
    return rows


def _comparable(kind: pa.DataType) -> pa.DataType:
    """Return a type that can be compared and filtered: deltalake's merges leave string views."""
    return pa.string() if pa.types.is_string_view(kind) else kind


def _kind(inside: Sequence[str]) -> Kind:
    """Return the kind of a file by the names that Delta gives; a file outside of any table is `other`.

    Args:
        inside: Lake, table, ..., and name of the file.
    """
    if len(inside) < 3:
        return "other"
    if "_delta_log" in inside:
        return "metadata"
    if "_change_data" in inside:
        return "change feed"
    if inside[-1].endswith(".parquet"):
        return "data"
    return "delete" if inside[-1].startswith("deletion_vector_") else "other"
