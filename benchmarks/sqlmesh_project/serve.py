"""Run SQLMesh on request. SQLMesh's own environment executes this file.

`serve.py OPTIONS`: JSON with `spark` (the configuration, including `spark.remote`), `state` (a file) and `cache` (a
folder). Each line of stdin is `{"model": ..., "execution_time": ...}`; the answer is the line `done`. The first request
deploys all models and loads all rows. A later one runs the intervals of a model that are due at that time.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from sqlmesh import Config, Context
from sqlmesh.core.config import DuckDBConnectionConfig, GatewayConfig, ModelDefaultsConfig, SparkConnectionConfig


def main() -> None:
    """Serve until stdin ends. An error of SQLMesh goes to stderr and ends the process."""
    context = open_context(json.loads(sys.argv[1]))
    deployed = False
    for line in sys.stdin:
        request = json.loads(line)
        if deployed:
            done = context.run(
                execution_time=request["execution_time"], select_models=[request["model"]], skip_janitor=True
            )
            if done.is_failure:
                raise SystemExit(f"The run of {request['model']} at {request['execution_time']} failed.")
        else:
            context.plan(auto_apply=True, no_prompts=True, execution_time=request["execution_time"])
            deployed = True
        print("done", flush=True)


def open_context(options: dict[str, Any]) -> Context:
    """Return the SQLMesh project in this folder, with the Spark server and the state of the options."""
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
