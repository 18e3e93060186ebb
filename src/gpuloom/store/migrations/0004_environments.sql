-- Values of environment variables, which may be secrets, are kept apart from the log, which is kept for ever: specs and
-- events name the variables only. A row goes when no job of its spec may start again (store/sqlite.py).

CREATE TABLE environments (
    id   INTEGER PRIMARY KEY REFERENCES specs (id), -- the spec
    env  TEXT NOT NULL                              -- JSON object: {name: value}
);

INSERT INTO environments (id, env) SELECT id, environment_of(spec) FROM specs WHERE environment_of(spec) IS NOT NULL;
UPDATE specs SET spec = without_environment(spec) WHERE id IN (SELECT id FROM environments);
UPDATE events SET data = without_environment(data) WHERE id IN (SELECT id FROM environments);
