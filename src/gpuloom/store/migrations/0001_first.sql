-- The store's first form. Times are epoch seconds on the scheduler's clock; JSON stands in TEXT columns.
-- Phases and reasons mirror core/job.py (tests/unit/test_store_schema.py compares them).

PRAGMA application_id = 0x67706c6d; -- 'gplm': this file is a store of gpuloom's

CREATE TABLE meta (
    key   TEXT PRIMARY KEY,
    value TEXT NOT NULL          -- JSON: 'store_id', 'created_s', 'next_job'
) WITHOUT ROWID;

-- What happened, in order, without gaps. Never changed; every other table but meta, submissions and policy_memory
-- can be told from it.
CREATE TABLE events (
    id    INTEGER PRIMARY KEY CHECK (id > 0),
    at_s  REAL NOT NULL,
    type  TEXT NOT NULL,
    job   INTEGER,               -- where it is about one job
    data  TEXT NOT NULL          -- JSON object
);
CREATE INDEX events_of_job ON events (job, id) WHERE job IS NOT NULL;
CREATE INDEX events_by_type ON events (type, id);

-- What users asked for. All tasks of an array share one.
CREATE TABLE specs (
    id    INTEGER PRIMARY KEY REFERENCES events (id), -- the event that brought it
    spec  TEXT NOT NULL                               -- JSON object (live/spec.py)
);

CREATE TABLE jobs (
    id            INTEGER PRIMARY KEY CHECK (id > 0),
    name          TEXT NOT NULL,        -- of an array's task: 'name[index]'
    spec_name     TEXT NOT NULL,        -- the name in the spec, alike for all tasks of an array
    user          TEXT NOT NULL,
    gpus          INTEGER NOT NULL CHECK (gpus > 0),
    priority      INTEGER NOT NULL,
    phase         TEXT NOT NULL CHECK (phase IN ('held', 'queued', 'starting', 'running', 'stopping', 'frozen',
                                                 'finished', 'failed', 'cancelled')),
    spec_id       INTEGER NOT NULL REFERENCES specs (id),
    submitted_s   REAL NOT NULL,
    queued_s      REAL NOT NULL,        -- when it last began to wait
    not_before_s  REAL NOT NULL,
    first_start_s REAL,
    ended_s       REAL,
    attempts      INTEGER NOT NULL CHECK (attempts >= 0),
    failures      INTEGER NOT NULL CHECK (failures >= 0),
    held_s        REAL NOT NULL CHECK (held_s >= 0),      -- without the present run, as are the next two
    held_gpu_s    REAL NOT NULL CHECK (held_gpu_s >= 0),
    work_s        REAL NOT NULL,
    reason        TEXT CHECK (reason IN ('finished', 'failed', 'preempted', 'timed_out', 'cancelled', 'requeued',
                                         'lost', 'out_of_memory', 'not_started', 'node')),
    exit_code     INTEGER,
    message       TEXT NOT NULL,
    array_id      INTEGER,
    array_index   INTEGER,
    after_jobs    TEXT NOT NULL,        -- JSON: [[job, 'ok' or 'any'], ...]
    estimate_s    REAL NOT NULL,
    estimate_from TEXT NOT NULL,
    flags         TEXT NOT NULL,        -- JSON object
    cause         INTEGER NOT NULL REFERENCES events (id),
    CHECK ((phase IN ('finished', 'failed', 'cancelled')) = (ended_s IS NOT NULL)),
    CHECK ((array_id IS NULL) = (array_index IS NULL))
);
CREATE INDEX jobs_by_phase ON jobs (phase, id);
CREATE INDEX jobs_by_user ON jobs (user, id);
CREATE INDEX jobs_by_name ON jobs (name, id);
CREATE INDEX jobs_by_submission ON jobs (submitted_s, id);
CREATE INDEX jobs_by_end ON jobs (ended_s, id) WHERE ended_s IS NOT NULL;
CREATE INDEX jobs_of_array ON jobs (array_id, id) WHERE array_id IS NOT NULL;
-- For estimates of run times: a user's last runs, of one name and of any.
CREATE INDEX finished_by_name ON jobs (user, spec_name, ended_s, id) WHERE phase = 'finished';
CREATE INDEX finished_by_user ON jobs (user, ended_s, id) WHERE phase = 'finished';

CREATE TABLE attempts (
    job             INTEGER NOT NULL REFERENCES jobs (id),
    number          INTEGER NOT NULL CHECK (number > 0),
    phase           TEXT CHECK (phase IN ('starting', 'running', 'stopping', 'frozen')), -- NULL once ended
    allocation      TEXT NOT NULL,      -- JSON: [[node, [gpu, ...]], ...]
    started_s       REAL NOT NULL,
    since_s         REAL NOT NULL,      -- since when it has held its GPUs without a break
    running_s       REAL,
    pid             INTEGER,
    start_ticks     INTEGER,
    boot_id         TEXT,
    stop_reason     TEXT CHECK (stop_reason IN ('finished', 'failed', 'preempted', 'timed_out', 'cancelled',
                                                'requeued', 'lost', 'out_of_memory', 'not_started', 'node')),
    deadline_s      REAL,
    ended_s         REAL,
    reason          TEXT CHECK (reason IN ('finished', 'failed', 'preempted', 'timed_out', 'cancelled', 'requeued',
                                           'lost', 'out_of_memory', 'not_started', 'node')),
    exit_code       INTEGER,
    signal          INTEGER,
    saved           INTEGER NOT NULL CHECK (saved IN (0, 1)),
    held_s          REAL NOT NULL CHECK (held_s >= 0),
    work_s          REAL NOT NULL,
    message         TEXT NOT NULL,
    peak_memory_mib REAL,
    cause           INTEGER NOT NULL REFERENCES events (id),
    PRIMARY KEY (job, number),
    CHECK ((phase IS NULL) = (ended_s IS NOT NULL)),
    CHECK ((phase IS NULL) = (reason IS NOT NULL))
) WITHOUT ROWID;
CREATE INDEX attempts_by_end ON attempts (ended_s);

CREATE TABLE nodes (
    name   TEXT PRIMARY KEY,
    node   TEXT NOT NULL,               -- JSON object: a NodeRecord without `cause`
    cause  INTEGER NOT NULL REFERENCES events (id)
) WITHOUT ROWID;

CREATE TABLE settings (
    key    TEXT PRIMARY KEY,            -- 'policy', 'interval_s'
    value  TEXT NOT NULL                -- JSON
) WITHOUT ROWID;

-- Submissions that carried an idempotency key.
CREATE TABLE submissions (
    key     TEXT PRIMARY KEY,
    digest  TEXT NOT NULL,              -- of what was asked for
    jobs    TEXT NOT NULL,              -- JSON: what came of it
    at_s    REAL NOT NULL
) WITHOUT ROWID;

-- What the policy remembers; one row.
CREATE TABLE policy_memory (
    id      INTEGER PRIMARY KEY CHECK (id = 1),
    policy  TEXT NOT NULL,
    memory  BLOB NOT NULL
);
