-- Members of an attempt on several nodes, as JSON (core/book.py: members_data); [] of an attempt on one node.
ALTER TABLE attempts ADD COLUMN members TEXT NOT NULL DEFAULT '[]';
