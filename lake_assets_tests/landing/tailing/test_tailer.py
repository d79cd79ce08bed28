"""Two zones close the same files, whatever their speeds, their batches and their restarts; no message is dropped."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from struct import pack
from uuid import uuid4

import pytest
from confluent_kafka import Producer, cimpl
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lake_assets.engagement.topics import KafkaTopic
from lake_assets.errors import ServiceError
from lake_assets.landing.cutover import Policy, cut
from lake_assets.landing.kafka import HeartbeatSender, Place, Reader, ends_of, partitions
from lake_assets.landing.messages import HEARTBEAT, Feed, heartbeat_of
from lake_assets.landing.records import Record
from lake_assets.landing.state import IdleSpan
from lake_assets.landing.tail import Closed, Tail, step
from lake_assets.membership.raw import SIGNUPS

FEED = Feed("t", SIGNUPS, "account_id", max_bytes=300)
PLACE = Place("t", 0)
POLICIES = (  # of a version before
    Policy(4, 2_000, 60_000, by_heartbeats=False),
    Policy(3, 1_000, 30_000, from_offset=15, by_heartbeats=False),
)
IDLE = (Policy(9, 4_000, 60_000, max_idle_ms=150_000), Policy(7, 2_000, 60_000, from_offset=15, max_idle_ms=100_000))
SIX = datetime(2026, 1, 1, 6, tzinfo=UTC)


def signup(number: int) -> bytes:
    values = {"signup_id": f"s-{number}", "account_id": f"a-{number}", "event_ts": SIX.isoformat()}
    return json.dumps(values).encode()


VALUES = st.sampled_from([signup(1), signup(22), b"broken", b"{}", b"x" * 301, None])
STEPS = st.tuples(st.integers(1, 3), st.integers(-90_000, 90_000), VALUES, st.booleans())


def records(steps: Iterable[tuple[int, int, bytes | None, bool]]) -> list[Record]:
    """Messages with gaps between their offsets, and times that go back and forth; some are heartbeats."""
    found, offset, timestamp = [], -1, 1_000_000
    for gap, later, value, beats in steps:
        offset, timestamp = offset + gap, timestamp + later
        headers = ((HEARTBEAT, SIX.isoformat().encode()),) if beats else ()
        found.append(Record(0, offset, timestamp, b"k", value, headers))
    return found


def closed(messages: Sequence[Record], begin: int | None = None, policies: Sequence[Policy] = POLICIES) -> list[Closed]:
    tail = Tail(PLACE, FEED, lambda: policies, begin)
    return [found for record in messages if (found := tail.take(record))]


@given(st.lists(STEPS, max_size=40), st.lists(st.integers(1, 10), max_size=8), st.sampled_from([POLICIES, IDLE]))
def test_a_zone_that_dies_anywhere_closes_the_same_files(
    steps: list[tuple[int, int, bytes | None, bool]], lives: list[int], policies: Sequence[Policy]
) -> None:
    messages = records(steps)
    found: list[Closed] = []
    for life in lives:
        begin = found[-1].last + 1 if found else None
        found += closed([r for r in messages if begin is None or r.offset >= begin][:life], begin, policies)
    begin = found[-1].last + 1 if found else None
    found += closed([r for r in messages if begin is None or r.offset >= begin], begin, policies)
    assert found == closed(messages, policies=policies)


def beating(steps: Iterable[tuple[int, bool]]) -> list[Record]:
    """Messages of one second after the other; a heartbeat has the time of its message."""
    found: list[Record] = []
    for offset, (later, beats) in enumerate(steps):
        timestamp = (found[-1].timestamp if found else 1_000_000) + later
        time = datetime.fromtimestamp(timestamp / 1000, UTC).isoformat().encode()
        found.append(Record(0, offset, timestamp, b"k", signup(offset), ((HEARTBEAT, time),) if beats else ()))
    return found


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 90_000), st.booleans()), max_size=40))
def test_a_tail_says_of_its_open_file_how_far_there_are_heartbeats_alone(steps: list[tuple[int, bool]]) -> None:
    messages, told = beating(steps), None
    tail = Tail(PLACE, FEED, lambda: IDLE, None)
    older = Tail(PLACE, FEED, lambda: POLICIES, None)
    begin = 0
    for record in messages:
        older.take(record)
        assert older.take_idle() is None  # such files close in time
        if tail.take(record):
            begin = record.offset + 1
        open_file = [other for other in messages if begin <= other.offset <= record.offset]
        span = tail.take_idle()
        is_idle = bool(open_file) and all(other.headers for other in open_file)
        time = datetime.fromtimestamp(record.timestamp / 1000, UTC)
        is_news = told is None or told.first != begin or (time - told.heartbeat) >= timedelta(seconds=60)
        assert span == (IdleSpan("t", 0, begin, record.offset, time) if is_idle and is_news else None)
        told = span or told


def spans(messages: Sequence[Record]) -> Iterator[tuple[int, int]]:
    """Last offset and count of each file, by the policy of the offset behind the file before."""
    begin = messages[0].offset
    policies = [p for p in POLICIES if p.from_offset <= begin]
    while found := cut([m for m in messages if m.offset >= begin], policies[-1]):
        yield found[0].last, found[0].count
        begin = found[0].last + 1
        policies = [p for p in POLICIES if p.from_offset <= begin]


BEHIND_A_MARKER = [(gap, 0, signup(1), False) for gap in (2, 1, 1, 1, 6, 1, 1, 1, 2, 1, 1, 1)]
"""The third file begins at offset 14, its first message is 15: there another policy is effective already."""


@example(BEHIND_A_MARKER)
@given(st.lists(STEPS, min_size=1, max_size=40))
def test_files_hold_each_message_once_and_leave_no_offset_between_them(
    steps: list[tuple[int, int, bytes | None, bool]],
) -> None:
    messages = records(steps)
    found = closed(messages)
    assert [(f.last, len(f.records) + len(f.dead)) for f in found] == list(spans(messages))
    begin = messages[0].offset
    for file in found:
        assert file.first == begin
        assert sorted([*file.records, *file.dead]) == [r for r in messages if begin <= r.offset <= file.last]
        begin = file.last + 1
    for record in (r for file in found for r in file.dead):
        assert not record.headers
        assert record.value not in (signup(1), signup(22))


def drained(servers: str, topics: Sequence[str], *, most: int, lives: int) -> dict[Place, list[Closed]]:
    """The files of a zone that reads so many messages at a time, and is started anew so often."""
    feeds = {topic: Feed(topic, SIGNUPS, "account_id") for topic in topics}
    places = [Place(topic, p) for topic, found in partitions(servers, topics).items() for p in found]
    files: dict[Place, list[Closed]] = {place: [] for place in places}
    for life in range(lives):
        starts = {place: files[place][-1].last + 1 if files[place] else None for place in places}
        tails = {
            place: Tail(place, feeds[place.topic], lambda: [Policy(7, 1_000, 60_000)], starts[place])
            for place in places
        }
        with Reader(servers, starts) as reader:
            for _ in range(5) if life + 1 < lives else iter(lambda: reader.at_end, True):
                step(reader, tails, lambda file: files[file.place].append(file), max_messages=most, seconds=0.2)
    return files


def test_zones_of_different_speeds_close_the_same_files_of_kafka_and_idle_partitions_close_too(kafka: str) -> None:
    topics = [f"signups-{uuid4().hex}" for _ in range(2)]
    for topic in topics:
        KafkaTopic(kafka, topic).create(2)
    now = SIX
    heart = HeartbeatSender(kafka, tuple(topics), timedelta(minutes=2), clock=lambda: now)
    producer = Producer({"bootstrap.servers": kafka})
    for number in range(60):
        # The second topic's second partition gets one message at first, and nothing but heartbeats then.
        topic, partition = topics[number % 2], int((number % 2 == 0 and number % 4 == 0) or number == 1)
        now = SIX + timedelta(seconds=10 * number)
        producer.produce(topic, signup(number), partition=partition, timestamp=int(now.timestamp() * 1000))
        producer.flush()
        assert heart.send_if_due() == (number % 12 == 0)
    quick, slow = (drained(kafka, topics, most=most, lives=lives) for most, lives in ((1000, 1), (2, 4)))
    assert quick == slow
    idle = [record for file in quick[Place(topics[1], 1)] for record in file.records]
    assert [heartbeat_of(r.headers) for r in idle if r.value == b""] == [
        SIX + timedelta(minutes=2 * n) for n in range(4)
    ]
    assert [r.value for r in idle if r.value != b""] == [signup(1)]


def test_offsets_that_kafka_does_not_have_are_told_and_never_skipped(kafka: str) -> None:
    topic = f"signups-{uuid4().hex}"
    KafkaTopic(kafka, topic).create(2)
    with Reader(kafka, {Place(topic, 0): 7}) as reader, pytest.raises(ServiceError, match="from offset 7 on"):
        consume(reader)
    told: list[Place] = []

    def leave(place: Place, _: ServiceError) -> None:
        told.append(place)
        reader.leave(place)

    with Reader(kafka, {Place(topic, 0): 7, Place(topic, 1): None}, on_unreadable=leave) as reader:
        consume(reader)
    assert told == [Place(topic, 0)]
    with pytest.raises(ServiceError, match=f"has no topic {topic}x"):
        partitions(kafka, [topic, f"{topic}x"])


def test_a_header_whose_name_is_no_text_stops_nothing(kafka: str) -> None:
    topic = f"signups-{uuid4().hex}"
    KafkaTopic(kafka, topic).create(1)
    producer = Producer({"bootstrap.servers": kafka})
    for _ in range(30):  # the interpreter calls what has run often in another way
        producer.produce(topic, signup(2), headers=[("é", b"\xff")])
    assert producer.flush(20) == 0
    send_with_header(kafka, topic, signup(1), b"\xff\xfe")
    producer.produce(topic, signup(2), headers=[("é", b"\xff")])
    assert producer.flush(20) == 0
    with Reader(kafka, {Place(topic, 0): None}) as reader:
        found = [(record.value, record.headers) for record in consume(reader)]
    named = (signup(2), (("é", b"\xff"),))
    assert found == [*[named] * 30, (signup(1), ()), named]


def send_with_header(servers: str, topic: str, value: bytes, name: bytes) -> None:
    """Send a message as a client of another language may: that of Python takes texts alone for the names of headers."""
    library = ctypes.CDLL(cimpl.__file__)  # finds those of librdkafka, with which it is linked
    for made in (library.rd_kafka_new, library.rd_kafka_produceva):
        made.restype = ctypes.c_void_p
    client = ctypes.c_void_p(library.rd_kafka_new(0, None, None, 0))
    library.rd_kafka_brokers_add(client, servers.encode())
    texts = [ctypes.create_string_buffer(text) for text in (topic.encode(), value, name)]
    of_topic, of_value, of_name = map(ctypes.addressof, texts)
    # Topic, partition, value, flags (copy it), and header, each with its kind before it.
    fields = {1: pack("P", of_topic), 3: pack("i", 0), 4: pack("PN", of_value, len(value)), 7: pack("i", 2)}
    fields[9] = pack("PPn", of_name, of_value, 1)
    given = b"".join(pack("i4x", kind) + field.ljust(64, b"\0") for kind, field in fields.items())
    assert library.rd_kafka_produceva(client, given, ctypes.c_size_t(len(fields))) is None
    assert library.rd_kafka_flush(client, 20_000) == 0
    library.rd_kafka_destroy(client)


def test_what_was_there_is_read_though_more_comes_all_the_time_and_further_partitions(kafka: str) -> None:
    topic = f"signups-{uuid4().hex}"
    KafkaTopic(kafka, topic).create(2)
    place, another, producer = Place(topic, 0), Place(topic, 1), Producer({"bootstrap.servers": kafka})
    for number in range(5):
        producer.produce(topic, signup(number), partition=0)
    producer.produce(topic, signup(5), partition=1)
    assert producer.flush(20) == 0
    ends = ends_of(kafka, [place])
    assert ends == {place: 5}
    with Reader(kafka, {place: None}) as reader:
        while not reader.reached(ends):
            assert not reader.at_end
            producer.produce(topic, signup(5), partition=0)
            producer.flush(20)
            reader.read(1, seconds=5)
        reader.add({another: None})
        while not any(record.partition == 1 for _, record in reader.read(1, seconds=5)):
            pass
        assert reader.reached(ends)


def consume(reader: Reader) -> list[Record]:
    found = []
    while not reader.at_end:
        found += [record for _, record in reader.read(10, seconds=0.2)]
    return found
