"""The certificate of an erasure from the lakes: every file under their folder is decoded, and searched for an id.

An id is an org's: rows, messages and files that tell another org are not searched. The rest is as for the certificate
of raw tables and targets (`incremental.certificate`), and what Kafka still holds is told beside it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from pyiceberg.io import load_file_io

from lake_assets.base.id_matcher import IdMatcher
from lake_assets.engagement.erasure.kafka_retention import RetainedMessages, retained_messages
from lake_assets.engagement.erasure.mentions import MatchersByOrg, decoded_text, matchers_by_org, mentions
from lake_assets.engagement.model.kafka_topic import KafkaTopic
from lake_assets.engagement.model.lake import STREAMS, EngagementLake
from lake_assets.engagement.model.table_schemas import ENGAGEMENT
from lake_assets.errors import UsageError
from lake_assets.incremental.erasure.certificate import Certificate, Finding, Kind, Progress, Reference, content, search
from lake_assets.incremental.maintenance.cleaning import ListedFile, listing, place

ORG_FOLDER = "org_id="
NO_ORG = "__HIVE_DEFAULT_PARTITION__"
MESSAGE = "message"
TEXTS = (MESSAGE, "insert_record")
"""Columns that hold JSON: searched as what it says, not as it is spelled. A record is of its request's org."""


@dataclass(frozen=True)
class LakeCertificate(Certificate):
    """Where an id of an org is under the folder of the lakes. kafka: the topics that still hold messages of it."""

    kafka: tuple[RetainedMessages, ...] = ()


def certify(
    root: str,
    lakes: Iterable[EngagementLake],
    org: str,
    value: str,
    servers: str,
    *,
    progress: Progress = lambda done, of: None,
) -> LakeCertificate:
    """Search every file of the lakes, and the topics of those that were created, for an id of an org.

    root: the folder of all lakes, as an address. servers: of Kafka. progress: bytes read, of how many. Raises
    `UsageError` for an empty id, `ServiceError` if Kafka does not answer.
    """
    if not value.strip():
        raise UsageError("The id is empty.", remedy="Name the who_id to look for.")
    io, needle = load_file_io({}, root), IdMatcher(value)
    files = [file for file in listing(io, root) if _may_hold(file.path, org)]
    size, done, findings, undecoded = sum(file.bytes for file in files), 0, [], []
    for file in files:
        count, decoded = search(io, file, needle, partial(_own_rows, org=org))
        if not decoded:
            undecoded.append(file.path)
        if count:
            findings.append(_finding(file, root, count))
        done += file.bytes
        progress(done, size)
    created = [lake for lake in lakes if DeltaTable.is_deltatable(f"{root}/{lake.name}/{ENGAGEMENT}")]
    topics = [KafkaTopic(servers, lake.topic(stream)) for lake in created for stream in STREAMS]
    wanted = matchers_by_org([(org, value)])
    kept = [found for topic in topics if (found := retained_messages(topic, partial(_tells, of=wanted)))]
    return LakeCertificate(f"org {org}", len(files), size, tuple(findings), tuple(undecoded), tuple(kept))


def _may_hold(path: str, org: str) -> bool:
    """Whether a file may tell of the org: not if it is in the folder of another one."""
    folders = [unquote(part.removeprefix(ORG_FOLDER)) for part in path.split("/") if part.startswith(ORG_FOLDER)]
    return all(folder in (org, NO_ORG) for folder in folders)


def _own_rows(rows: pa.RecordBatch, *, org: str) -> pa.RecordBatch:
    """The rows that tell no other org, with texts of JSON as what they say."""
    rows = rows.cast(pa.schema([field.with_type(_plain(field.type)) for field in rows.schema]))
    if "org_id" in rows.schema.names:
        of = rows.column("org_id")
        rows = rows.filter(pc.or_kleene(pc.is_null(of), pc.fill_null(pc.equal(of, org), False)))
    for name in set(TEXTS) & set(rows.schema.names):
        texts = [decoded_text(text, org if name == MESSAGE else None) for text in rows.column(name).to_pylist()]
        rows = rows.set_column(rows.schema.get_field_index(name), name, pa.array(texts, pa.string()))
    return rows


def _plain(kind: pa.DataType) -> pa.DataType:
    """A type that can be compared and filtered. What deltalake has merged comes back as views."""
    return pa.string() if pa.types.is_string_view(kind) else kind


def _tells(message: bytes, *, of: MatchersByOrg) -> bool:
    return mentions(message.decode(errors="replace"), of)


def _finding(file: ListedFile, root: str, count: int) -> Finding:
    """table: `<lake>.<table>`."""
    inside = file.path.removeprefix(place(root).rstrip("/") + "/").split("/")
    location = "/".join((root.rstrip("/"), *inside[:2]))
    kind = _kind(inside)
    return Finding(file.path, ".".join(inside[:2]), kind, count, _reference(location, kind, inside[-1]))


def _reference(location: str, kind: Kind, name: str) -> Reference:
    """By what a file of a table is named: its present version, a former one that the log still tells of, or nothing."""
    if kind == "metadata":
        return "history"
    if kind == "other" or not DeltaTable.is_deltatable(location):
        return "nothing"
    if any(uri.endswith(f"/{name}") for uri in DeltaTable(location).file_uris()):
        return "main"
    io = load_file_io({}, location)
    logs = (file for file in listing(io, f"{location}/_delta_log") if file.path.endswith(".json"))
    return "history" if any(name.encode() in content(io, file) for file in logs) else "nothing"


def _kind(inside: list[str]) -> Kind:
    """Of a file of a table, as Delta gives names. inside: lake, table, ... name; a file of no table is another."""
    if len(inside) < 3:
        return "other"
    if "_delta_log" in inside:
        return "metadata"
    if "_change_data" in inside:
        return "change feed"
    if inside[-1].endswith(".parquet"):
        return "data"
    return "delete" if inside[-1].startswith("deletion_vector_") else "other"
