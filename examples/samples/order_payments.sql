-- Rows in which the output of the example `order_payments` differs from the answer; no row: the output is exact.
WITH on_time_orders AS (
    FROM orders EXCEPT ALL FROM late_orders
), on_time_payments AS (
    FROM payments EXCEPT ALL FROM late_payments
), answer AS (
    SELECT o.order_id, ordered_at, customer, amount, paid_at, method
    FROM on_time_orders o JOIN on_time_payments p
      ON o.order_id = p.order_id AND paid_at BETWEEN ordered_at AND ordered_at + INTERVAL 15 MINUTE
)
SELECT 'paid' AS output, 'missing' AS problem, d::TEXT AS found FROM (FROM answer EXCEPT ALL FROM paid) d
UNION ALL SELECT 'paid', 'wrong', d::TEXT FROM (FROM paid EXCEPT ALL FROM answer) d
UNION ALL SELECT 'late_orders', 'wrong', d::TEXT FROM (FROM late_orders EXCEPT ALL FROM orders) d
UNION ALL SELECT 'late_payments', 'wrong', d::TEXT FROM (FROM late_payments EXCEPT ALL FROM payments) d
ORDER BY ALL
