-- Figures over time: rows of samples of each width, a span each. No event tells them.

CREATE TABLE samples (
    width_s INTEGER NOT NULL CHECK (width_s > 0), -- for how long a sample of this kind stands
    from_s  REAL NOT NULL,                        -- since when, epoch seconds
    span_s  REAL NOT NULL CHECK (span_s >= 0),    -- for how long things were seen
    data    TEXT NOT NULL,                        -- JSON object (live/figures/sample.py)
    PRIMARY KEY (width_s, from_s)
) WITHOUT ROWID;
