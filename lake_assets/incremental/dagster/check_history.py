"""The evaluations of checks that Dagster has stored, by the storage behind its public interface.

All use of that storage for checks is here: `test_check_history` fails if an upgrade changes it.
"""

from __future__ import annotations

import dagster as dg
from dagster._core.definitions.asset_checks.asset_check_evaluation import (
    AssetCheckEvaluationTargetMaterializationData as TargetMaterialization,
)
from dagster._core.storage.asset_check_execution_record import (
    COMPLETED_ASSET_CHECK_EXECUTION_RECORD_STATUSES as COMPLETED,
)
from dagster_shared.record import replace


def shown_evaluation(instance: dg.DagsterInstance, key: dg.AssetCheckKey) -> dg.AssetCheckEvaluation | None:
    """Return the evaluation that Dagster shows for a check; None if the newest run that planned it left it open."""
    record = instance.event_log_storage.get_latest_asset_check_execution_by_key([key]).get(key)
    if record is None or record.status not in COMPLETED:
        return None
    return record.evaluation


def last_evaluation(instance: dg.DagsterInstance, key: dg.AssetCheckKey) -> dg.AssetCheckEvaluation | None:
    """Return the last evaluation of a check that was finished; None if there is none."""
    records = instance.event_log_storage.get_asset_check_execution_history(key, limit=1, status=COMPLETED)
    return records[0].evaluation if records else None


def of_no_materialization(evaluation: dg.AssetCheckEvaluation) -> dg.AssetCheckEvaluation:
    """Return an evaluation that belongs to no materialization.

    Reported outside of a run, Dagster shows it with a newest materialization that was reported outside of a run, too.
    """
    return replace(evaluation, target_materialization_data=None)


def of_newest_materialization(
    instance: dg.DagsterInstance, evaluation: dg.AssetCheckEvaluation
) -> dg.AssetCheckEvaluation:
    """Return an evaluation with the newest materialization of its asset as its target.

    Dagster shows an evaluation without a target only if it is later than that materialization. SQLite stores its time
    in whole seconds, so a run that ends in the second of the one before would show no evaluation.
    """
    newest = instance.fetch_materializations(evaluation.asset_key, limit=1).records
    if not newest:
        return evaluation
    record = newest[0]
    target = TargetMaterialization(
        run_id=record.event_log_entry.run_id, storage_id=record.storage_id, timestamp=record.timestamp
    )
    return replace(evaluation, target_materialization_data=target)
