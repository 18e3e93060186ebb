-- How it is known that an attempt saved its work when it was told to make way.

ALTER TABLE attempts ADD COLUMN saved_by TEXT NOT NULL DEFAULT ''
    CHECK (saved_by IN ('', 'exit_code', 'saved_step', 'checkpoint')); -- '': it is not known, or by an older gpuloom
