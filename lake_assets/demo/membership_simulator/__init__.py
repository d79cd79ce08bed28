"""A simulated membership business, and how its events reach the raw tables: late, twice, out of order, with gaps.

Everything is a function of one `Simulation`: the same value gives the same bytes, whatever was generated before.

population.py   what happens: events, a quarter of an hour at a time (pure)
model.py        the parameters of a simulation, with its model of delays (values)
batches.py      a landing: events, and rows that are bad on purpose, as rows of the raw tables (pure)
transit.py      events between the moment they happen and their landing (pure)
arrival.py      the landings of a simulation (pure)
figures.py      statistics of landings (pure)
scenes.py       landings made by hand: the worked example, rows for quarantine, a batch that an audit stops (pure)
messages.py     landings as messages for Kafka, and their heartbeats (pure)
landing.py      writes landings to the raw tables through Spark
"""

from lake_assets.demo.membership_simulator.arrival import generate
from lake_assets.demo.membership_simulator.batches import Landing
from lake_assets.demo.membership_simulator.figures import Figures, measure
from lake_assets.demo.membership_simulator.landing import land, repair
from lake_assets.demo.membership_simulator.messages import heartbeats, messages
from lake_assets.demo.membership_simulator.model import Arrival, Outage, Simulation, Stalls, late_day
from lake_assets.demo.membership_simulator.population import Population
from lake_assets.demo.membership_simulator.scenes import EXAMPLE, BadBatch, bad_batch, dirty_batch, worked_example

__all__ = [
    "EXAMPLE",
    "Arrival",
    "BadBatch",
    "Figures",
    "Landing",
    "Outage",
    "Population",
    "Simulation",
    "Stalls",
    "bad_batch",
    "dirty_batch",
    "generate",
    "heartbeats",
    "land",
    "late_day",
    "measure",
    "messages",
    "repair",
    "worked_example",
]
