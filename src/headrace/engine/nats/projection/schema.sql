-- The data layout of a projection. It has no migrations: one of another version is thrown away
-- and built anew from the stream.
--
--   mirror   one row: which stream this is, how far it was read, and how far the journal is pruned.
--            `witness` is what the message at `position` looked like, to notice a stream that lost
--            its end. `doubt` is from where on messages were read that may have been purged
--            meanwhile; see following.py.
--   message  the messages that count: journal entries above the floor (`at` is their time), and of
--            each job the `created` one, which knows what was enqueued, and the newest, which says
--            how it stands. `before` is the entry before this one of the same id: a chain, so that
--            no index grows with every event. `job` is the sequence of the job's `created`.
--   job      what jobs are looked for by. `seq` is the sequence of its `created`, `newest` that of
--            its newest message, `entry` that of its newest journal entry. `due` is set while it
--            can start or waits for its time, `ended_at` once it has ended.
--   label    what else jobs are looked for by: their tags, parents and keys.
--   grave    removed jobs whose messages are still in the stream; `last` is the newest of them.
--   counts   jobs by service, queue and state; kept with every change, never counted.
--
-- Times are milliseconds since the epoch, UTC.

CREATE TABLE mirror (
    one      INTEGER PRIMARY KEY CHECK (one = 1),
    stream   TEXT NOT NULL,
    position INTEGER NOT NULL DEFAULT 0,
    witness  BLOB NOT NULL DEFAULT x'',
    floor    INTEGER NOT NULL DEFAULT 0,
    doubt    INTEGER
) STRICT;

CREATE TABLE message (
    seq    INTEGER PRIMARY KEY,
    job    INTEGER NOT NULL,
    before INTEGER,
    at     INTEGER,
    body   BLOB NOT NULL
) STRICT;

CREATE TABLE job (
    seq         INTEGER PRIMARY KEY,
    id          TEXT NOT NULL UNIQUE,
    service     TEXT NOT NULL,
    created_at  INTEGER NOT NULL,
    queue       TEXT NOT NULL,
    type        TEXT NOT NULL,
    state       TEXT NOT NULL,
    worker      TEXT,
    lease_until INTEGER,
    expires_at  INTEGER,
    due         INTEGER,
    ended_at    INTEGER,
    entry       INTEGER NOT NULL,
    newest      INTEGER NOT NULL
) STRICT;

-- Listing: a filter by service, queue or state is a walk over a few places.
CREATE INDEX job_place ON job (service, queue, state, seq);

-- What upkeep looks for: leases that ran out, jobs not started in time, ended jobs to prune.
CREATE INDEX job_active ON job (lease_until) WHERE state = 'active';
CREATE INDEX job_expiring ON job (expires_at)
    WHERE expires_at IS NOT NULL AND state IN ('pending', 'retry', 'blocked');
CREATE INDEX job_ended ON job (service, queue, state, ended_at) WHERE ended_at IS NOT NULL;

CREATE TABLE label (
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    job  INTEGER NOT NULL,
    PRIMARY KEY (kind, name, job)
) STRICT, WITHOUT ROWID;
CREATE INDEX label_job ON label (job);

CREATE TABLE grave (
    id      TEXT PRIMARY KEY,
    service TEXT NOT NULL,
    type    TEXT NOT NULL,
    last    INTEGER NOT NULL,
    entry   INTEGER
) STRICT, WITHOUT ROWID;
CREATE INDEX grave_last ON grave (last);

CREATE TABLE counts (
    service TEXT NOT NULL,
    queue   TEXT NOT NULL,
    state   TEXT NOT NULL,
    jobs    INTEGER NOT NULL,
    PRIMARY KEY (service, queue, state)
) STRICT, WITHOUT ROWID;
