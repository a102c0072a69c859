-- load_run --
-- The run with its job and version, for the job master.
SELECT r.job_id, coalesce(r.lineage, r.id) AS lineage, j.name AS job_name, r.version_id, v.parallelism AS version_parallelism, r.parallelism,
       v.max_parallelism, j.pipeline, v.params, v.settings, r.state, r.token, r.allow_unmapped,
       j.discards_output,
       EXISTS (SELECT 1 FROM weir_checkpoint c WHERE c.run_id = r.id AND c.status = 'completed') AS has_checkpoint
FROM weir_run r
JOIN weir_job j ON j.id = r.job_id
JOIN weir_job_version v ON v.id = r.version_id
WHERE r.id = %(run)s

-- record_code --
-- Records the code that the newest job master of the run executes.
UPDATE weir_run SET code = %(code)s WHERE id = %(run)s AND token = %(token)s

-- next_checkpoint_id --
-- Issues the job's next checkpoint id, if this attempt is current.
UPDATE weir_job SET last_checkpoint_id = last_checkpoint_id + 1
WHERE id = (SELECT job_id FROM weir_run WHERE id = %(run)s AND token = %(token)s)
RETURNING last_checkpoint_id

-- report_checkpoint --
-- Inserts a checkpoint in progress, for the console. An existing row of this attempt gets the acknowledgements only.
INSERT INTO weir_checkpoint (job_id, run_id, token, number, kind, status, triggered_at, acknowledged, subtasks,
                             reason, detail, path, operators, finished_operators, max_parallelism,
                             review_state, review_note, acknowledgements)
SELECT job_id, id, %(token)s, %(number)s, %(kind)s, 'in_progress', %(triggered_at)s, %(acknowledged)s, %(subtasks)s,
       '', '', '', '[]'::jsonb, '[]'::jsonb, %(max_parallelism)s, 'unreviewed', '', %(acknowledgements)s
FROM weir_run WHERE id = %(run)s AND token = %(token)s
ON CONFLICT (job_id, number) DO UPDATE SET acknowledgements = excluded.acknowledgements
WHERE weir_checkpoint.token = excluded.token

-- fail_checkpoint --
-- Marks a checkpoint as failed, if it is in progress; a completed checkpoint stays completed.
UPDATE weir_checkpoint
SET status = 'failed', reason = %(reason)s, detail = %(detail)s, acknowledged = %(acknowledged)s,
    completed_at = %(at)s, duration_ms = %(duration_ms)s
WHERE run_id = %(run)s AND number = %(number)s AND token = %(token)s AND status = 'in_progress'
  AND EXISTS (SELECT 1 FROM weir_run WHERE id = %(run)s AND token = %(token)s)

-- record_completed --
-- Records a completed checkpoint, if this attempt is current; from then on it exists. Idempotent.
INSERT INTO weir_checkpoint (job_id, run_id, token, number, kind, status, triggered_at, completed_at, duration_ms,
                             size_bytes, written_bytes, acknowledged, subtasks, reason, detail, path, operators,
                             finished_operators, max_parallelism, review_state, review_note)
SELECT job_id, id, %(token)s, %(number)s, %(kind)s, 'completed', %(triggered_at)s, %(at)s, %(duration_ms)s,
       %(size_bytes)s, %(written_bytes)s, %(subtasks)s, %(subtasks)s, '', '', %(path)s, %(operators)s,
       %(finished)s, %(max_parallelism)s, 'unreviewed', ''
FROM weir_run WHERE id = %(run)s AND token = %(token)s
FOR UPDATE
ON CONFLICT (job_id, number) DO UPDATE
SET status = 'completed', completed_at = excluded.completed_at, duration_ms = excluded.duration_ms,
    size_bytes = excluded.size_bytes, written_bytes = excluded.written_bytes, acknowledged = excluded.acknowledged,
    subtasks = excluded.subtasks, path = excluded.path, operators = excluded.operators,
    finished_operators = excluded.finished_operators
WHERE weir_checkpoint.token = excluded.token
RETURNING number

-- lock_run --
-- Locks the run and returns its state, if this attempt is current.
SELECT state FROM weir_run WHERE id = %(run)s AND token = %(token)s FOR UPDATE

-- set_state --
-- Sets the state that follows from an event; lock_run holds the row.
UPDATE weir_run
SET state = %(state)s, failure = coalesce(%(failure)s, failure),
    ended_at = CASE WHEN %(terminal)s THEN now() ELSE ended_at END
WHERE id = %(run)s AND token = %(token)s

-- draw_token --
-- Draws a token that is newer than every other token.
SELECT nextval('weir_token_seq') AS token

-- take_token --
-- Gives the drawn token to the run's next attempt, if this attempt is current. Idempotent.
UPDATE weir_run SET token = %(drawn)s WHERE id = %(run)s AND token IN (%(token)s, %(drawn)s) RETURNING token

-- begin_attempt --
-- Inserts the attempt that holds a new token.
INSERT INTO weir_attempt (run_id, token, started_at, outcome, reason)
VALUES (%(run)s, %(token)s, now(), 'running', '')
ON CONFLICT (token) DO NOTHING

