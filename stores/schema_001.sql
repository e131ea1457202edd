-- The first schema. Documents and entries are JSON text; what is indexed of a document is
-- a column of its own, filled by the store. The bulky column comes last in each table, so
-- that a scan of the others does not read through it.

CREATE TABLE sessions (
    id TEXT PRIMARY KEY,
    version INTEGER NOT NULL,
    startedAt TEXT NOT NULL,
    status TEXT NOT NULL,
    conversationId TEXT NOT NULL,
    provider TEXT NOT NULL,
    fence INTEGER,
    document TEXT NOT NULL
);
CREATE INDEX sessions_by_start ON sessions (startedAt, id);
CREATE INDEX sessions_by_status ON sessions (status, startedAt, id);
CREATE INDEX sessions_by_conversation ON sessions (conversationId, startedAt, id);
CREATE INDEX sessions_by_provider ON sessions (provider, startedAt, id);

CREATE TABLE state (
    id TEXT PRIMARY KEY,
    version INTEGER NOT NULL,
    document TEXT NOT NULL
);

CREATE TABLE conversations (
    id TEXT PRIMARY KEY,
    version INTEGER NOT NULL,
    document TEXT NOT NULL
);

CREATE TABLE injections (
    id TEXT PRIMARY KEY,
    version INTEGER NOT NULL,
    conversationId TEXT NOT NULL,
    rule TEXT NOT NULL,
    document TEXT NOT NULL
);
CREATE INDEX injections_by_conversation ON injections (conversationId, id);
CREATE INDEX injections_by_rule ON injections (rule, id);

CREATE TABLE items (
    key TEXT NOT NULL,
    position INTEGER NOT NULL,
    entry TEXT NOT NULL,
    PRIMARY KEY (key, position)
);

CREATE TABLE events (
    key TEXT NOT NULL,
    position INTEGER NOT NULL,
    entry TEXT NOT NULL,
    PRIMARY KEY (key, position)
);

CREATE TABLE transcripts (
    key TEXT NOT NULL,
    position INTEGER NOT NULL,
    entry TEXT NOT NULL,
    PRIMARY KEY (key, position)
);

-- The answer to each commit that carried a key, written with the commit.
CREATE TABLE receipts (
    key TEXT PRIMARY KEY,
    results TEXT NOT NULL
) WITHOUT ROWID;
