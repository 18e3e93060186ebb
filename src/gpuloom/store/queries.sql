-- Statements by name; lists are handed in as JSON arrays (no limit on their length, one prepared statement each).

-- name: last_event
SELECT id, at_s FROM events ORDER BY id DESC LIMIT 1;

-- name: add_event
INSERT INTO events (id, at_s, type, job, data) VALUES (?, ?, ?, ?, ?);

-- name: put_spec
INSERT INTO specs (id, spec) VALUES (?, ?) ON CONFLICT (id) DO UPDATE SET spec = excluded.spec;

-- name: put_environment
INSERT INTO environments (id, env) VALUES (?, ?) ON CONFLICT (id) DO UPDATE SET env = excluded.env;

-- name: environment
SELECT env FROM environments WHERE id = ?;

-- name: forget_environments
DELETE FROM environments
WHERE id NOT IN (SELECT spec_id FROM jobs WHERE phase IN (SELECT value FROM json_each(?)))
AND id NOT IN (SELECT spec_id FROM jobs WHERE ended_s >= ?);

-- name: put_node
INSERT INTO nodes (name, node, cause) VALUES (?, ?, ?)
ON CONFLICT (name) DO UPDATE SET node = excluded.node, cause = excluded.cause;

-- name: put_setting
INSERT INTO settings (key, value) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value;

-- name: put_meta
INSERT INTO meta (key, value) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value;

-- name: add_submission
INSERT INTO submissions (key, digest, jobs, at_s) VALUES (?, ?, ?, ?);

-- name: put_sample
INSERT INTO samples (width_s, from_s, span_s, data) VALUES (?, ?, ?, ?)
ON CONFLICT (width_s, from_s) DO UPDATE SET span_s = excluded.span_s, data = excluded.data;

-- name: drop_samples
DELETE FROM samples WHERE width_s = ? AND from_s < ?;

-- name: samples
SELECT width_s, from_s, span_s, data FROM samples WHERE from_s >= ? AND from_s < ? ORDER BY width_s, from_s;

-- name: completed
SELECT phase, submitted_s, ended_s FROM jobs
WHERE ended_s >= :since AND ended_s < :until AND attempts > 0 AND (:user IS NULL OR user = :user)
ORDER BY ended_s, id;

-- name: restarts
SELECT (
    SELECT count(*) FROM attempts a JOIN jobs j ON j.id = a.job
    WHERE a.ended_s IS NULL AND a.number > 1 AND a.started_s >= :since AND a.started_s < :until
    AND (:user IS NULL OR j.user = :user)
) + (
    SELECT count(*) FROM attempts a JOIN jobs j ON j.id = a.job
    WHERE a.ended_s >= :since AND a.number > 1 AND a.started_s >= :since AND a.started_s < :until
    AND (:user IS NULL OR j.user = :user)
);

-- name: ended_attempts
SELECT a.reason, count(*) FROM attempts a JOIN jobs j ON j.id = a.job
WHERE a.ended_s >= :since AND a.ended_s < :until AND (:user IS NULL OR j.user = :user)
GROUP BY a.reason ORDER BY a.reason;

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
SELECT gpus, work_s, array_id, work_on, spec FROM jobs JOIN specs ON specs.id = spec_id
WHERE phase = 'finished' AND user = ? AND spec_name = ? ORDER BY ended_s DESC, jobs.id DESC LIMIT ?;

-- name: ended_runs_of_user
SELECT gpus, work_s, array_id, work_on, spec FROM jobs JOIN specs ON specs.id = spec_id
WHERE phase = 'finished' AND user = ? ORDER BY ended_s DESC, jobs.id DESC LIMIT ?;

-- name: measured_runs
SELECT gpus, array_id, gpu_model, it_per_s, gpu_memory_mib, allocation, spec FROM jobs JOIN specs ON specs.id = spec_id
JOIN attempts ON attempts.job = jobs.id
WHERE jobs.phase = 'finished' AND user = ? AND spec_name = ?
AND (it_per_s IS NOT NULL OR gpu_memory_mib IS NOT NULL)
ORDER BY jobs.ended_s DESC, jobs.id DESC, number DESC LIMIT ?;

-- name: events_there
SELECT count(*), coalesce(max(id), 0) FROM events;

-- name: highest_job
SELECT coalesce(max(id), 0), count(*) FROM jobs;

-- name: submitted_jobs
SELECT coalesce(sum(json_extract(data, '$.count')), 0) FROM events WHERE type = 'jobs.submitted';

-- Jobs that are not as the last event about them left them, and those that are not there.
-- name: jobs_left_behind
SELECT last.job, last.id FROM (SELECT job, max(id) AS id FROM events WHERE job IS NOT NULL GROUP BY job) AS last
LEFT JOIN jobs ON jobs.id = last.job WHERE jobs.id IS NULL OR jobs.cause != last.id LIMIT 21;

-- Jobs in a phase to which the event that last changed them does not lead (core/book.py).
-- name: jobs_not_as_caused
SELECT jobs.id, jobs.phase, events.type FROM jobs JOIN events ON events.id = jobs.cause
WHERE jobs.phase != CASE events.type
    WHEN 'jobs.submitted' THEN iif(json_extract(events.data, '$.held'), 'held', 'queued')
    WHEN 'job.held' THEN 'held'
    WHEN 'job.released' THEN 'queued'
    WHEN 'job.requeued' THEN 'queued'
    WHEN 'job.cancelled' THEN 'cancelled'
    WHEN 'attempt.starting' THEN 'starting'
    WHEN 'attempt.running' THEN 'running'
    WHEN 'attempt.stopping' THEN 'stopping'
    WHEN 'attempt.frozen' THEN 'frozen'
    WHEN 'attempt.thawed' THEN 'running'
    WHEN 'attempt.ended' THEN json_extract(events.data, '$.next')
    ELSE jobs.phase END LIMIT 21;

-- Jobs that a scheduler goes on with, and those whose phase the last event about them does not tell.
-- name: jobs_to_tell
SELECT jobs.id, jobs.array_id FROM jobs JOIN events ON events.id = jobs.cause
WHERE jobs.phase NOT IN ('finished', 'failed', 'cancelled') OR events.type IN ('job.updated', 'job.flagged')
ORDER BY jobs.id LIMIT ?;
