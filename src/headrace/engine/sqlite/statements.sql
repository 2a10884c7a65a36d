-- Every statement of the SQLite engine. The data layout is in migrations/0001_create.sql.
--
-- Reads of many rows come back as one row of JSON: each step of SQLite gives up the interpreter
-- lock, so a hundred rows fetched one by one wait a hundred times beside a busy event loop. The
-- JSON of stored specs, results and events is passed on byte for byte.
--
-- `carray(?)` is a bound array of integers or strings.
--
-- Where the way of every job leads, rows are written `OR FAIL`: a statement that fails leaves what it
-- had written, so SQLite need not copy every page before it changes it. Whoever runs it takes the
-- whole transaction or its savepoint back.

-- name: job_json
-- One job as the JSON of core.model.Job, without its result: a result is any JSON, also `null`,
-- and travels beside it.
format('{"seq":%d,"version":%d,"state":"%s","event":"%s","queue":%s,"type":%s,"priority":%d,"max_tries":%d,"run_at":%d,"updated_at":%d,"stage":"%s","tries":%d,"token":%d,"waiting_on":%d,"detached":%s',
       seq, version, state, event, json_quote(queue), json_quote(type), priority, max_tries,
       run_at, updated_at, stage, tries, token, waiting_on, iif(detached, 'true', 'false'))
|| iif(worker IS NULL, '', ',"worker":' || json_quote(worker))
|| iif(lease_until IS NULL, '', ',"lease_until":' || lease_until)
|| iif(started_at IS NULL, '', ',"started_at":' || started_at)
|| iif(finished_at IS NULL, '', ',"finished_at":' || finished_at)
|| iif(expires_at IS NULL, '', ',"expires_at":' || expires_at)
|| iif(deadline IS NULL, '', ',"deadline":' || deadline)
|| iif(cancelling IS NULL, '', ',"cancelling":' || json_quote(cancelling))
|| iif(error IS NULL, '', ',"error":' || error)
|| iif(progress IS NULL, '', ',"progress":' || progress)
|| ',"spec":' || (SELECT body FROM specs WHERE job = seq) || '}'

-- name: results_json
-- The results of all jobs that have one.
'[' || group_concat(iif(result IS NULL, NULL, '[' || seq || ',' || result || ']')) || ']'

-- name: jobs_json
-- All jobs of the subquery that follows, and the results of those that have one.
SELECT '[' || group_concat(@job_json@) || ']', @results_json@
FROM

-- name: head
SELECT ifnull((SELECT max(seq) FROM journal), 0),
       (SELECT value FROM meta WHERE name = 'settings'),
       (SELECT value FROM meta WHERE name = 'revision'),
       EXISTS (SELECT 1 FROM edges WHERE parent_id > ''),
       (SELECT user_version FROM pragma_user_version)

-- Jobs --------------------------------------------------------------------------------------

-- name: existing
SELECT json_group_array(id) FROM jobs WHERE id IN carray(?)

-- name: jobs_by_id
@jobs_json@ (SELECT * FROM jobs WHERE id IN carray(?))

-- name: jobs_by_seq
@jobs_json@ (SELECT * FROM jobs WHERE seq IN carray(?))

-- name: heads
-- What can change without a new version, to bring a snapshot up to date.
SELECT json_group_array(json_array(seq, version, stage, waiting_on, lease_until))
FROM jobs WHERE seq IN carray(?)

-- name: insert_jobs
-- What is not listed has its default: see the table.
INSERT INTO jobs (seq, id, version, service, queue, type, state, stage, priority, position, run_at,
                  expires_at, deadline, max_tries, waiting_on, created_at, updated_at, key, key_name)
VALUES @rows(19)@

-- name: insert_created
-- Jobs that concern no other and can start at once, as the defaults of the table have them.
INSERT OR FAIL INTO jobs (seq, id, version, service, queue, type, priority, position, run_at,
                          expires_at, max_tries, created_at, updated_at)
VALUES @rows(13)@

-- name: journal_created
-- Of the jobs from one sequence to another, of which there is no more to tell than their rows do.
INSERT OR FAIL INTO journal (seq, job, at, event, state, queue, type, tries)
SELECT seq, seq, updated_at, 'created', state, queue, type, 0 FROM jobs WHERE seq BETWEEN ? AND ?

