MODEL (
  name facts.cancel_request_fact,
  kind INCREMENTAL_BY_TIME_RANGE (
    time_column requested_at,
    lookback 6,
    partition_by_time_column FALSE
  ),
  start '2026-01-01',
  cron '@hourly',
  partitioned_by (requested_hour),
  table_format iceberg,
  audits (
    NOT_NULL(columns := (account_id)),
    UNIQUE_COMBINATION_OF_COLUMNS(columns := (request_id, requested_at))
  )
);

SELECT
  request_id::STRING,
  account_id::STRING,
  reason::STRING,
  event_ts::TIMESTAMP AS requested_at,
  landed_at::TIMESTAMP,
  DATE_TRUNC('HOUR', event_ts)::TIMESTAMP AS requested_hour
FROM lake.raw.cancel_requests
WHERE
  event_ts BETWEEN @start_ts AND @end_ts
QUALIFY
  ROW_NUMBER() OVER (PARTITION BY request_id, event_ts ORDER BY landed_at, batch_id) = 1
