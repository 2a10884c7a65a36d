-- The data layout of a Headrace store.
--
-- One sequence numbers everything: a row of the journal has the next number, a job has the number
-- of its `created` entry, a lease the number of its `started` entry. The newest journal row is
-- never pruned, so a number never comes back.
--
--   jobs       a job as it stands; `result`, `error` and `progress` are JSON.
--   specs      a job as it was enqueued: JSON, with its payload byte for byte. Apart from `jobs`,
--              because SQLite writes a row whole: a claim would write the payload again.
--   journal    what happened, in order. The entries of a job are a chain: each names the one
--              before it, and the job's `version` the newest.
--   graves     who deleted jobs were, as long as the journal speaks of them.
--   errors     the error of each try that failed, oldest first.
--   logs       the last lines that handlers logged on a job.
--   tags       which jobs have a tag.
--   edges      dependencies; the parent's result stays here when the parent is pruned.
--   keys       slots taken and jobs waiting, by concurrency key.
--   holders    which job holds a dedup key, and until when its window lasts.
--   counts     jobs by service, queue and state; kept with every change, never counted.
--   rates      how far the rate limit of a queue is used up.
--   documents  small documents: queue settings, schedules, presence.
--   meta       `revision`: the newest document; `settings`: the newest queue settings.
--
-- Times are milliseconds since the epoch, UTC. But for ids every index of jobs is partial: a plain
-- job on its happy path pays only for the lines it stands in. A job that has a lease is active, one
-- that has an end time has ended, and the others wait: whether something is NULL is the cheapest
-- question that an index can ask of every row that changes.

CREATE TABLE jobs (
    seq         INTEGER PRIMARY KEY,
    id          TEXT NOT NULL UNIQUE,
    version     INTEGER NOT NULL,
    service     TEXT NOT NULL,
    queue       TEXT NOT NULL,
    type        TEXT NOT NULL,
    state       TEXT NOT NULL DEFAULT 'pending',
    event       TEXT NOT NULL DEFAULT 'created',
    stage       TEXT NOT NULL DEFAULT 'ready',
    priority    INTEGER NOT NULL,
    position    INTEGER NOT NULL,
    run_at      INTEGER NOT NULL,
    expires_at  INTEGER,
    deadline    INTEGER,
    tries       INTEGER NOT NULL DEFAULT 0,
    max_tries   INTEGER NOT NULL,
    token       INTEGER NOT NULL DEFAULT 0,
    worker      TEXT,
    lease_until INTEGER,
    detached    INTEGER NOT NULL DEFAULT 0,
    cancelling  TEXT,
    waiting_on  INTEGER NOT NULL DEFAULT 0,
    created_at  INTEGER NOT NULL,
    started_at  INTEGER,
    finished_at INTEGER,
    updated_at  INTEGER NOT NULL,
    key         TEXT,     -- the hash
    key_name    TEXT,
    error       BLOB,
    progress    BLOB,
    result      BLOB
) STRICT;

CREATE TABLE specs (
    job  INTEGER PRIMARY KEY,
    body BLOB NOT NULL
) STRICT;

-- The lines that jobs are claimed from.
CREATE INDEX jobs_ready ON jobs (service, queue, priority, position) WHERE stage = 'ready';
CREATE INDEX jobs_delayed ON jobs (service, queue, run_at) WHERE stage = 'delayed';
CREATE INDEX jobs_waiting ON jobs (service, queue, seq)
    WHERE lease_until IS NULL AND finished_at IS NULL;

-- Living jobs of a concurrency key: by their line, and the oldest in a state.
CREATE INDEX jobs_keyed ON jobs (service, key, stage, queue, priority, position)
    WHERE key IS NOT NULL AND finished_at IS NULL;
CREATE INDEX jobs_keyed_oldest ON jobs (service, key, state, seq)
    WHERE key IS NOT NULL AND finished_at IS NULL;

-- What upkeep looks for: leases that ran out, jobs not started in time, ended jobs to prune.
CREATE INDEX jobs_active ON jobs (lease_until) WHERE lease_until IS NOT NULL;
CREATE INDEX jobs_expiring ON jobs (expires_at)
    WHERE expires_at IS NOT NULL AND lease_until IS NULL AND finished_at IS NULL;
