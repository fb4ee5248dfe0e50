-- +goose Up

-- The placeholder is replaced by the configured schema name, quoted, and never
-- stands in a comment: a name may contain a line break. Every table has one
-- owning package (docs of each); lock order is positions, user tables, logs.

SET LOCAL search_path = pg_catalog, pg_temp;
SET LOCAL lock_timeout = '5s';
SET LOCAL statement_timeout = 0;

CREATE TABLE @schema@.pipelines (
    id                bigint GENERATED ALWAYS AS IDENTITY UNIQUE,
    name              text PRIMARY KEY,
    salt              bytea NOT NULL CHECK (octet_length(salt) = 16),
    generation        bytea NOT NULL,
    group_name        text NOT NULL,
    cluster_id        text NOT NULL,
    system_identifier bigint NOT NULL,
    sink_tables       text[] NOT NULL DEFAULT '{}',
    settings          jsonb NOT NULL DEFAULT '{}',
    created_at        timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE @schema@.topics (
    pipeline         bigint NOT NULL REFERENCES @schema@.pipelines (id),
    topic_id         uuid NOT NULL,
    name             text NOT NULL,
    partitions       integer NOT NULL CHECK (partitions > 0),
    scope            text NOT NULL CHECK (scope IN ('partition', 'topic')),
    start            text NOT NULL,
    generation       bytea NOT NULL,
    generation_count bigint NOT NULL DEFAULT 1,
    created_at       timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (pipeline, topic_id)
);

-- One row a partition and lane. No index on a changing column and half of each
-- page free: an advance is a HOT update.
CREATE TABLE @schema@.positions (
    pipeline         bigint NOT NULL,
    topic_id         uuid NOT NULL,
    partition        integer NOT NULL,
    lane             text NOT NULL DEFAULT '',
    next_offset      bigint NOT NULL CHECK (next_offset >= 0),
    leader_epoch     integer NOT NULL DEFAULT -1,
    owner            uuid,
    epoch            bigint NOT NULL DEFAULT 0,
    holder           text NOT NULL DEFAULT '',
    generation       bytea NOT NULL,
    last_record_time timestamptz,
    PRIMARY KEY (pipeline, topic_id, partition, lane),
    FOREIGN KEY (pipeline, topic_id) REFERENCES @schema@.topics (pipeline, topic_id)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
        autovacuum_vacuum_cost_delay = 0);

-- The dedup store of one scope. head_id is drawn anew by every run: an integer
-- head can be given out twice after the database went back.
CREATE TABLE @schema@.logs (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    pipeline   bigint NOT NULL,
    topic_id   uuid NOT NULL,
    partition  integer, -- null in scope topic
    state      text NOT NULL DEFAULT 'open' CHECK (state IN ('open', 'closed')),
    generation bytea NOT NULL,
    head       bigint NOT NULL DEFAULT 0,
    head_id    uuid NOT NULL DEFAULT gen_random_uuid(),
    manifest   uuid NOT NULL DEFAULT gen_random_uuid(),
    sealed     bigint NOT NULL DEFAULT 0 CHECK (sealed BETWEEN 0 AND head),
    FOREIGN KEY (pipeline, topic_id) REFERENCES @schema@.topics (pipeline, topic_id)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
        autovacuum_vacuum_cost_delay = 0);

CREATE INDEX logs_scope ON @schema@.logs (pipeline, topic_id, partition);

-- One open log a scope: two members that meet no log yet cannot both make one.
CREATE UNIQUE INDEX logs_open_partition ON @schema@.logs (pipeline, topic_id, partition) WHERE state = 'open';
CREATE UNIQUE INDEX logs_open_topic ON @schema@.logs (pipeline, topic_id) WHERE state = 'open' AND partition IS NULL;

-- What one commit did to one partition.
CREATE TYPE @schema@.run_range AS (
    topic_id     uuid,
    partition    integer,
    lane         text,
    from_offset  bigint,
    to_offset    bigint,
    owner        uuid,
    epoch        bigint,
    read         bigint,
    applied      bigint,
    duplicate    bigint,
    dead         bigint
);

-- One row a commit and log: the new fingerprints, sorted, 16 bytes each, and the
-- audit row. Fingerprints are random, so compressing them is lost work.
CREATE TABLE @schema@.runs (
    log          bigint NOT NULL REFERENCES @schema@.logs (id),
    seq          bigint NOT NULL,
    run_id       uuid NOT NULL, -- the log's head_id after this run
    ranges       @schema@.run_range[] NOT NULL,
    committed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    newest       timestamptz, -- newest record time
    fingerprints bytea CHECK (octet_length(fingerprints) % 16 = 0), -- null once sealed, empty when the commit brought no new key
    PRIMARY KEY (log, seq)
);
ALTER TABLE @schema@.runs ALTER COLUMN fingerprints SET STORAGE EXTERNAL;

CREATE TABLE @schema@.segments (
    id            uuid PRIMARY KEY,
    log           bigint NOT NULL REFERENCES @schema@.logs (id),
    state         text NOT NULL CHECK (state IN ('building', 'live', 'dead')),
    tier          integer NOT NULL,
    keys          bigint NOT NULL,
    blocks        bigint NOT NULL,
    oldest        timestamptz,
    newest        timestamptz,
    first_run     bigint NOT NULL,
    last_run      bigint NOT NULL,
    filter_digest bytea,
    created_at    timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX segments_log ON @schema@.segments (log);

-- 250 sorted fingerprints a row, two rows a page.
CREATE TABLE @schema@.blocks (
    segment      uuid NOT NULL,
    first        bytea NOT NULL CHECK (octet_length(first) = 16),
    fingerprints bytea NOT NULL CHECK (octet_length(fingerprints) % 16 = 0),
    PRIMARY KEY (segment, first)
);
ALTER TABLE @schema@.blocks ALTER COLUMN fingerprints SET STORAGE PLAIN;
ALTER TABLE @schema@.blocks ALTER COLUMN first SET STORAGE PLAIN;

CREATE TABLE @schema@.dead_letters (
    pipeline      bigint NOT NULL,
    topic_id      uuid NOT NULL,
    partition     integer NOT NULL,
    "offset"      bigint NOT NULL,
    topic         text NOT NULL,
    stage         text NOT NULL CHECK (stage IN ('decode', 'key', 'encode', 'effect')),
    code          text NOT NULL DEFAULT '', -- SQLSTATE where the database spoke
    reason        text NOT NULL,
    detail        text NOT NULL DEFAULT '',
    record_time   timestamptz,
    key           bytea, -- null and empty differ, here and in headers
    value         bytea,
    header_names  bytea[] NOT NULL DEFAULT '{}', -- bytes: Kafka does not promise UTF-8
    header_values bytea[] NOT NULL DEFAULT '{}',
    state         text NOT NULL DEFAULT 'open' CHECK (state IN ('open', 'retry', 'parked', 'done', 'dropped')),
    attempts      integer NOT NULL DEFAULT 1,
    first_at      timestamptz NOT NULL DEFAULT now(),
    last_at       timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (pipeline, topic_id, partition, "offset")
);

-- Ids are derived from coordinates: the same effect has the same id after the
-- database went back.
CREATE TABLE @schema@.outbox (
    id         uuid PRIMARY KEY,
    pipeline   bigint NOT NULL,
    target     text NOT NULL,
    key        bytea,
    payload    bytea,
    headers    jsonb NOT NULL DEFAULT '[]',
    created_at timestamptz NOT NULL DEFAULT now(),
    sent_at    timestamptz
);

-- What keeps retention from removing keys that a running replay may meet.
CREATE TABLE @schema@.holds (
    id         uuid PRIMARY KEY,
    log        bigint NOT NULL REFERENCES @schema@.logs (id),
    oldest     timestamptz NOT NULL,
    reason     text NOT NULL,
    expires_at timestamptz NOT NULL
);

-- What an operator decided about a partition or a pipeline.
CREATE TABLE @schema@.decisions (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    pipeline   bigint NOT NULL,
    topic_id   uuid,
    partition  integer,
    kind       text NOT NULL,
    reason     text NOT NULL DEFAULT '',
    detail     jsonb NOT NULL DEFAULT '{}',
    decided_by text NOT NULL DEFAULT current_user,
    decided_at timestamptz NOT NULL DEFAULT now()
);

-- The audit trail, one row a partition and commit.
CREATE VIEW @schema@.audit AS
SELECT p.name AS pipeline, t.name AS topic, g.topic_id, g.partition, g.lane, g.from_offset, g.to_offset, g.owner, g.epoch,
       g.read, g.applied, g.duplicate, g.dead, r.committed_at, r.log, r.seq, r.run_id
FROM @schema@.runs r
JOIN @schema@.logs l ON l.id = r.log
JOIN @schema@.pipelines p ON p.id = l.pipeline
CROSS JOIN LATERAL unnest(r.ranges) g
JOIN @schema@.topics t ON t.pipeline = l.pipeline AND t.topic_id = g.topic_id;

-- Step 1 of a batch. Locks the positions in order, then requires each to be as
-- expected and advances it, never backwards. Raises EO001 if one is not: the claim
-- is stale. The answer is the transaction's id, which step 4 compares. An array
-- that is null or too short matches nothing, and is counted by the longest one.
-- +goose StatementBegin
CREATE FUNCTION @schema@.fence(p_pipeline bigint, p_topics uuid[], p_partitions integer[], p_lanes text[],
    p_owners uuid[], p_generations bytea[], p_from bigint[], p_to bigint[], p_leader_epochs integer[],
    p_times timestamptz[]) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    expected integer := greatest(cardinality(p_topics), cardinality(p_partitions), cardinality(p_lanes),
        cardinality(p_owners), cardinality(p_generations), cardinality(p_from), cardinality(p_to));
    advanced integer;
    stale    text;
BEGIN
    PERFORM 1
    FROM @schema@.positions p
    JOIN unnest(p_topics, p_partitions, p_lanes) AS u (topic_id, partition, lane)
      ON p.pipeline = p_pipeline AND p.topic_id = u.topic_id AND p.partition = u.partition AND p.lane = u.lane
    ORDER BY p.topic_id, p.partition, p.lane
    FOR NO KEY UPDATE OF p;

    UPDATE @schema@.positions p
    SET next_offset = u.to_offset, leader_epoch = u.leader_epoch,
        last_record_time = greatest(p.last_record_time, u.record_time)
    FROM unnest(p_topics, p_partitions, p_lanes, p_owners, p_generations, p_from, p_to, p_leader_epochs, p_times)
      AS u (topic_id, partition, lane, owner, generation, from_offset, to_offset, leader_epoch, record_time)
    WHERE p.pipeline = p_pipeline AND p.topic_id = u.topic_id AND p.partition = u.partition AND p.lane = u.lane
      AND p.owner = u.owner AND p.next_offset = u.from_offset AND p.generation = u.generation
      AND u.to_offset >= u.from_offset;
    GET DIAGNOSTICS advanced = ROW_COUNT;

    IF advanced IS DISTINCT FROM expected THEN
        SELECT string_agg(format('%s/%s at %s, expected %s', u.topic_id, u.partition,
                   coalesce(p.next_offset::text, 'no row'), u.from_offset), '; ')
        INTO stale
        FROM unnest(p_topics, p_partitions, p_lanes, p_owners, p_generations, p_from)
          AS u (topic_id, partition, lane, owner, generation, from_offset)
        LEFT JOIN @schema@.positions p
          ON p.pipeline = p_pipeline AND p.topic_id = u.topic_id AND p.partition = u.partition AND p.lane = u.lane
        WHERE p.owner IS DISTINCT FROM u.owner OR p.generation IS DISTINCT FROM u.generation;
        RAISE EXCEPTION 'fenced: % of % positions are as expected', advanced, expected
            USING ERRCODE = 'EO001', DETAIL = coalesce(stale, 'owner and generation match, the offsets do not');
    END IF;
    RETURN pg_current_xact_id()::text;
END $$;
-- +goose StatementEnd

-- Steps 3 and 4. Requires the transaction to be the fence's (EO003); locks the
-- logs in order and requires each head_id to be the view's (EO002: log moved) and
-- the log to be open and of our generation (EO004); then writes one run a log,
-- also for a log without ranges: a head that moved without a run breaks the chain.
-- +goose StatementBegin
CREATE FUNCTION @schema@.append_runs(p_xact text, p_logs bigint[], p_generations bytea[], p_heads uuid[],
    p_runs uuid[], p_newest timestamptz[], p_fingerprints bytea[],
    r_logs bigint[], r_topics uuid[], r_partitions integer[], r_lanes text[], r_from bigint[], r_to bigint[],
    r_owners uuid[], r_epochs bigint[], r_read bigint[], r_applied bigint[], r_duplicate bigint[], r_dead bigint[])
RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    expected integer := greatest(cardinality(p_logs), cardinality(p_generations), cardinality(p_heads),
        cardinality(p_runs), cardinality(p_fingerprints));
    moved    integer;
BEGIN
    IF pg_current_xact_id()::text IS DISTINCT FROM p_xact THEN
        RAISE EXCEPTION 'not the transaction that was fenced' USING ERRCODE = 'EO003',
            HINT = 'A handler ended the transaction it was given.';
    END IF;
    -- A null in fingerprints means sealed: keys would be lost without an error.
    IF cardinality(p_fingerprints) IS DISTINCT FROM cardinality(p_logs)
       OR EXISTS (SELECT FROM unnest(r_logs, r_topics) AS r (log) WHERE (r.log = ANY (p_logs)) IS NOT TRUE) THEN
        RAISE EXCEPTION 'a log without fingerprints, or a range without its log' USING ERRCODE = '22023';
    END IF;

    PERFORM 1 FROM @schema@.logs WHERE id = ANY (p_logs) ORDER BY id FOR NO KEY UPDATE;

    UPDATE @schema@.logs l
    SET head = l.head + 1, head_id = u.run_id
    FROM unnest(p_logs, p_generations, p_heads, p_runs) AS u (log, generation, head_id, run_id)
    WHERE l.id = u.log AND l.state = 'open' AND l.generation = u.generation AND l.head_id = u.head_id;
    GET DIAGNOSTICS moved = ROW_COUNT;

    IF moved IS DISTINCT FROM expected THEN
        IF EXISTS (SELECT FROM unnest(p_logs, p_generations) AS u (log, generation)
                   LEFT JOIN @schema@.logs l ON l.id = u.log
                   WHERE l.state IS DISTINCT FROM 'open' OR l.generation IS DISTINCT FROM u.generation) THEN
            RAISE EXCEPTION 'log is closed or of another generation' USING ERRCODE = 'EO004';
        END IF;
        RAISE EXCEPTION 'log moved: % of % heads are the view''s', moved, expected
            USING ERRCODE = 'EO002';
    END IF;

    INSERT INTO @schema@.runs (log, seq, run_id, ranges, newest, fingerprints)
    SELECT l.id, l.head, l.head_id, coalesce(g.ranges, '{}'), u.newest, coalesce(u.fingerprints, '')
    FROM unnest(p_logs, p_newest, p_fingerprints) AS u (log, newest, fingerprints)
    JOIN @schema@.logs l ON l.id = u.log
    LEFT JOIN (SELECT r.log, array_agg(ROW(r.topic_id, r.partition, r.lane, r.from_offset, r.to_offset, r.owner, r.epoch,
                     r.read, r.applied, r.duplicate, r.dead)::@schema@.run_range
                     ORDER BY r.topic_id, r.partition, r.lane) AS ranges
          FROM unnest(r_logs, r_topics, r_partitions, r_lanes, r_from, r_to, r_owners, r_epochs, r_read, r_applied,
                      r_duplicate, r_dead)
            AS r (log, topic_id, partition, lane, from_offset, to_offset, owner, epoch, read, applied, duplicate, dead)
          GROUP BY r.log) g ON g.log = l.id;
END $$;
-- +goose StatementEnd

-- Writes a new owner into the positions that can be locked (all of them with
-- p_wait, else those nobody holds). The epoch rises only when the owner changes,
-- so a retry is idempotent. Head, runs and segments are read by later
-- statements: one that waited for the row returns a torn pair.
-- +goose StatementBegin
CREATE FUNCTION @schema@.takeover(p_pipeline bigint, p_topics uuid[], p_partitions integer[], p_lanes text[],
    p_owners uuid[], p_generations bytea[], p_holder text, p_wait boolean)
RETURNS TABLE (topic_id uuid, partition integer, outcome text, next_offset bigint, leader_epoch integer, epoch bigint,
    holder text)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    locked bigint[];
BEGIN
    IF p_wait THEN
        SELECT array_agg(x.n) INTO locked FROM (
            SELECT u.n FROM @schema@.positions p
            JOIN unnest(p_topics, p_partitions, p_lanes) WITH ORDINALITY AS u (topic_id, partition, lane, n)
              ON p.pipeline = p_pipeline AND p.topic_id = u.topic_id AND p.partition = u.partition AND p.lane = u.lane
            ORDER BY p.topic_id, p.partition, p.lane FOR NO KEY UPDATE OF p) x;
    ELSE
        SELECT array_agg(x.n) INTO locked FROM (
            SELECT u.n FROM @schema@.positions p
            JOIN unnest(p_topics, p_partitions, p_lanes) WITH ORDINALITY AS u (topic_id, partition, lane, n)
              ON p.pipeline = p_pipeline AND p.topic_id = u.topic_id AND p.partition = u.partition AND p.lane = u.lane
            ORDER BY p.topic_id, p.partition, p.lane FOR NO KEY UPDATE OF p SKIP LOCKED) x;
    END IF;

    UPDATE @schema@.positions p
    SET epoch = p.epoch + (p.owner IS DISTINCT FROM u.owner)::integer, owner = u.owner, holder = p_holder
    FROM unnest(p_topics, p_partitions, p_lanes, p_owners, p_generations) WITH ORDINALITY
      AS u (topic_id, partition, lane, owner, generation, n)
    WHERE u.n = ANY (locked)
      AND p.pipeline = p_pipeline AND p.topic_id = u.topic_id AND p.partition = u.partition AND p.lane = u.lane
      AND p.generation = u.generation;

    RETURN QUERY
    SELECT u.topic_id, u.partition,
           CASE WHEN p.pipeline IS NULL THEN 'missing'
                WHEN p.generation <> u.generation THEN 'generation'
                WHEN u.n = ANY (locked) THEN 'taken'
                ELSE 'locked' END,
           p.next_offset, p.leader_epoch, p.epoch, p.holder
    FROM unnest(p_topics, p_partitions, p_lanes, p_generations) WITH ORDINALITY
      AS u (topic_id, partition, lane, generation, n)
    LEFT JOIN @schema@.positions p
      ON p.pipeline = p_pipeline AND p.topic_id = u.topic_id AND p.partition = u.partition AND p.lane = u.lane;
END $$;
-- +goose StatementEnd

-- +goose Down

SET LOCAL search_path = pg_catalog, pg_temp;
SET LOCAL lock_timeout = '5s';
SET LOCAL statement_timeout = 0;

DROP FUNCTION @schema@.takeover(bigint, uuid[], integer[], text[], uuid[], bytea[], text, boolean);
DROP FUNCTION @schema@.append_runs(text, bigint[], bytea[], uuid[], uuid[], timestamptz[], bytea[], bigint[], uuid[],
    integer[], text[], bigint[], bigint[], uuid[], bigint[], bigint[], bigint[], bigint[], bigint[]);
DROP FUNCTION @schema@.fence(bigint, uuid[], integer[], text[], uuid[], bytea[], bigint[], bigint[], integer[],
    timestamptz[]);
DROP VIEW @schema@.audit;
DROP TABLE @schema@.decisions, @schema@.holds, @schema@.outbox, @schema@.dead_letters, @schema@.blocks,
    @schema@.segments, @schema@.runs, @schema@.logs, @schema@.positions, @schema@.topics, @schema@.pipelines;
DROP TYPE @schema@.run_range;
