-- Work by GPU model, the GPU model of an attempt, and the iterations per second that it reported there.

ALTER TABLE jobs ADD COLUMN work_on TEXT NOT NULL DEFAULT '{}'; -- seconds of work_s by GPU model, as JSON
ALTER TABLE attempts ADD COLUMN gpu_model TEXT NOT NULL DEFAULT ''; -- '': not known, or by an older gpuloom
ALTER TABLE attempts ADD COLUMN it_per_s REAL; -- NULL: it reported none, or did not have its GPUs for itself