-- end_attempt --
-- Records the end of an attempt.
UPDATE weir_attempt SET ended_at = now(), outcome = %(outcome)s, reason = %(reason)s, detail = %(detail)s
WHERE run_id = %(run)s AND token = %(token)s AND ended_at IS NULL

-- note_restored --
-- Records the checkpoint that the attempt restores.
UPDATE weir_attempt SET restored_checkpoint_id = (
    SELECT c.id FROM weir_checkpoint c JOIN weir_run r ON r.job_id = c.job_id
    WHERE r.id = %(run)s AND c.status = 'completed' AND c.discarded_at IS NULL AND c.path = %(path)s)
WHERE run_id = %(run)s AND token = %(token)s AND ended_at IS NULL

-- note_launch --
-- Records the times of the launch of the attempt.
UPDATE weir_attempt SET launch = %(times)s WHERE run_id = %(run)s AND token = %(token)s AND ended_at IS NULL

-- write_live --
-- Writes the live report of the run, and new acknowledgements of pending checkpoints into the rows of the checkpoints.
-- A report that waits for the row may come after the end of the run, whose last report stays.
WITH written AS (
    UPDATE weir_run SET live = %(live)s, live_at = now()
    WHERE id = %(run)s AND token = %(token)s AND ended_at IS NULL
    RETURNING id, token
)
UPDATE weir_checkpoint c SET acknowledged = (p.value ->> 'acknowledged')::integer, acknowledgements = p.value -> 'subtasks'
FROM written w, jsonb_each(%(pending)s) AS p
WHERE c.run_id = w.id AND c.token = w.token AND c.status = 'in_progress' AND c.number = p.key::bigint
  AND c.acknowledged <> (p.value ->> 'acknowledged')::integer

-- add_history --
-- Adds intervals to the history of metrics. It locks no row of the run, which checkpoints need. Idempotent.
WITH subtasks AS (
    INSERT INTO weir_subtask_metrics (run_id, at, token, operators)
    SELECT r.id, to_timestamp(m.at / 1000), r.token, m.operators
    FROM weir_run r, jsonb_to_recordset(%(subtasks)s) AS m (at bigint, operators jsonb)
    WHERE r.id = %(run)s AND r.token = %(token)s
    ON CONFLICT DO NOTHING
)
INSERT INTO weir_metrics (step_s, run_id, at, operator, token, span_ms, records_in, records_out, bytes_in, bytes_out,
                          busy, backpressured, skew, watermark, processing_lag_ms, event_lag_ms, in_flight_bytes,
                          state_bytes, start_delay_ms, pre_barrier_ms, alignment_ms, sync_ms, async_ms, checkpoints,
                          checkpoints_failed, checkpoint_ms, commit_ms, checkpoint_bytes, cpu_ms, memory_bytes)
SELECT 5, r.id, to_timestamp(m.at / 1000), m.operator, r.token, m.span_ms, m.records_in, m.records_out, m.bytes_in,
       m.bytes_out, m.busy, m.backpressured, m.skew, m.watermark, m.processing_lag_ms, m.event_lag_ms,
       m.in_flight_bytes, m.state_bytes, m.start_delay_ms, m.pre_barrier_ms, m.alignment_ms, m.sync_ms, m.async_ms,
       m.checkpoints, m.checkpoints_failed, m.checkpoint_ms, m.commit_ms, m.checkpoint_bytes, m.cpu_ms, m.memory_bytes
FROM weir_run r, jsonb_to_recordset(%(rows)s) AS m (
    at bigint, operator text, span_ms integer, records_in bigint, records_out bigint, bytes_in bigint,
    bytes_out bigint, busy real, backpressured real, skew real, watermark bigint, processing_lag_ms bigint,
    event_lag_ms bigint, in_flight_bytes bigint, state_bytes bigint, start_delay_ms real, pre_barrier_ms real,
    alignment_ms real, sync_ms real, async_ms real, checkpoints integer, checkpoints_failed integer,
    checkpoint_ms real, commit_ms real, checkpoint_bytes bigint, cpu_ms bigint, memory_bytes bigint)
WHERE r.id = %(run)s AND r.token = %(token)s
ON CONFLICT DO NOTHING

-- take_operations --
-- Takes the run's queued operations. Returns earlier operations of this attempt too, since an answer may be lost.
UPDATE weir_operation
SET state = 'running', phase = 'asked', token = %(token)s, started_at = coalesce(started_at, now())
WHERE run_id = %(run)s AND kind = ANY(%(kinds)s) AND (state = 'queued' OR (state = 'running' AND token = %(token)s))
  AND EXISTS (SELECT 1 FROM weir_run WHERE id = %(run)s AND token = %(token)s)
RETURNING id::text, kind, request_id, created_at

-- holds_run --
-- Whether this attempt is current.
SELECT 1 FROM weir_run WHERE id = %(run)s AND token = %(token)s

