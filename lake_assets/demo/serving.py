"""The serving demo: a push, a refused one, a bad one that is taken back, one that dies; and a reader meanwhile."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from lake_assets.base.failpoints import EXIT_CODE
from lake_assets.demo.home import check, console, expect_command, headline, prepare_home
from lake_assets.services.servers import zookeeper
from lake_assets.services.service import free_port, running
from lake_assets.serving.query import query
from lake_assets.serving.served_tables import serving_at

if TYPE_CHECKING:
    from lake_assets.settings import Settings

TABLE = "shop.orders"
ROWS = 600_000
"""Of each day: three segments."""

SQL = f"select day, count(*) as orders, sum(cents) as cents from {TABLE} group by day order by day"
MONDAY, TUESDAY, WEDNESDAY = "Monday", "Tuesday", "Wednesday"
CENTS = {MONDAY: 250, TUESDAY: 300, WEDNESDAY: 350}
Seen = Counter[tuple[tuple[object, ...], ...]]


def run() -> None:
    """Play all scenes in the data directory of the settings, with a ZooKeeper that ends with them.

    Raises:
        ServiceError: ZooKeeper did not start.
        LakeError: A scene ended in another way than it should.
        UsageError: The data directory is not the demo's own.
    """
    began = time.monotonic()
    port = free_port()
    home = prepare_home(fixed={"LAKE_ZOOKEEPER": f"127.0.0.1:{port}", "LAKE_LAKES": ""})
    console.print("[dim]Starting zookeeper ...[/]")
    with running(zookeeper(home.home, port)), TemporaryDirectory(prefix="lake-demo-") as folder:
        _push(home, Path(folder))
        with _reader(home) as seen:
            _refuse(home, Path(folder))
            _take_back(home, Path(folder))
            _die(home, Path(folder))
        headline("The proof", "A reader asked all the time. Each answer is one whole push, in no scene a mixture.")
        whole = {((day, ROWS, ROWS * cents),) for day, cents in CENTS.items()}
        whole.add(((TUESDAY, ROWS, 100 * ROWS * CENTS[TUESDAY]),))
        check(f"{seen.total():,} answers, each of one whole push", set(seen) <= whole, expected=True)
        check("it saw every push that went through, the bad one, too", set(seen), whole)
    console.print(f"\n{time.monotonic() - began:.0f} s in all.")


def _push(home: Settings, folder: Path) -> None:
    headline("A push", f"{TABLE} is served from two files. They are one push: readers see both at once.")
    first, second = _files(folder, MONDAY)
    _expect(home, 0, "push", TABLE, "--file", str(first), "--file", str(second))
    _expect(home, 0, "query", TABLE, SQL)


def _refuse(home: Settings, folder: Path) -> None:
    headline("A push of other columns", "It is refused before readers see it, and nothing changes for them.")
    file = folder / "other.parquet"
    pq.write_table(pa.table({"day": [TUESDAY], "euros": [2.5]}), file)
    _expect(home, 1, "push", TABLE, "--file", str(file))
    check("readers see Monday", _day(home), MONDAY)


def _take_back(home: Settings, folder: Path) -> None:
    headline("A bad push", "Tuesday's amounts are a hundred times too large. Nobody could know: the push goes through.")
    files = [word for file in _files(folder, TUESDAY, factor=100) for word in ("--file", str(file))]
    _expect(home, 0, "push", TABLE, *files)
    _expect(home, 0, "query", TABLE, SQL)
    headline("Rollback", "One call takes the push back. What it had replaced is still there.")
    newest = json.loads(_expect(home, 0, "lineage", TABLE, "--json"))[0]
    _expect(home, 0, "revert", TABLE, newest["id"])
    check("readers see Monday again", _day(home), MONDAY)
    _expect(home, 0, "lineage", TABLE)
    files = [word for file in _files(folder, TUESDAY) for word in ("--file", str(file))]
    _expect(home, 0, "push", TABLE, *files)
    check("and then the corrected Tuesday", _day(home), TUESDAY)


def _die(home: Settings, folder: Path) -> None:
    headline("A push that dies", "Its process is killed when all is uploaded, and nothing is switched.")
    files = [word for file in _files(folder, WEDNESDAY) for word in ("--file", str(file))]
    _expect(home, EXIT_CODE, "push", TABLE, *files, LAKE_FAILPOINT="push-registered")
    check("readers see Tuesday", _day(home), TUESDAY)
    _expect(home, 1, "push", TABLE, *files)
    _expect(home, 0, "push", TABLE, *files, "--force")
    check("readers see Wednesday", _day(home), WEDNESDAY)


def _files(folder: Path, day: str, *, factor: int = 1) -> tuple[Path, Path]:
    """Two files with the orders of a day."""
    files = folder / f"{day}-1.parquet", folder / f"{day}-2.parquet"
    half = ROWS // 2
    for file in files:
        cents = pa.array([CENTS[day] * factor] * half, pa.int64())
        pq.write_table(pa.table({"day": [day] * half, "cents": cents}), file)
    return files


@contextmanager
def _reader(home: Settings) -> Iterator[Seen]:
    """Ask for the days, their orders and their amounts until the block ends. Yield how often each answer came."""
    stop = threading.Event()
    seen: Seen = Counter()
    failed: list[Exception] = []

    def read() -> None:
        try:
            with serving_at(str(home.zookeeper), home, clock=lambda: datetime.now(UTC)) as serving:
                while not stop.is_set():
                    found = query(serving.broker, SQL, serving.limits).rows
                    seen[tuple((day, orders, int(cents)) for day, orders, cents in found)] += 1
        except Exception as error:  # of the thread: raised below
            failed.append(error)

    reading = threading.Thread(target=read)
    reading.start()
    try:
        yield seen
        time.sleep(1)  # it also sees what the last scene left
    finally:
        stop.set()
        reading.join()
    check("the reader met no error", failed, [])


def _day(home: Settings) -> str:
    _, row = _expect(home, 0, "query", TABLE, SQL).splitlines()
    return row.split()[0]


def _expect(home: Settings, exit_code: int, *arguments: str, **variables: str) -> str:
    return expect_command(home, exit_code, "serving", *arguments, **variables)
