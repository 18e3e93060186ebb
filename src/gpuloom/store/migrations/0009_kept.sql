-- The newest save that an attempt reported: up to which step it goes, from when it is, who made it.

ALTER TABLE attempts ADD COLUMN kept TEXT NOT NULL DEFAULT '{}'; -- as JSON; '{}': none, or by an older gpuloom