-- requeue_operations --
-- Requeues operations that an older attempt took and did not complete.
UPDATE weir_operation SET state = 'queued', phase = '', token = NULL, started_at = NULL
WHERE run_id = %(run)s AND state = 'running' AND token < %(token)s
  AND kind IN ('savepoint', 'stop', 'drain', 'cancel')
  AND EXISTS (SELECT 1 FROM weir_run WHERE id = %(run)s AND token = %(token)s)

-- settle_operation --
-- Completes an operation that this attempt has taken; a completed operation stays as it is.
UPDATE weir_operation
SET state = %(state)s, phase = '', ended_at = now(), result = %(result)s, error = %(error)s
WHERE id = %(operation)s AND run_id = %(run)s AND state = 'running' AND token = %(token)s
  AND EXISTS (SELECT 1 FROM weir_run WHERE id = %(run)s AND token = %(token)s)

-- settle_ending --
-- Completes the run's stop and drain operations, whose savepoint is recorded.
UPDATE weir_operation SET state = 'succeeded', phase = '', ended_at = now(), result = %(result)s, error = NULL
WHERE run_id = %(run)s AND kind IN ('stop', 'drain') AND state IN ('queued', 'running')
  AND EXISTS (SELECT 1 FROM weir_run WHERE id = %(run)s AND token = %(token)s)

-- restore_point --
-- The newest completed checkpoint of the run that is not passed over, else the checkpoint that it started from, and so on.
-- A savepoint given by its path comes before its row, which may exist or not.
WITH RECURSIVE line AS (
    SELECT id AS run_id, job_id, restore_checkpoint_id, restore_path, 0 AS step, NULL::bigint AS start
    FROM weir_run WHERE id = %(run)s
    UNION ALL
    SELECT r.id, r.job_id, r.restore_checkpoint_id, r.restore_path, line.step + 1, c.number
    FROM line JOIN weir_checkpoint c ON c.id = line.restore_checkpoint_id JOIN weir_run r ON r.id = c.run_id
), found AS (
    SELECT c.path, line.step, c.number FROM line JOIN weir_checkpoint c ON c.job_id = line.job_id AND c.number = line.start
    WHERE c.run_id = line.run_id AND c.status = 'completed'
    UNION
    SELECT c.path, line.step, c.number FROM line JOIN weir_checkpoint c ON c.job_id = line.job_id
    WHERE c.run_id = line.run_id AND c.status = 'completed' AND c.discarded_at IS NULL AND c.kind = 'checkpoint'
      AND (line.start IS NULL OR c.number < line.start)
    UNION ALL
    SELECT restore_path, step, 0 FROM line WHERE restore_path <> ''
)
SELECT path FROM found WHERE NOT path = ANY(%(passed_over)s) ORDER BY step, number DESC LIMIT 1

-- committed_since --
-- Later completed checkpoints of the job whose output was committed.
SELECT c.number FROM weir_checkpoint c JOIN weir_run r ON r.job_id = c.job_id
WHERE r.id = %(run)s AND c.status = 'completed' AND c.kind <> 'savepoint' AND c.number > %(number)s ORDER BY c.number

-- final_savepoint --
-- The completed savepoint of a stop or drain of this run.
SELECT path FROM weir_checkpoint
WHERE run_id = %(run)s AND status = 'completed' AND kind IN ('stop', 'drain') ORDER BY number DESC LIMIT 1

-- retained --
-- Every checkpoint and savepoint of the job that may still be restored.
SELECT c.path FROM weir_checkpoint c JOIN weir_run r ON r.job_id = c.job_id
WHERE r.id = %(run)s AND c.status = 'completed' AND c.discarded_at IS NULL ORDER BY c.number

-- retention_candidates --
-- The periodic checkpoints of the job that are not discarded, for `core.checkpoint.retention_plan`.
SELECT c.number, c.run_id AS run, c.pinned_at IS NOT NULL AS is_pinned, c.review_state = 'in_review' AS is_in_review,
       c.held_by IS NOT NULL AS is_held,
       (1000 * extract(epoch FROM c.triggered_at))::bigint AS triggered_ms,
       c.id IS NOT DISTINCT FROM r.restore_checkpoint_id AS is_restored
FROM weir_checkpoint c JOIN weir_run r ON r.job_id = c.job_id
WHERE r.id = %(run)s AND r.token = %(token)s AND c.status = 'completed' AND c.kind = 'checkpoint'
  AND c.discarded_at IS NULL

-- discard --
-- Discards checkpoints, unless a user has pinned them, begun to review them or chosen them for a rollback meanwhile.
UPDATE weir_checkpoint c SET discarded_at = now() FROM weir_run r
WHERE r.id = %(run)s AND r.token = %(token)s AND c.job_id = r.job_id AND c.number = ANY(%(numbers)s)
  AND c.kind = 'checkpoint' AND c.status = 'completed' AND c.discarded_at IS NULL AND c.pinned_at IS NULL
  AND c.review_state <> 'in_review' AND c.held_by IS NULL
RETURNING c.path
