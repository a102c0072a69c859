-- Rows in which the output of the example `enrichment` differs from the answer; no row: the output is exact.
WITH answer AS (
    SELECT o.order_id, o.customer, o.amount, o.ordered_at, c.name, c.segment
    FROM (SELECT DISTINCT * FROM orders) o LEFT JOIN customers c USING (customer)
)
SELECT 'enriched_orders' AS output, 'missing' AS problem, d::TEXT AS found
FROM (FROM answer EXCEPT ALL FROM enriched_orders) d
UNION ALL SELECT 'enriched_orders', 'wrong', d::TEXT FROM (FROM enriched_orders EXCEPT ALL FROM answer) d
ORDER BY ALL
