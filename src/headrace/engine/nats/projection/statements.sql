-- Every statement of the projection. The data layout is in schema.sql.
--
-- Reads of many rows come back as one row of JSON: each step of SQLite gives up the interpreter
-- lock, so a hundred rows fetched one by one wait a hundred times beside a busy thread.
--
-- `carray(?)` is a bound array of integers or strings; `@rows(3)@` stands for as many `(?, ?, ?)`
-- as there are rows to write.

-- name: mirror
SELECT stream, position, witness, floor, doubt FROM mirror

-- name: insert_mirror
INSERT INTO mirror (one, stream) VALUES (1, ?)

-- name: move
UPDATE mirror SET position = ?, witness = ?, doubt = ?

-- name: set_floor
UPDATE mirror SET floor = ?

-- name: sure
UPDATE mirror SET doubt = NULL WHERE position = ?

-- Following ---------------------------------------------------------------------------------

-- name: known
SELECT json_group_array(json_array(id, seq, entry, newest, service, queue, state))
FROM job WHERE id IN carray(?)

-- name: graves
SELECT json_group_array(json_array(id, service, type, last, entry))
FROM grave WHERE id IN carray(?)

-- name: insert_jobs
INSERT INTO job (seq, id, service, created_at, queue, type, state, worker, lease_until, expires_at,
                 due, ended_at, entry, newest)
VALUES @rows(14)@

-- name: update_jobs
WITH v (seq, queue, type, state, worker, lease_until, expires_at, due, ended_at, entry, newest)
    AS (VALUES @rows(11)@)
UPDATE job
SET queue = v.queue, type = v.type, state = v.state, worker = v.worker,
    lease_until = v.lease_until, expires_at = v.expires_at, due = v.due, ended_at = v.ended_at,
    entry = v.entry, newest = v.newest
FROM v WHERE job.seq = v.seq

-- name: delete_jobs
DELETE FROM job WHERE seq IN carray(?)

-- name: insert_messages
INSERT INTO message (seq, job, before, at, body) VALUES @rows(5)@

-- name: delete_messages
DELETE FROM message WHERE seq IN carray(?)

-- name: insert_labels
INSERT OR IGNORE INTO label (kind, name, job) VALUES @rows(3)@

-- name: delete_labels
DELETE FROM label WHERE job IN carray(?)

-- name: insert_graves
INSERT OR REPLACE INTO grave (id, service, type, last, entry) VALUES @rows(5)@

-- name: delete_graves
DELETE FROM grave WHERE id IN carray(?)

-- name: add_counts
INSERT INTO counts (service, queue, state, jobs) VALUES @rows(4)@
ON CONFLICT DO UPDATE SET jobs = jobs + excluded.jobs

-- name: delete_entries
-- Between the old floor and the new one, but for what still says how a job stands.
DELETE FROM message
WHERE seq > ?1 AND seq <= ?2
  AND NOT EXISTS (SELECT 1 FROM job WHERE job.seq = message.job
                  AND message.seq IN (job.seq, job.newest))

-- name: untouched
-- Jobs of which nothing was heard above a sequence.
SELECT json_group_array(seq)
FROM (SELECT seq FROM job WHERE seq > ?2 AND seq <= ?1 AND newest <= ?1 ORDER BY seq LIMIT ?3)

-- name: forgotten
SELECT json_group_array(json_array(newest, service, queue, state)) FROM job WHERE seq IN carray(?)

-- Reading -----------------------------------------------------------------------------------

-- name: count
SELECT json_group_array(json_array(service, queue, state, jobs))
FROM (SELECT service, queue, state, jobs FROM counts
      WHERE jobs > 0 AND (?1 IS NULL OR service = ?1) ORDER BY service, queue, state)

-- name: jobs
-- The bodies of jobs: `created` and, where that is another one, the newest.
SELECT job.seq, job.newest, created.body, iif(job.newest = job.seq, NULL, newest.body)
FROM job
JOIN message AS created ON created.seq = job.seq
JOIN message AS newest ON newest.seq = job.newest
WHERE job.seq IN carray(?)

