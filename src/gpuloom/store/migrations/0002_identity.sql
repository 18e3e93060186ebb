-- Each run has a name of its own for ever, also in a home whose store is put back to an older state.

ALTER TABLE attempts ADD COLUMN identity TEXT NOT NULL DEFAULT ''; -- drawn at random; '' of runs started before
