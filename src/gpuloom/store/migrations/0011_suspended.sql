-- Somebody has told a job to leave its GPUs until somebody lets it go on.

ALTER TABLE jobs ADD COLUMN suspended INTEGER NOT NULL DEFAULT 0;