-- name: heads
SELECT json_group_array(json_array(id, seq, newest)) FROM job WHERE id IN carray(?)

-- name: journal
SELECT seq, body FROM message WHERE at IS NOT NULL AND seq > ? ORDER BY seq LIMIT ?

-- name: journal_of
-- Along the chain, from the newest entry of an id back to the floor.
WITH RECURSIVE chain (seq, before) AS (
    SELECT seq, before FROM message
    WHERE seq IN (SELECT entry FROM job WHERE id = ?1 UNION ALL SELECT entry FROM grave WHERE id = ?1)
    UNION ALL
    SELECT message.seq, message.before FROM chain JOIN message ON message.seq = chain.before
    WHERE message.seq > ?2
)
SELECT seq, body FROM message
WHERE seq IN (SELECT seq FROM chain WHERE seq > ?2 ORDER BY seq LIMIT ?3) ORDER BY seq

-- name: oldest_entries
SELECT json_group_array(json_array(seq, at))
FROM (SELECT seq, at FROM message WHERE at IS NOT NULL AND seq > ? ORDER BY seq LIMIT ?)

-- name: ended
-- The oldest ended jobs of a place, oldest first.
SELECT json_group_array(json_array(seq, ended_at))
FROM (SELECT seq, ended_at FROM job
      WHERE service = ? AND queue = ? AND state = ? AND ended_at IS NOT NULL
      ORDER BY ended_at, seq LIMIT ?)

-- name: counted
SELECT jobs FROM counts WHERE service = ? AND queue = ? AND state = ?

-- name: oldest_of_place
SELECT seq, id FROM job WHERE service = ? AND queue = ? AND state = ? ORDER BY seq LIMIT ?

-- name: oldest_due
SELECT json_group_array(json_object('service', service, 'queue', queue, 'since', since))
FROM (SELECT service, queue, since
      FROM (SELECT service, queue, min(since) AS since
            FROM (SELECT service, queue,
                         (SELECT min(due) FROM job
                          WHERE job.service = counts.service AND job.queue = counts.queue
                            AND job.state = counts.state AND due <= ?) AS since
                  FROM counts WHERE jobs > 0 AND state IN ('pending', 'retry'))
            GROUP BY service, queue)
      WHERE since IS NOT NULL)

-- name: gone
SELECT json_group_array(json_array(id, service, type, last))
FROM (SELECT id, service, type, last FROM grave
      WHERE last <= (SELECT floor FROM mirror) ORDER BY last LIMIT ?)

-- name: size
SELECT page_count * page_size FROM pragma_page_count, pragma_page_size

-- Finding -----------------------------------------------------------------------------------

-- name: find_all
SELECT json_group_array(seq) FROM (SELECT seq FROM job WHERE seq < ? ORDER BY seq DESC LIMIT ?)

-- name: find_ids
SELECT json_group_array(seq) FROM job WHERE id IN carray(?) AND seq < ?

-- name: find_label
SELECT json_group_array(job)
FROM (SELECT job FROM label WHERE kind = ? AND name = ? AND job < ? ORDER BY job DESC LIMIT ?)

-- name: find_place
SELECT json_group_array(seq)
FROM (SELECT seq FROM job WHERE service = ? AND queue = ? AND state = ? AND seq < ?
      ORDER BY seq DESC LIMIT ?)

-- name: find_active
SELECT json_group_array(seq)
FROM (SELECT seq FROM job WHERE state = 'active' AND lease_until <= ? AND seq < ? LIMIT ?)

-- name: find_expiring
SELECT json_group_array(seq)
FROM (SELECT seq FROM job
      WHERE expires_at <= ? AND expires_at IS NOT NULL
        AND state IN ('pending', 'retry', 'blocked') AND seq < ?
      LIMIT ?)

-- name: find_among
-- The candidates that fulfil the conditions that follow.
SELECT json_group_array(seq) FROM (SELECT job.seq FROM job WHERE job.seq IN carray(?)
