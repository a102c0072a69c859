-- Rows in which the output of the example `change_capture` differs from the answer; no row: the output is exact.
WITH initial AS (  -- the version with which the history of an account begins
    SELECT id, min(version) AS version FROM history WHERE op <> 'delete' GROUP BY id
), answer AS (
    SELECT a.id, a.owner, a.balance, CASE WHEN a.op <> 'delete' THEN a.version END AS version,
           CASE WHEN a.version = i.version THEN 'insert' ELSE a.op END AS op
    FROM audit a JOIN initial i ON a.id = i.id AND a.version >= i.version
)
SELECT 'accounts_copy' AS output, 'missing' AS problem, d::TEXT AS found
FROM (FROM accounts EXCEPT ALL FROM accounts_copy) d
UNION ALL SELECT 'accounts_copy', 'wrong', d::TEXT FROM (FROM accounts_copy EXCEPT ALL FROM accounts) d
UNION ALL SELECT 'history', 'missing', d::TEXT FROM (FROM answer EXCEPT ALL FROM history) d
UNION ALL SELECT 'history', 'wrong', d::TEXT FROM (FROM history EXCEPT ALL FROM answer) d
UNION ALL SELECT 'history', 'missing', a::TEXT FROM accounts a WHERE id NOT IN (SELECT id FROM history)
ORDER BY ALL
