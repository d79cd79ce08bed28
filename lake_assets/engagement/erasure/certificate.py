"""The certificate of an erasure from the lakes: every file under their folder is decoded and searched for an id.

An id belongs to an org: rows, messages and files of other orgs are not searched. The certificate also lists the topics
that still have messages with the id.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from lake_assets.engagement.erasure.kafka_retention import RetainedMessages, retained_messages
from lake_assets.engagement.erasure.mentions import MatchersByOrg, decoded_text, matchers_by_org, mentions
from lake_assets.engagement.model.kafka_topic import KafkaTopic
from lake_assets.engagement.model.lake import STREAMS, EngagementLake
from lake_assets.engagement.model.table_schemas import ENGAGEMENT, SENT_WHO_ID
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
