-- A row for each day of the session, also one without readings. The record continues that of the day before.
WITH days AS (
  SELECT DISTINCT date_trunc('DAY', hour) AS day FROM session_hours
), own AS (
  SELECT date_trunc('DAY', read_at) AS day, buoy, count(*) AS readings, max(celsius) AS warmest
  FROM reading_fact
  WHERE read_at >= (SELECT min(day) FROM days)
  GROUP BY 1, 2
), known AS (
  SELECT buoy, day, warmest AS record FROM own
  UNION ALL
  SELECT buoy, day, warmest_so_far FROM previous
)
SELECT d.day, k.buoy, coalesce(first(o.readings), 0) AS readings, first(o.warmest) AS warmest,
  max(k.record) AS warmest_so_far
FROM days d
JOIN known k ON k.day <= d.day
LEFT JOIN own o ON o.day = d.day AND o.buoy = k.buoy
GROUP BY d.day, k.buoy
