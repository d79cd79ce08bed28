"""A home with an engagement lake and a served table as an earlier revision leaves it, for the test of upgrades.

    python -m benchmarks.servers_before REVISION FILE.tar.xz

The revision's own commands and servers make it: Spark, ZooKeeper and Kafka, whose data are in the directory, too. A
turn of ingestion has died after it wrote rows. The file has the folder `home`.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from benchmarks.before import code_of

LEFT_OUT = ("logs", "run", "spark.token", "spark-warehouse")
TABLE = "numbers"
PLAY = f"""
import os, subprocess, sys
import pyarrow as pa, pyarrow.parquet as pq
from lake_assets.base.failpoints import EXIT_CODE
from lake_assets.demo.engagement_simulator import Simulation, generate, org_names, send
from lake_assets.engagement.model.lakes import EMAIL_EVENT
from lake_assets.engagement.model.tables import open_tables
from lake_assets.services.stack import lake_services
from lake_assets.settings import settings

def lake(*words, point="", code=0):
    command = [sys.executable, "-m", "lake_assets.cli.main", *words]
    done = subprocess.run(command, env={{**os.environ, "LAKE_FAILPOINT": point}})
    assert done.returncode == code, (words, done.returncode)

with lake_services(settings()) as served:
    os.environ["LAKE_SPARK_REMOTE"] = served.spark_remote
    os.environ["LAKE_ZOOKEEPER"] = served.zookeeper
    os.environ["LAKE_KAFKA"] = served.kafka
    lake("engagement", "init", "email_event", "--partitions", "2")
    tables = open_tables(served, EMAIL_EVENT)
    for seed in (1, 2):
        simulation = Simulation(seed=seed, orgs=2, people=12, touches=40, hours=4, retention=0, requests=0.2)
        tables.add_orgs(org_names(simulation))
        send(served.kafka, generate(simulation, EMAIL_EVENT))
        if seed == 1:
            lake("engagement", "ingest", "email_event")
            lake("engagement", "mutate", "email_event")
            lake("engagement", "retain", "email_event")
            lake("engagement", "maintain", "email_event")
    lake("engagement", "ingest", "email_event", point="written-data", code=EXIT_CODE)
    for number in (1, 2):
        pq.write_table(pa.table({{"id": range(40), "number": [number] * 40}}), sys.argv[1])
        lake("serving", "push", "{TABLE}", "--file", sys.argv[1])
"""


def main(revision: str, file: Path) -> None:
    """Make the file."""
    with tempfile.TemporaryDirectory(prefix="lake-before-") as made, code_of(revision) as (code, environment):
        home = Path(made) / "home"
        home.mkdir()
        variables = {**environment, "LAKE_HOME": str(home), "LAKE_LAKES": "email_event"}
        command = [sys.executable, "-c", PLAY, str(Path(made) / "rows.parquet")]
        subprocess.run(command, cwd=code, env=variables, check=True)
        with tarfile.open(file, "w:xz") as packed:
            for found in sorted(home.iterdir()):
                if found.name not in LEFT_OUT:
                    packed.add(found, f"home/{found.name}")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
