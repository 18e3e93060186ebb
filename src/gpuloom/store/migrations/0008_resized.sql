-- Attempts that end to go on at another size: one more word for the reasons of ends.
-- Only the tables' text changes, and no row: https://www.sqlite.org/lang_altertable.html ("making other kinds of table
-- schema changes", the procedure for changes that don't affect what is on disk).

PRAGMA writable_schema = ON;
UPDATE sqlite_schema SET sql = replace(sql, '''not_started'', ''node'')', '''not_started'', ''node'', ''resized'')')
WHERE type = 'table' AND name IN ('jobs', 'attempts');
PRAGMA writable_schema = RESET;
-- Tells other connections that the schema has changed.
CREATE INDEX schema_has_changed ON settings (value);
DROP INDEX schema_has_changed;
