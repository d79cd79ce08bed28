"""Keep a Spark Connect server for test runs, each of which would start its own.

`python -m lake_assets_tests.spark_server` prints the variable that the tests take its address from, and runs
until it is interrupted.
"""

from __future__ import annotations

import signal
from pathlib import Path
from tempfile import TemporaryDirectory

from lake_assets_tests.conftest import RUNNING_SPARK, spark_running


def main() -> None:
    """Run the server."""
    with TemporaryDirectory(prefix="lake-spark-") as home, spark_running(Path(home)) as address:
        print(f"export {RUNNING_SPARK}='{address}'", flush=True)
        signal.sigwait({signal.SIGINT, signal.SIGTERM})


if __name__ == "__main__":
    main()