-- name: insert_specs
INSERT OR FAIL INTO specs (job, body) VALUES @rows(2)@

-- name: update_placed
WITH v (seq, stage, waiting_on) AS (VALUES @rows(3)@)
UPDATE jobs SET stage = v.stage, waiting_on = v.waiting_on FROM v WHERE jobs.seq = v.seq

-- Jobs that need no closer look start and finish by the batch: see bulk.py -------------------

-- name: line
-- The head of a line, in order, each job as it will be when it has started, but for its version;
-- nothing if one of its jobs needs a closer look. The fields are in the order of core.model.Job,
-- in which they are read quickest; ?4, ?5 and ?6 are those that are the same for all of the jobs.
SELECT iif(count(key) + count(expires_at), NULL, '[' || group_concat(
    '{"spec":' || (SELECT body FROM specs WHERE job = seq) || ',"seq":' || seq
    || ?4 || json_quote(type) || ',"priority":' || priority || ',"max_tries":' || max_tries
    || ',"run_at":' || run_at || ?5 || (tries + 1) || ?6
    || iif(error IS NULL, '', ',"error":' || error)
    || iif(progress IS NULL, '', ',"progress":' || progress) || '}'
) || ']'), @results_json@, sum(state = 'retry')
FROM (SELECT * FROM jobs WHERE service = ?1 AND queue = ?2 AND stage = 'ready'
      ORDER BY priority, position LIMIT ?3)

-- name: journal_line
-- ?1 is the newest sequence so far. The rows of an array are numbered from 1.
INSERT OR FAIL INTO journal (seq, job, before, at, event, state, previous, queue, type, tries,
                             worker)
SELECT ?1 + line.rowid, jobs.seq, jobs.version, ?2, 'started', 'active', jobs.state, jobs.queue,
       jobs.type, jobs.tries + 1, ?3
FROM carray(?4) AS line CROSS JOIN jobs ON jobs.seq = line.value

-- name: start_line
UPDATE OR FAIL jobs
SET state = 'active', event = 'started', stage = '', version = ?1 + line.rowid,
    token = ?1 + line.rowid, tries = jobs.tries + 1, worker = ?2, lease_until = ?3,
    started_at = ?4, updated_at = ?4
FROM carray(?5) AS line WHERE jobs.seq = line.value

-- name: journal_finished
WITH v (seq, version, at) AS (VALUES @rows(3)@)
INSERT OR FAIL INTO journal (seq, job, before, at, event, state, previous, queue, type, tries,
                             worker)
SELECT v.version, jobs.seq, jobs.version, v.at, 'completed', 'completed', 'active', jobs.queue,
       jobs.type, jobs.tries, jobs.worker
FROM v CROSS JOIN jobs ON jobs.seq = v.seq

-- name: update_finished
-- `before` is the version that each job is taken to have: the caller counts what was changed.
WITH v (seq, before, version, at, result) AS (VALUES @rows(5)@)
UPDATE OR FAIL jobs
SET state = 'completed', event = 'completed', stage = '', version = v.version, worker = NULL,
    lease_until = NULL, finished_at = v.at, updated_at = v.at, result = v.result, error = NULL
FROM v WHERE jobs.seq = v.seq AND jobs.version = v.before

-- name: update_started
WITH v (seq, version, tries, worker, lease_until, started_at, updated_at) AS (VALUES @rows(7)@)
UPDATE jobs
SET state = 'active', event = 'started', stage = '', version = v.version, token = v.version,
    tries = v.tries, worker = v.worker, lease_until = v.lease_until, started_at = v.started_at,
    updated_at = v.updated_at
FROM v WHERE jobs.seq = v.seq

-- name: update_ended
WITH v (seq, version, state, event, finished_at, updated_at, result, error) AS (VALUES @rows(8)@)
UPDATE jobs
SET state = v.state, event = v.event, stage = '', version = v.version, worker = NULL,
    lease_until = NULL, detached = 0, cancelling = NULL, finished_at = v.finished_at,
    updated_at = v.updated_at, result = v.result, error = v.error
FROM v WHERE jobs.seq = v.seq

