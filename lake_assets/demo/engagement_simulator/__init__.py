"""Simulated sales engagement as messages of a lake's topics: late, in chains, and with flaws on purpose.

Everything is a function of one `Simulation` and the lake: the same values give the same messages in the same order.

model.py        the parameters of a simulation (values)
people.py       orgs of very different size, and the ids of their people (pure)
activity.py     emails and calls, and when they become known (pure)
requests.py     conversions, merges, deletions, erasures and retention policies (pure)
flaws.py        the possible flaws of a message, with the reason of its dead letter (pure)
traffic.py      all of it as messages, in the order in which they are sent (pure)
replay.py       the rows that are right after all messages, for the demo (pure)
producer.py     sends messages to Kafka
"""

from lake_assets.demo.engagement_simulator.flaws import flaws
from lake_assets.demo.engagement_simulator.model import Simulation
from lake_assets.demo.engagement_simulator.people import org_names
from lake_assets.demo.engagement_simulator.producer import send
from lake_assets.demo.engagement_simulator.traffic import batches, generate
from lake_assets.demo.message import Message

__all__ = ["Message", "Simulation", "batches", "flaws", "generate", "org_names", "send"]
