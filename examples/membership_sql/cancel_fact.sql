-- A cancel is voluntary if its account has a request at or before it, and after its previous cancel.
-- A request at the time of a cancel belongs to the cancel, so it sorts before it.
WITH events AS (
  SELECT
    account_id, processing_ts AS at, true AS is_cancel, cancel_id, processing_ts AS canceled_at,
    CAST(NULL AS string) AS request_id, CAST(NULL AS timestamp) AS requested_at, CAST(NULL AS string) AS reason
  FROM cancels
  UNION ALL
  SELECT account_id, requested_at, false, NULL, NULL, request_id, requested_at, reason
  FROM requests
),
with_latest AS (
  SELECT
    *,
    last(IF(is_cancel, NULL, struct(request_id, requested_at, reason)), true) OVER (
      PARTITION BY account_id ORDER BY at, is_cancel, cancel_id, request_id
      ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
    ) AS latest,
    last(canceled_at, true) OVER (
      PARTITION BY account_id ORDER BY at, is_cancel, cancel_id, request_id
      ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ) AS previous_cancel
  FROM events
),
with_request AS (
  SELECT
    cancel_id, account_id, canceled_at,
    IF(previous_cancel IS NULL OR latest.requested_at > previous_cancel, latest, NULL) AS request
  FROM with_latest
  WHERE is_cancel
)
SELECT
  cancel_id,
  account_id,
  canceled_at,
  IF(request IS NULL, 'involuntary', 'voluntary') AS churn_type,
  request.request_id,
  request.requested_at,
  request.reason
FROM with_request