-- name: update_jobs
WITH v (seq, version, queue, type, state, event, stage, priority, position, run_at, expires_at,
        deadline, tries, max_tries, token, worker, lease_until, detached, cancelling, waiting_on,
        started_at, finished_at, updated_at, error, progress, result) AS (VALUES @rows(26)@)
UPDATE jobs
SET version = v.version, queue = v.queue, type = v.type, state = v.state, event = v.event,
    stage = v.stage, priority = v.priority, position = v.position, run_at = v.run_at,
    expires_at = v.expires_at, deadline = v.deadline, tries = v.tries, max_tries = v.max_tries,
    token = v.token, worker = v.worker, lease_until = v.lease_until, detached = v.detached,
    cancelling = v.cancelling, waiting_on = v.waiting_on, started_at = v.started_at,
    finished_at = v.finished_at, updated_at = v.updated_at, error = v.error,
    progress = v.progress, result = v.result
FROM v WHERE jobs.seq = v.seq

-- name: delete_jobs
DELETE FROM jobs WHERE seq IN carray(?)

-- name: delete_specs
DELETE FROM specs WHERE job IN carray(?)

-- name: delete_errors
DELETE FROM errors WHERE job IN carray(?)

-- name: delete_logs
DELETE FROM logs WHERE job IN carray(?)

-- name: delete_tags
DELETE FROM tags WHERE (tag, job) IN (SELECT tag, job FROM tags WHERE job IN carray(?))

-- name: delete_edges_from
DELETE FROM edges
WHERE (parent_id, child_id) IN (SELECT parent_id, child_id FROM edges WHERE child_id IN carray(?))

-- name: leases
SELECT json_group_array(json_array(seq, token, detached, cancelling))
FROM jobs WHERE seq IN carray(?) AND state = 'active'

-- name: renew
UPDATE jobs SET lease_until = ? WHERE seq IN carray(?)

-- Beside a job ------------------------------------------------------------------------------

-- name: insert_journal
INSERT INTO journal (seq, job, before, at, event, state, previous, queue, type, tries, worker, rest)
VALUES @rows(12)@

-- name: insert_graves
INSERT INTO graves (job, id, version, head) VALUES @rows(4)@

-- name: insert_errors
INSERT INTO errors (job, n, body) VALUES @rows(3)@

-- name: insert_logs
INSERT INTO logs (job, n, body) VALUES @rows(3)@

-- name: trim_logs
DELETE FROM logs WHERE job = ?1
AND n <= (SELECT n FROM logs WHERE job = ?1 ORDER BY n DESC LIMIT 1 OFFSET ?2)

-- name: insert_tags
INSERT OR IGNORE INTO tags (tag, job) VALUES @rows(2)@

-- name: errors_of
SELECT '[' || group_concat('[' || job || ',' || body || ']') || ']'
FROM (SELECT job, body FROM errors WHERE job IN carray(?) ORDER BY job, n)

-- name: logs_of
SELECT '[' || group_concat('[' || job || ',' || body || ']') || ']'
FROM (SELECT job, body FROM logs WHERE job IN carray(?) ORDER BY job, n)

-- Lines -------------------------------------------------------------------------------------

-- name: ready
@jobs_json@ (SELECT * FROM jobs WHERE service = ? AND queue = ? AND stage = 'ready'
             ORDER BY priority, position LIMIT ?)

-- name: due
SELECT json_group_array(seq)
FROM (SELECT seq FROM jobs WHERE service = ? AND queue = ? AND stage = 'delayed' AND run_at <= ?
      ORDER BY run_at, seq LIMIT ?)

-- name: next_due
SELECT min(run_at) FROM jobs WHERE service = ? AND queue = ? AND stage = 'delayed'

-- name: oldest_waiting
SELECT id FROM jobs
WHERE service = ? AND queue = ? AND lease_until IS NULL AND finished_at IS NULL
ORDER BY seq LIMIT 1

-- Keys --------------------------------------------------------------------------------------

-- name: keys
SELECT json_group_array(json_array(service, hash, active, queued, takeovers))
FROM keys WHERE service = ? AND hash IN carray(?)

