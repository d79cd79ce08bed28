MODEL (
  name facts.signup_fact,
  kind INCREMENTAL_BY_TIME_RANGE (
    time_column signed_up_at,
    lookback 6,
    partition_by_time_column FALSE
  ),
  start '2026-01-01',
  cron '@hourly',
  partitioned_by (signed_up_hour),
  table_format iceberg,
  audits (
    NOT_NULL(columns := (account_id)),
    UNIQUE_COMBINATION_OF_COLUMNS(columns := (signup_id, signed_up_at)),
    ACCEPTED_VALUES(column := plan, is_in := ('basic', 'standard', 'premium', 'family'))
  )
);

SELECT
  signup_id::STRING,
  account_id::STRING,
  plan::STRING,
  monthly_price::DECIMAL(9, 2),
  event_ts::TIMESTAMP AS signed_up_at,
  landed_at::TIMESTAMP,
  DATE_TRUNC('HOUR', event_ts)::TIMESTAMP AS signed_up_hour
FROM lake.raw.signups
WHERE
  event_ts BETWEEN @start_ts AND @end_ts
QUALIFY
  ROW_NUMBER() OVER (PARTITION BY signup_id, event_ts ORDER BY landed_at, batch_id) = 1
