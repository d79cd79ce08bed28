"""What comes of a micro-batch that is hit, at each point, and of one under which something breaks: played on real
services, written down.

    python -m lake_assets_tests.engagement.faults [PART ...]

plays all parts, or those that are named, and writes docs/engagement-faults.md. The tests play those of `PLAYED` again,
and hold the page to what they see.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

from lake_assets.connections.spark import open_spark
from lake_assets.engagement.lake import STREAMS, StreamName
from lake_assets.engagement.turn_order import MAINTENANCE
from lake_assets.services.lifecycle import lake_services
from lake_assets.settings import PROJECT, Settings
from lake_assets_tests.engagement.breaking import kafka_breaks, spark_breaks
from lake_assets_tests.engagement.holding import in_turn
from lake_assets_tests.engagement.interrupted import (
    MAILS,
    arrive,
    die,
    go_on,
    points_of,
    prepare,
    reached,
    settle,
    stretches,
    walk,
)
from lake_assets_tests.engagement.maintained import maintenance_dies
from lake_assets_tests.engagement.scenario import SESSION_SECONDS
from lake_assets_tests.engagement.several import SEED, several
from lake_assets_tests.engagement.world import SEEN, World
from lake_assets_tests.outcomes import Outcomes, columns, table

PAGE = PROJECT / "docs" / "engagement-faults.md"
SEVERAL_SECONDS = 600
AS_ABOVE = "each time, what its table says"


def killed(name: StreamName, world: World) -> dict[str, Outcomes]:
    """Attempts of a stream die at all points, each at the next one."""
    mail = world.mail(f"killed_{name}")
    prepare(mail, name)
    found = die(mail, name, points_of(mail, name))
    settle(mail)
    return {name: found}


def killed_alone(name: StreamName, world: World) -> dict[str, Outcomes]:
    """An attempt of a stream dies at one point, and the next is undisturbed; point by point.

    Each takes two people, and a lake has so many.
    """
    said, every = seen()[name], points_of(world.mail(f"alone_{name}"), name)
    for number, deaths in enumerate(stretches(every, MAILS // 2)):
        mail = world.mail(f"alone_{name}_{number}")
        prepare(mail, name)
        for point in deaths:
            assert die(mail, name, [point]) == {point: said[point]}
            arrive(mail, name)
            go_on(mail, name)
        settle(mail)
    return {SEEN: {f"{name} is killed at one point, and the next attempt is not: each point": AS_ABOVE}}


def killed_twice(name: StreamName, world: World) -> dict[str, Outcomes]:
    """A stream dies at a point and its next attempt at another: all pairs of points that leave something else behind.

    What is left before a process is what was left at the point before that.
    """
    said, every = seen()[name], points_of(world.mail(f"twice_{name}"), name)
    chosen = [point for point in every if point == every[0] or not point.startswith("before-")]
    ways = {point: [p for p in reached(every, point) if p in chosen] for point in chosen}
    for number, deaths in enumerate(stretches(walk(ways, chosen[0], chosen[-1]), MAILS)):
        mail = world.mail(f"twice_{name}_{number}")
        prepare(mail, name)
        assert die(mail, name, deaths) == {point: said[point] for point in deaths}
        settle(mail)
    pairs = sum(map(len, ways.values()))
    return {SEEN: {f"{name} is killed twice in a row: {pairs} pairs of points": AS_ABOVE}}


def killed_several_times(world: World) -> dict[str, Outcomes]:
    """Streams die twice and three times, at points drawn by a seed, for some minutes."""
    found = several(world, seen(), SEVERAL_SECONDS)
    counts = "; ".join(f"{kind}: {count}" for kind, count in sorted(found.items()))
    return {SEEN: {"streams are killed twice or three times, at random points": f"{AS_ABOVE} ({counts})"}}


Part = Callable[[World], Mapping[str, Outcomes]]
PARTS: Mapping[str, Part] = {
    **{name: partial(killed, name) for name in STREAMS},
    **{f"{name}-alone": partial(killed_alone, name) for name in STREAMS},
    **{f"{name}-twice": partial(killed_twice, name) for name in STREAMS},
    "maintenance": maintenance_dies,
    "in-turn": in_turn,
    "kafka": kafka_breaks,
    "spark": spark_breaks,
    "several": killed_several_times,
}
PLAYED = ("ingestion", "in-turn", "kafka")
"""The parts that the tests play, the first of them in `make test`; the others take too long."""


def seen() -> dict[str, Outcomes]:
    """What the page says: column → point or fault → what is seen."""
    with suppress(FileNotFoundError):
        return columns(PAGE.read_text())
    return {}


def page(found: Mapping[str, Outcomes]) -> str:
    """The page: the points of a batch, stream by stream; the other faults; notes on those that are there."""
    hits = [hit_points(name, found[name]) for name in (*STREAMS, MAINTENANCE) if name in found]
    hits += [MAINTAINED] if MAINTENANCE in found else []
    faults = found.get(SEEN, {})
    notes = "\n".join(note for words, note in NOTES.items() if any(words in fault for fault in faults))
    return "\n\n".join([HEAD, *hits, "## Other faults", table("fault", faults, {SEEN: faults}), notes, TAIL])


def hit_points(name: str, found: Outcomes) -> str:
    """The table of a stream, or of maintenance; points in a row that leave the same share a line. found: by point."""
    shown = {f"`{point}`": said for point, said in found.items()}
    return table("killed at", shown, {name: shown}, between=", ")


def quoted(names: Iterable[str]) -> str:
    """Names as the page lists them."""
    return ", ".join(f"`{name}`" for name in names)


def write(found: Mapping[str, Outcomes]) -> None:
    """To the page, beside what it says of other faults."""
    said = seen()
    PAGE.write_text(page(said | {column: {**said.get(column, {}), **of} for column, of in found.items()}))


HEAD = f"""# Faults of a micro-batch

