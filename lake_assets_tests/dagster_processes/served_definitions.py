"""Definitions that the code server of these tests loads. They tell in which process they were loaded."""

import os
import time
from pathlib import Path

import dagster as dg
import numpy as np

LOADED_IN = os.getpid()
FOLDER = os.environ.get("SERVED_DEFINITIONS_FOLDER", ".")


@dg.op
def report(context: dg.OpExecutionContext) -> None:
    print("printed by the run")
    line = f"{LOADED_IN} {os.getpid()} {os.getppid()} {np.random.random()}"
    (Path(FOLDER) / context.run_id).write_text(line)


@dg.op
def wait(context: dg.OpExecutionContext) -> None:
    (Path(FOLDER) / context.run_id).write_text(f"{LOADED_IN} {os.getpid()} {os.getppid()} 0")
    while True:
        time.sleep(0.05)


@dg.job
def short() -> None:
    report()


@dg.job
def endless() -> None:
    wait()


defs = dg.Definitions(jobs=[short, endless], executor=dg.in_process_executor)
