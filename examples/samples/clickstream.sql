-- Rows in which the output of the example `clickstream` differs from the answer; no row: the output is exact.
WITH on_time AS (
    FROM clicks EXCEPT ALL FROM late_clicks
), marked AS (
    SELECT visitor, clicked_at,
           clicked_at - lag(clicked_at) OVER (PARTITION BY visitor ORDER BY clicked_at) > INTERVAL 5 MINUTE AS opens
    FROM on_time
), numbered AS (
    SELECT visitor, clicked_at,
           count(*) FILTER (opens) OVER (PARTITION BY visitor ORDER BY clicked_at) AS session
    FROM marked
), answer AS (
    SELECT visitor, min(clicked_at) AS first, max(clicked_at) AS last, count(*) AS clicks
    FROM numbered GROUP BY visitor, session
), minutes AS (
    SELECT page, date_trunc('minute', clicked_at) AS window_start FROM (FROM clicks EXCEPT ALL FROM late_views)
), view_answer AS (
    SELECT page, window_start, window_start + INTERVAL 1 MINUTE AS window_end, count(*) AS views FROM minutes GROUP BY ALL
)
SELECT 'sessions' AS output, 'missing' AS problem, d::TEXT AS found FROM (FROM answer EXCEPT ALL FROM sessions) d
UNION ALL SELECT 'sessions', 'wrong', d::TEXT FROM (FROM sessions EXCEPT ALL FROM answer) d
UNION ALL SELECT 'views', 'missing', d::TEXT FROM (FROM view_answer EXCEPT ALL FROM views) d
UNION ALL SELECT 'views', 'wrong', d::TEXT FROM (FROM views EXCEPT ALL FROM view_answer) d
UNION ALL SELECT 'late_clicks', 'wrong', d::TEXT FROM (FROM late_clicks EXCEPT ALL FROM clicks) d
UNION ALL SELECT 'late_views', 'wrong', d::TEXT FROM (FROM late_views EXCEPT ALL FROM clicks) d
ORDER BY ALL
