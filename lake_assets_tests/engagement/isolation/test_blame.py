"""Which errors count as failed attempts, and what is stored of them."""

from __future__ import annotations

import pytest

from lake_assets.engagement.isolation import error_name, is_infrastructure
from lake_assets.errors import ServiceError, claim_refused, offsets_missing


class SparkException(Exception):
    """With the texts of Spark's own."""


@pytest.mark.parametrize(
    "error",
    [
        ServiceError("Kafka does not answer.", remedy="Start it."),
        offsets_missing("mail", 0, expected=1, earliest=2, end=3),
        claim_refused("mail", token=1, found=2),
        OSError(28, "No space left on device"),
        SparkException("Job aborted due to stage failure: java.lang.OutOfMemoryError: Java heap space"),
        SparkException("[DELTA_CONCURRENT_APPEND.WITHOUT_HINT] Transaction conflict detected"),
        SparkException("[FAILED_READ_FILE.FILE_NOT_EXIST] Error while reading file"),
        SparkException("Caused by: java.io.IOException: File too large"),
        SparkException("<_InactiveRpcError: status = StatusCode.UNAVAILABLE, Socket closed"),
        SparkException("ExecutorLostFailure (executor 1 exited)"),
        SparkException("org.apache.spark.shuffle.FetchFailedException: Failed to connect"),
        SparkException("FetchFailed(BlockManagerId(1, localhost, 7337, None), shuffleId=0, mapId=1)"),
        SparkException("org.apache.kafka.common.errors.TimeoutException: Timeout of 60000ms expired"),
    ],
)
def test_faults_of_services_do_not_count(error: Exception) -> None:
    assert is_infrastructure(error)


POISONED = [
    (
        SparkException(
            "(org.apache.spark.sql.delta.schema.DeltaInvariantViolationException) "
            "[DELTA_VIOLATE_CONSTRAINT_WITH_VALUES] CHECK constraint no_lead (who_id <> 'lead 7') violated by row "
            "with values:\n - who_id : lead 7\n\nJVM stacktrace:\n\tat java.io.IOException.frame(Unknown.java:1)"
        ),
        "DELTA_VIOLATE_CONSTRAINT_WITH_VALUES",
    ),
    (
        SparkException(
            "An exception was thrown from the Python worker:\nTraceback (most recent call last):\n"
            '  File "identity.py", line 55\nlake_assets.errors.UsageError: Request lead 7 asks for nothing\n'
        ),
        "UsageError",
    ),
    (ValueError("lead 7"), "ValueError"),
]


@pytest.mark.parametrize(("error", "name"), POISONED, ids=[name for _, name in POISONED])
def test_an_error_of_a_message_counts_and_its_name_holds_no_value(error: Exception, name: str) -> None:
    assert not is_infrastructure(error)
    assert error_name(error) == name
