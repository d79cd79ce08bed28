"""Against Apache Pinot's own code: it reads what we write, we read what it writes, and both route the same segments."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from kazoo.client import KazooClient
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

from lake_assets.connections.spark import spark_home
from lake_assets.coordination import zookeeper_client
from lake_assets.services.service import java_command
from lake_assets.serving.lineage import LineageEntry, SegmentLineage, State, routed
from lake_assets.serving.registry import COMPRESS_BYTES, LINEAGE, decode_lineage, encode_lineage
from lake_assets.settings import PROJECT

JARS = PROJECT / ".venv" / "jars-pinot"
START = datetime(2026, 1, 1, tzinfo=UTC)
SEGMENTS = [f"t_20260101T00000000{n}Z_push{n % 3}_{n:04d}" for n in range(9)]

names = st.lists(st.sampled_from(SEGMENTS), max_size=4, unique=True).map(tuple)
entries = st.builds(
    LineageEntry,
    id=st.uuids().map(str),
    segments_from=names,
    segments_to=names,
    state=st.sampled_from(State),
    timestamp=st.integers(0, 10**9).map(lambda n: START + timedelta(milliseconds=n)),
)
custom_maps = st.none() | st.dictionaries(st.sampled_from(["a", "b"]), st.text("xyz,", max_size=3))
lineages = st.builds(
    lambda found, custom: SegmentLineage("t", {entry.id: entry for entry in found}, custom),
    st.lists(entries, max_size=6),
    custom_maps,
)


class Pinot:
    """Pinot's classes in a Java of their own, and its store on a ZooKeeper."""

    def __init__(self, gateway: JavaGateway, hosts: str) -> None:
        self._gateway = gateway
        helix, self._lineage = gateway.jvm.org.apache.helix, gateway.jvm.org.apache.pinot.common.lineage
        serializer = helix.zookeeper.datamodel.serializer.ZNRecordSerializer()
        self._store = helix.store.zk.ZkHelixPropertyStore(hosts, serializer, "/PROPERTYSTORE")

    def read(self, table: str) -> Any:
        return self._lineage.SegmentLineageAccessHelper.getSegmentLineage(self._store, table)

    def write(self, lineage: Any, version: int) -> bool:
        return bool(self._lineage.SegmentLineageAccessHelper.writeSegmentLineage(self._store, lineage, version))

    def routed(self, lineage: Any, segments: list[str]) -> set[str]:
        found = self._gateway.jvm.java.util.HashSet(segments)
        self._lineage.SegmentLineageUtils.filterSegmentsBasedOnLineageInPlace(found, lineage)
        return set(found)

    def close(self) -> None:
        self._store.close()


@pytest.fixture(scope="module")
def pinot(zookeeper: str) -> Iterator[Pinot]:
    assert JARS.is_dir(), "Pinot's jars are not there: `make test` fetches them, once."
    port = launch_gateway(
        jarpath=str(next((spark_home() / "jars").glob("py4j-*.jar"))),
        classpath=str(JARS / "*"),
        javaopts=["-XX:TieredStopAtLevel=1", "-Xmx256m"],
        java_path=java_command(),
        die_on_exit=True,
    )
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auto_convert=True))
    found = Pinot(gateway, zookeeper)
    yield found
    found.close()
    gateway.shutdown()


@pytest.fixture(scope="module")
def zk(zookeeper: str) -> Iterator[KazooClient]:
    with zookeeper_client(zookeeper) as found:
        yield found


def written(zk: KazooClient, lineage: SegmentLineage) -> tuple[str, SegmentLineage]:
    """A lineage as it is stored: its node, and itself under a table's name that no other has."""
    table = f"t_{uuid.uuid4().hex[:10]}_OFFLINE"
    named = SegmentLineage(table, lineage.entries, lineage.custom_map)
    zk.create(f"{LINEAGE}/{table}", encode_lineage(named), makepath=True)
    return f"{LINEAGE}/{table}", named


def goes_through(pinot: Pinot, zk: KazooClient, lineage: SegmentLineage, segments: list[str]) -> None:
    path, named = written(zk, lineage)
    theirs = pinot.read(named.table)
    assert pinot.routed(theirs, segments) == routed(named, segments)
    assert pinot.write(theirs, zk.get(path)[1].version)
    data, status = zk.get(path)
    assert status.version == 1
    assert decode_lineage(data, path) == named


@given(lineages)
@hypothesis_settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_random_lineages_go_to_pinot_and_back_through_one_node(
    pinot: Pinot, zk: KazooClient, lineage: SegmentLineage
) -> None:
    goes_through(pinot, zk, lineage, SEGMENTS)


def test_one_that_is_compressed_does_too(pinot: Pinot, zk: KazooClient) -> None:
    pushes = [tuple(f"t_push{push:02d}_{n:04d}" for n in range(1000)) for push in range(12)]
    chain = [
        LineageEntry(f"e{i}", before, after, State.COMPLETED, START)
        for i, (before, after) in enumerate(pairwise(pushes))
    ]
    lineage = SegmentLineage("t", {entry.id: entry for entry in chain})
    assert len(encode_lineage(lineage)) < COMPRESS_BYTES
    assert not encode_lineage(lineage).startswith(b"{")
    goes_through(pinot, zk, lineage, [name for push in pushes for name in push])
