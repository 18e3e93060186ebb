-- Statements by name; lists are handed in as JSON arrays (no limit on their length, one prepared statement each).

-- name: last_event
SELECT id, at_s FROM events ORDER BY id DESC LIMIT 1;

-- name: add_event
INSERT INTO events (id, at_s, type, job, data) VALUES (?, ?, ?, ?, ?);

-- name: put_spec
INSERT INTO specs (id, spec) VALUES (?, ?) ON CONFLICT (id) DO UPDATE SET spec = excluded.spec;

-- name: put_node
INSERT INTO nodes (name, node, cause) VALUES (?, ?, ?)
ON CONFLICT (name) DO UPDATE SET node = excluded.node, cause = excluded.cause;

-- name: put_setting
INSERT INTO settings (key, value) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value;

-- name: put_meta
INSERT INTO meta (key, value) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value;

-- name: add_submission
INSERT INTO submissions (key, digest, jobs, at_s) VALUES (?, ?, ?, ?);

-- name: put_memory
INSERT INTO policy_memory (id, policy, memory) VALUES (1, ?, ?)
ON CONFLICT (id) DO UPDATE SET policy = excluded.policy, memory = excluded.memory;

-- name: memory
SELECT policy, memory FROM policy_memory;

-- name: meta
SELECT key, value FROM meta;

-- name: settings
SELECT key, value FROM settings;

-- name: nodes
SELECT name, node, cause FROM nodes ORDER BY name;

-- name: specs
SELECT id, spec FROM specs WHERE id IN (SELECT value FROM json_each(?));

-- name: all_specs
SELECT id, spec FROM specs;

-- name: submission
SELECT key, digest, jobs, at_s FROM submissions WHERE key = ?;

-- name: submissions
SELECT key, digest, jobs, at_s FROM submissions;

-- name: counts
SELECT phase, count(*) FROM jobs GROUP BY phase;

-- name: ended_runs_of_name
SELECT gpus, work_s, array_id, spec FROM jobs JOIN specs ON specs.id = spec_id
WHERE phase = 'finished' AND user = ? AND spec_name = ? ORDER BY ended_s DESC, jobs.id DESC LIMIT ?;

-- name: ended_runs_of_user
SELECT gpus, work_s, array_id, spec FROM jobs JOIN specs ON specs.id = spec_id
WHERE phase = 'finished' AND user = ? ORDER BY ended_s DESC, jobs.id DESC LIMIT ?;