CREATE INDEX jobs_ended ON jobs (service, queue, state, finished_at)
    WHERE finished_at IS NOT NULL;

-- Listing. Waiting and running jobs are found by their lines above. A type has no index: it would
-- cost every job a page in every commit, and a page of a listing looks at 10,000 jobs at most.
CREATE INDEX jobs_key ON jobs (key, seq) WHERE key IS NOT NULL;
CREATE INDEX jobs_key_name ON jobs (key_name, seq) WHERE key_name IS NOT NULL;
CREATE INDEX jobs_state ON jobs (state, seq) WHERE state NOT IN ('pending', 'active');

CREATE TABLE journal (
    seq      INTEGER PRIMARY KEY,
    job      INTEGER NOT NULL,
    before   INTEGER,  -- the entry before this one of the same job
    at       INTEGER NOT NULL,
    event    TEXT NOT NULL,
    state    TEXT NOT NULL,
    previous TEXT,
    queue    TEXT NOT NULL,
    type     TEXT NOT NULL,
    tries    INTEGER NOT NULL,
    worker   TEXT,
    rest     BLOB      -- JSON of the fields that most entries do not have
) STRICT;
-- What was refused is no change of the job, so it stands beside its chain.
CREATE INDEX journal_refused ON journal (job) WHERE event = 'stale_completion_ignored';

CREATE TABLE graves (
    job     INTEGER PRIMARY KEY,
    id      TEXT NOT NULL,
    version INTEGER NOT NULL,
    head    BLOB NOT NULL
) STRICT;
CREATE INDEX graves_id ON graves (id);
CREATE INDEX graves_version ON graves (version);

CREATE TABLE errors (
    job  INTEGER NOT NULL,
    n    INTEGER NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (job, n)
) STRICT, WITHOUT ROWID;

CREATE TABLE logs (
    job  INTEGER NOT NULL,
    n    INTEGER NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (job, n)
) STRICT, WITHOUT ROWID;

CREATE TABLE tags (
    tag TEXT NOT NULL,
    job INTEGER NOT NULL,
    PRIMARY KEY (tag, job)
) STRICT, WITHOUT ROWID;
CREATE INDEX tags_job ON tags (job);

CREATE TABLE edges (
    parent_id    TEXT NOT NULL,
    child_id     TEXT NOT NULL,
    n            INTEGER NOT NULL,  -- the order in which dependents came, and are told
    policy       TEXT NOT NULL,
    state        TEXT NOT NULL,
    parent_state TEXT,
    result       BLOB,
    PRIMARY KEY (parent_id, child_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX edges_child ON edges (child_id);

CREATE TABLE keys (
    service   TEXT NOT NULL,
    hash      TEXT NOT NULL,
    active    INTEGER NOT NULL,
    queued    INTEGER NOT NULL,
    takeovers INTEGER NOT NULL,
    PRIMARY KEY (service, hash)
) STRICT, WITHOUT ROWID;

CREATE TABLE holders (
    service    TEXT NOT NULL,
    key        TEXT NOT NULL,
    job_id     TEXT NOT NULL,
    held_until INTEGER,
    PRIMARY KEY (service, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX holders_held ON holders (held_until) WHERE held_until IS NOT NULL;

CREATE TABLE counts (
    service TEXT NOT NULL,
    queue   TEXT NOT NULL,
    state   TEXT NOT NULL,
    jobs    INTEGER NOT NULL,
    PRIMARY KEY (service, queue, state)
) STRICT, WITHOUT ROWID;

CREATE TABLE rates (
    service TEXT NOT NULL,
    queue   TEXT NOT NULL,
    arrival INTEGER NOT NULL,
    PRIMARY KEY (service, queue)
) STRICT, WITHOUT ROWID;

CREATE TABLE documents (
    kind       TEXT NOT NULL,
    name       TEXT NOT NULL,
    body       BLOB NOT NULL,
    revision   INTEGER NOT NULL,
    expires_at INTEGER,
    PRIMARY KEY (kind, name)
) STRICT, WITHOUT ROWID;
CREATE INDEX documents_expiring ON documents (expires_at) WHERE expires_at IS NOT NULL;

CREATE TABLE meta (
    name  TEXT PRIMARY KEY,
    value INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO meta (name, value) VALUES ('revision', 0), ('settings', 0);