-- name: upsert_keys
INSERT INTO keys (service, hash, active, queued, takeovers) VALUES @rows(5)@
ON CONFLICT DO UPDATE
SET active = excluded.active, queued = excluded.queued, takeovers = excluded.takeovers

-- name: delete_idle_keys
DELETE FROM keys
WHERE service = ? AND hash IN carray(?) AND active = 0 AND queued = 0 AND takeovers = 0

-- name: ready_of_keys
-- How many jobs of the keys stand ready, by queue and priority.
SELECT json_group_array(json_array(key, queue, priority, jobs))
FROM (SELECT key, queue, priority, count(*) AS jobs FROM jobs
      WHERE service = ? AND key IN carray(?) AND stage = 'ready' AND finished_at IS NULL
        AND key IS NOT NULL
      GROUP BY key, queue, priority)

-- name: parked_of_keys
-- The first few parked jobs of each key, in order of queue, priority and place.
@jobs_json@ (SELECT jobs.* FROM carray(?2) AS k
             JOIN jobs ON jobs.seq IN (
                 SELECT seq FROM jobs
                 WHERE service = ?1 AND key = k.value AND stage = 'parked'
                   AND finished_at IS NULL
                 ORDER BY queue, priority, position LIMIT ?3))

-- name: last_parked_queues
SELECT json_group_array(json_array(value, queue))
FROM (SELECT k.value, (SELECT max(queue) FROM jobs
                       WHERE service = ?1 AND key = k.value AND stage = 'parked'
                         AND finished_at IS NULL) AS queue
      FROM carray(?2) AS k)

-- name: queue_of_key
-- The first queue after the given one in which jobs of the key stand in the given line.
SELECT min(queue) FROM jobs
WHERE service = ? AND key = ? AND stage = ? AND queue > ? AND finished_at IS NULL

-- name: line_of_key
@jobs_json@ (SELECT * FROM jobs
             WHERE service = ? AND key = ? AND stage = ? AND queue = ? AND finished_at IS NULL
               AND state <> 'active'
             ORDER BY priority, position LIMIT ?)

-- name: active_of_key
@jobs_json@ (SELECT * FROM jobs
             WHERE service = ? AND key = ? AND state = 'active' AND finished_at IS NULL)

-- name: first_active
SELECT id FROM jobs
WHERE service = ? AND key = ? AND state = 'active' AND finished_at IS NULL
ORDER BY seq LIMIT 1

-- name: first_queued
SELECT id FROM jobs WHERE seq = (
    SELECT min(first) FROM (
        SELECT (SELECT min(seq) FROM jobs WHERE service = ?1 AND key = ?2 AND state = waiting
                AND finished_at IS NULL) AS first
        FROM (SELECT 'pending' AS waiting UNION ALL SELECT 'retry' UNION ALL SELECT 'blocked')))

-- Dedup, edges, rates, counts ---------------------------------------------------------------

-- name: holders
SELECT json_group_array(json_array(service, key, job_id, held_until))
FROM holders WHERE service = ? AND key IN carray(?)

-- name: upsert_holders
INSERT INTO holders (service, key, job_id, held_until) VALUES @rows(4)@
ON CONFLICT DO UPDATE SET job_id = excluded.job_id, held_until = excluded.held_until

-- name: delete_holders
DELETE FROM holders WHERE service = ? AND key IN carray(?)

-- name: edges_json
SELECT '[' || group_concat(json_array(n, parent_id, child_id, policy, state, parent_state)) || ']',
       '[' || group_concat(iif(result IS NULL, NULL,
              '[' || json_quote(parent_id) || ',' || json_quote(child_id) || ',' || result || ']'))
       || ']'
FROM edges

-- name: edges_to
@edges_json@ WHERE parent_id IN carray(?)

-- name: edges_from
@edges_json@ WHERE child_id IN carray(?)

-- name: upsert_edges
INSERT INTO edges (parent_id, child_id, n, policy, state, parent_state, result)
VALUES @rows(7)@
ON CONFLICT DO UPDATE
SET policy = excluded.policy, state = excluded.state, parent_state = excluded.parent_state,
    result = excluded.result

-- name: arrival
SELECT arrival FROM rates WHERE service = ? AND queue = ?

