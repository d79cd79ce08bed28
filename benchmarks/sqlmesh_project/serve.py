"""Runs SQLMesh when it is told to: the one file here that is not SQL, and that SQLMesh's own environment executes.

`serve.py OPTIONS`: JSON with `spark` (its configuration, `spark.remote` among it), `state` (a file) and `cache` (a
folder). Each line of stdin is `{"model": ..., "execution_time": ...}`; each is answered by a line, `done`.
The first deploys all models and loads what there is; the later ones run what is due of a model by then.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from sqlmesh import Config, Context
from sqlmesh.core.config import DuckDBConnectionConfig, GatewayConfig, ModelDefaultsConfig, SparkConnectionConfig


def main() -> None:
    """Serve until stdin ends; SQLMesh's errors go to stderr, and end it."""
    context = open_context(json.loads(sys.argv[1]))
    deployed = False
    for line in sys.stdin:
        asked = json.loads(line)
        if deployed:
            done = context.run(
                execution_time=asked["execution_time"], select_models=[asked["model"]], skip_janitor=True
            )
            if done.is_failure:
                raise SystemExit(f"The run of {asked['model']} at {asked['execution_time']} failed.")
        else:
            context.plan(auto_apply=True, no_prompts=True, execution_time=asked["execution_time"])
            deployed = True
        print("done", flush=True)


def open_context(options: dict[str, Any]) -> Context:
    """The project beside this file, on the Spark and with the state that the options name."""
    gateway = GatewayConfig(
        connection=SparkConnectionConfig(config=options["spark"], catalog="lake", concurrent_tasks=1),
        state_connection=DuckDBConnectionConfig(database=options["state"]),
    )
    config = Config(
        gateways={"spark": gateway},
        default_gateway="spark",
        model_defaults=ModelDefaultsConfig(dialect="spark"),
        cache_dir=options["cache"],
        disable_anonymized_analytics=True,
    )
    return Context(paths=str(Path(__file__).parent), config=config)


if __name__ == "__main__":
    main()
