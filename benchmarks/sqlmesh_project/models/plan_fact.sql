MODEL (
  name facts.plan_fact,
  kind INCREMENTAL_BY_TIME_RANGE (
    time_column changed_at,
    lookback 6,
    partition_by_time_column FALSE
  ),
  start '2026-01-01',
  cron '@hourly',
  partitioned_by (changed_hour),
  table_format iceberg,
  audits (
    NOT_NULL(columns := (account_id)),
    UNIQUE_COMBINATION_OF_COLUMNS(columns := (change_id, changed_at)),
    ACCEPTED_VALUES(column := plan, is_in := ('basic', 'standard', 'premium', 'family'))
  )
);

SELECT
  change_id::STRING,
  account_id::STRING,
  plan::STRING,
  monthly_price::DECIMAL(9, 2),
  event_ts::TIMESTAMP AS changed_at,
  landed_at::TIMESTAMP,
  DATE_TRUNC('HOUR', event_ts)::TIMESTAMP AS changed_hour
FROM lake.raw.plan_changes
WHERE
  event_ts BETWEEN @start_ts AND @end_ts
QUALIFY
  ROW_NUMBER() OVER (PARTITION BY change_id, event_ts ORDER BY landed_at, batch_id) = 1
