"""Speed and memory of the engagement simulator: it generates the messages of a simulation and sends none.

    python -m benchmarks.traffic [--touches 700000] [--people 200000]

A simulation has about half as many further messages as touches. Time and memory are those of this process.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections import Counter

from lake_assets.demo.engagement_simulator import Simulation, generate
from lake_assets.engagement.lakes import EMAIL_EVENT


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--touches", type=int, default=700_000)
    parser.add_argument("--people", type=int, default=200_000)
    parser.add_argument("--orgs", type=int, default=1_000)
    arguments = parser.parse_args()
    simulation = Simulation(touches=arguments.touches, people=arguments.people, orgs=arguments.orgs)
    began = time.process_time()
    counts = Counter(message.topic for message in generate(simulation, EMAIL_EVENT))
    seconds = time.process_time() - began
    megabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    rate = counts.total() / seconds
    print(", ".join(f"{topic}: {count:,}" for topic, count in sorted(counts.items())))
    print(f"{counts.total():,} messages: {seconds:.1f} s of CPU, {rate:,.0f} a second, {megabytes} MB")


if __name__ == "__main__":
    main()