The process of a turn dies at a named point of its batch. More messages arrive, and another attempt starts: this is
what it finds left to do. *written* says that the commit is there, and only not recorded.

In every cell, in the end: each message is a row or a dead letter, once; rows are what a sequential replay leaves; each
data commit has one notification commit with the counts of the change data feed.

Each cell is played on a real Kafka, ZooKeeper, Spark and Delta: {quoted(PLAYED[:1])} by `make test`,
{quoted(PLAYED[1:])} by `make faults`, the others by hand:

```
python -m lake_assets_tests.engagement.faults {" ".join(part for part in PARTS if part not in PLAYED)}
```

## Killed at each point

Each stream dies at all of its points in a row (parts {quoted(STREAMS)}). `before-` is after the lock was confirmed
for the last time, directly before the write."""
MAINTAINED = """After a person was erased, maintenance dies at each of its points and is called again (part
`maintenance`). No row changes, at whichever point it died."""
NOTES = {
    "at one point": "- **killed at one point** (`*-alone`): the next attempt goes on to the end of the batch.",
    "twice in a row": "- **killed twice in a row** (`*-twice`): pairs of points that can follow each other.",
    "random points": f"- **at random points** (`several`): two or three deaths, drawn with seed {SEED}.",
    "with the lock": f"- **killed with the lock** (`in-turn`): the coordinator's sessions last {SESSION_SECONDS:g} s.",
    "stopped": "- **stopped** (`in-turn`): for longer than the session, then continued.",
    "disk": "- **the disk is full** (`spark`): neither the turn nor its Spark may write a byte (`RLIMIT_FSIZE`).",
    "in the commit": "- **in the commit** (`spark`): the first file of data is there, and no commit that names it.",
}
"""Words of faults → what the page says about them."""
TAIL = """Faults of ZooKeeper are played in [the coordinator's tests](coordination-faults.md).
"""


def main() -> None:
    """Play the parts in one home, and write what they saw to the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; default: all")
    names = parser.parse_args().parts or PARTS
    with (
        tempfile.TemporaryDirectory(prefix="lake-faults-") as folder,
        lake_services(Settings(home=Path(folder))) as home,
    ):
        spark = open_spark(home)
        for name in names:
            print(f"{name} ...", flush=True)
            write(PARTS[name](World(home, spark, str(home.kafka), str(home.zookeeper))))
        spark.stop()
    print(f"written: {PAGE.relative_to(PROJECT)}")


if __name__ == "__main__":
    main()