-- name: upsert_rates
INSERT INTO rates (service, queue, arrival) VALUES @rows(3)@
ON CONFLICT DO UPDATE SET arrival = excluded.arrival

-- name: counted
SELECT json_group_object(state, jobs) FROM counts WHERE service = ? AND queue = ?

-- name: add_counts
INSERT OR FAIL INTO counts (service, queue, state, jobs) VALUES @rows(4)@
ON CONFLICT DO UPDATE SET jobs = jobs + excluded.jobs

-- name: count
SELECT json_group_array(json_array(service, queue, state, jobs))
FROM (SELECT * FROM counts WHERE jobs > 0 ORDER BY service, queue, state)

-- Documents ---------------------------------------------------------------------------------

-- name: queue_settings
SELECT '[' || group_concat('[' || json_quote(name) || ',' || body || ']') || ']'
FROM documents WHERE kind = ?

-- name: document
SELECT revision FROM documents
WHERE kind = ? AND name = ? AND (expires_at IS NULL OR expires_at > ?)

-- name: next_revision
UPDATE meta SET value = value + 1 WHERE name = 'revision' RETURNING value

-- name: settings_revision
UPDATE meta SET value = ? WHERE name = 'settings'

-- name: put_document
INSERT INTO documents (kind, name, body, revision, expires_at) VALUES (?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE
SET body = excluded.body, revision = excluded.revision, expires_at = excluded.expires_at

-- name: delete_document
DELETE FROM documents WHERE kind = ? AND name = ?

-- name: documents
SELECT '[' || group_concat('[' || json_quote(name) || ',' || body || ',' || revision || ','
              || ifnull(expires_at, 'null') || ']') || ']'
FROM (SELECT * FROM documents WHERE kind = ? AND (expires_at IS NULL OR expires_at > ?)
      ORDER BY name)

-- Journal -----------------------------------------------------------------------------------

-- name: journal_rows
-- All entries of the subquery that follows, in order.
SELECT '[' || group_concat(
    format('[%d,%d,%d,"%s","%s",', seq, job, at, event, state)
    || iif(previous IS NULL, 'null', '"' || previous || '"')
    || ',' || json_quote(queue) || ',' || json_quote(type) || ',' || tries || ','
    || iif(worker IS NULL, 'null', json_quote(worker)) || ',' || ifnull(rest, 'null') || ']'
) || ']'
FROM

-- name: journal
@journal_rows@ (SELECT * FROM journal WHERE seq > ? ORDER BY seq LIMIT ?)

-- name: journal_of
-- The chains of every job that has or had the id, and what was refused.
@journal_rows@ (
    WITH RECURSIVE
    known(job, version) AS (
        SELECT seq, version FROM jobs WHERE id = ?1
        UNION ALL
        SELECT job, version FROM graves WHERE id = ?1
    ),
    chain(seq) AS (
        SELECT version FROM known WHERE version > ?2
        UNION ALL
        SELECT journal.before FROM journal JOIN chain ON journal.seq = chain.seq
        WHERE journal.before > ?2
    )
    SELECT * FROM journal WHERE seq IN (
        SELECT seq FROM chain
        UNION
        SELECT refused.seq FROM journal AS refused JOIN known ON refused.job = known.job
        WHERE refused.event = 'stale_completion_ignored' AND refused.seq > ?2
    )
    ORDER BY seq LIMIT ?3
)

-- name: heads_of_jobs
SELECT json_group_array(json_object('job', seq, 'id', id, 'service', service,
    'max_tries', max_tries, 'context', json_extract(body, '$.context')))
FROM jobs JOIN specs ON specs.job = jobs.seq WHERE seq IN carray(?)

-- name: heads_of_graves
SELECT '[' || group_concat(head) || ']' FROM graves WHERE job IN carray(?)

-- name: oldest_journal
SELECT json_group_array(json_array(seq, at))
FROM (SELECT seq, at FROM journal WHERE seq < (SELECT max(seq) FROM journal) ORDER BY seq LIMIT ?)

-- name: delete_graves
DELETE FROM graves WHERE version <= ?

-- name: delete_journal
DELETE FROM journal WHERE seq <= ?

-- Pruning -----------------------------------------------------------------------------------

-- name: ended
-- The oldest ended jobs of a place, oldest first.
SELECT json_group_array(json_array(seq, finished_at))
FROM (SELECT seq, finished_at FROM jobs
      WHERE service = ? AND queue = ? AND state = ? AND finished_at IS NOT NULL
      ORDER BY finished_at, seq LIMIT ?)

-- name: delete_lapsed_holders
DELETE FROM holders
WHERE (service, key) IN (
    SELECT service, key FROM holders
    WHERE held_until <= ?1 AND held_until IS NOT NULL
      AND NOT EXISTS (SELECT 1 FROM jobs WHERE id = holders.job_id AND finished_at IS NULL))

-- name: delete_expired_documents
DELETE FROM documents WHERE expires_at <= ? AND expires_at IS NOT NULL

-- Finding -----------------------------------------------------------------------------------
-- Each names candidates by sequence, newest first where its index has that order.

-- name: find_all
SELECT json_group_array(seq) FROM (SELECT seq FROM jobs WHERE seq < ? ORDER BY seq DESC LIMIT ?)

-- name: find_ids
SELECT json_group_array(seq) FROM (SELECT seq FROM jobs WHERE id IN carray(?) AND seq < ?)

-- name: find_key
SELECT json_group_array(seq)
FROM (SELECT seq FROM jobs WHERE key = ? AND seq < ? ORDER BY seq DESC LIMIT ?)

-- name: find_key_name
SELECT json_group_array(seq)
FROM (SELECT seq FROM jobs WHERE key_name = ? AND seq < ? ORDER BY seq DESC LIMIT ?)

-- name: find_tag
SELECT json_group_array(job)
FROM (SELECT job FROM tags WHERE tag = ? AND job < ? ORDER BY job DESC LIMIT ?)

-- name: find_state
SELECT json_group_array(seq)
FROM (SELECT seq FROM jobs
      WHERE state = ? AND state NOT IN ('pending', 'active') AND seq < ?
      ORDER BY seq DESC LIMIT ?)

-- name: find_waiting
SELECT json_group_array(seq)
FROM (SELECT seq FROM jobs
      WHERE service = ? AND queue = ? AND lease_until IS NULL AND finished_at IS NULL AND seq < ?
      ORDER BY seq DESC LIMIT ?)

-- name: find_active
SELECT json_group_array(seq)
FROM (SELECT seq FROM jobs WHERE lease_until <= ? AND seq < ? LIMIT ?)

-- name: find_expiring
SELECT json_group_array(seq)
FROM (SELECT seq FROM jobs
      WHERE expires_at <= ? AND expires_at IS NOT NULL
        AND lease_until IS NULL AND finished_at IS NULL AND seq < ?
      LIMIT ?)

-- name: find_children
SELECT json_group_array(seq)
FROM (SELECT jobs.seq FROM edges JOIN jobs ON jobs.id = edges.child_id
      WHERE edges.parent_id = ? AND jobs.seq < ? LIMIT ?)

-- name: oldest_due
-- Since when the first job in the line of each queue could have started: one look for each
-- priority, and one for the delayed jobs that are due.
SELECT json_group_array(json_object('service', service, 'queue', queue, 'since', since))
FROM (SELECT service, queue, (
          SELECT min(run_at) FROM (
              SELECT (SELECT run_at FROM jobs
                      WHERE stage = 'ready' AND service = counts.service AND queue = counts.queue
                        AND priority = level.column1
                      ORDER BY position LIMIT 1) AS run_at
              FROM (VALUES (0), (1), (2), (3), (4), (5), (6), (7), (8), (9)) AS level
              UNION ALL
              SELECT (SELECT run_at FROM jobs
                      WHERE stage = 'delayed' AND service = counts.service
                        AND queue = counts.queue AND run_at <= ?
                      ORDER BY run_at LIMIT 1)
          )
      ) AS since
      FROM (SELECT DISTINCT service, queue FROM counts
            WHERE state IN ('pending', 'retry') AND jobs > 0) AS counts)
WHERE since IS NOT NULL

-- name: find_jobs
-- The jobs among the candidates; further conditions follow.
@jobs_json@ (SELECT * FROM jobs WHERE seq IN carray(?)
