"""Two or three deaths, of one stream or of several, at points drawn by a seed; then turns that nothing happens to.

Whoever has died goes on before another stream does, as the coordinator has it. After each case the rows are what a
replay leaves.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, takewhile

from lake_assets.engagement.lake import STREAMS, StreamName
from lake_assets_tests.engagement.interrupted import ASKED, go_on, left, points_of, reached, settle
from lake_assets_tests.engagement.scenario import ORGS, Traffic
from lake_assets_tests.engagement.world import World
from lake_assets_tests.outcomes import Outcomes

SEED = 1
MOST_DEATHS = 3
Death = tuple[StreamName, str]
Case = Sequence[Death]


def cases(points: Mapping[StreamName, Sequence[str]], seed: int) -> Iterator[Case]:
    """Pairs and triples of deaths without end. Half of them are of one stream.

    Args:
        points: Stream → all points of its batch, in order.
    """
    chance = random.Random(seed)
    while True:
        count = chance.randint(2, MOST_DEATHS)
        if chance.random() < 0.5:
            names = [chance.choice(STREAMS)] * count
        else:
            names = sorted(chance.sample(STREAMS, count), key=STREAMS.index)
        found: list[Death] = []
        for name in names:
            again = bool(found) and found[-1][0] == name
            possible = reached(points[name], found[-1][1]) if again else points[name]
            found.append((name, chance.choice(possible)))
        yield found


class Crowd:
    """A lake whose people come, are converted, and are erased one after the other."""

    def __init__(self, mail: Traffic) -> None:
        self.mail = mail
        self.came = self.converted = self.erased = 0

    def prepare(self, name: StreamName, count: int) -> None:
        """Let so many people come, so that messages of a stream have somebody to act on."""
        if name == "ingestion":
            return
        for _ in range(count):
            self.arrive("ingestion")
        self.mail.run()
        if name == "retention":
            for _ in range(count):
                self.arrive("mutation")
            self.mail.run("mutation")

    def arrive(self, name: StreamName) -> None:
        """More messages of a stream: one about the next person, and one that is broken. An email comes twice."""
        mail = self.mail
        mail.spoil(name, [b"{"])
        if name == "ingestion":
            mail.send([len(mail.sent)], org_id=self.org(self.came), who_id=f"lead {self.came}")
            mail.resend(mail.sent[-1:])
            self.came += 1
        elif name == "mutation":
            number = self.converted
            mail.ask(self.org(number), "convert", f"lead {number}", f"contact {number}")
            self.converted += 1
        else:
            org, ids = self.org(self.erased), (f"lead {self.erased}", f"contact {self.erased}")
            mail.retain(org, "gdpr", ASKED, who_id=ids[0])
            mail.erased |= {(org, who) for who in ids}
            self.erased += 1

    def org(self, number: int) -> str:
        return ORGS[number % len(ORGS)]


def play(crowd: Crowd, case: Case, said: Mapping[str, Outcomes]) -> None:
    """Let the streams of a case die, one after the other, and go on; then nothing is left to do, and all is true.

    Args:
        said: Stream → point → what is left there.
    """
    mail = crowd.mail
    for name, of_name in groupby(case, key=lambda death: death[0]):
        deaths = [point for _, point in of_name]
        crowd.prepare(name, len(deaths) + 1)
        for point in deaths:
            crowd.arrive(name)
            mail.die(point, name)
            assert left(mail, name) == said[name][point], case
        crowd.arrive(name)
        go_on(mail, name)
    settle(mail)


def several(world: World, said: Mapping[str, Outcomes], seconds: float) -> Counter[str]:
    """Play cases for some time, one after the other in one lake. Kind of a case → how many of them."""
    mail = world.mail("several")
    crowd = Crowd(mail)
    points = {name: points_of(mail, name) for name in STREAMS}
    found: Counter[str] = Counter()
    end = time.monotonic() + seconds
    for case in takewhile(lambda _: time.monotonic() < end, cases(points, SEED)):
        play(crowd, case, said)
        found[kind_of(case)] += 1
        print(f"  {case}", flush=True)
    return found


def kind_of(case: Case) -> str:
    """What a case is called on the page."""
    number = "pairs" if len(case) == 2 else "triples"
    streams = "one stream" if len({name for name, _ in case}) == 1 else "several streams"
    return f"{number} of {streams}"
