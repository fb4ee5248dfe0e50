-- +goose Up

-- Retention by progress: a segment whose newest record is older than how far its log
-- has come, less the retention, dies as a whole. Time is that of records and not of a
-- clock: what was not read for a week has not aged.

SET LOCAL search_path = pg_catalog, pg_temp;
SET LOCAL lock_timeout = '5s';
SET LOCAL statement_timeout = 0;

-- A record time that a second, later batch has also reached: one stamp alone that is
-- ahead of its neighbours moves nothing. No index has it: an advance stays HOT.
ALTER TABLE @schema@.positions ADD COLUMN progress timestamptz;

-- Step 1 of a batch, as before, and how far record times have come. A stamp counts
-- unless it is more than 5 minutes ahead of the database's clock, or none (-1, a time
-- of 1969). greatest and least skip nulls: a batch without a time that counts leaves
-- progress alone, and so does the first one with one.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION @schema@.fence(p_pipeline bigint, p_topics uuid[], p_partitions integer[], p_lanes text[],
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
        last_record_time = greatest(p.last_record_time, t.counts),
        progress = CASE WHEN p.last_record_time IS NULL OR t.counts IS NULL THEN p.progress
            ELSE greatest(p.progress, least(p.last_record_time, t.counts)) END
    FROM unnest(p_topics, p_partitions, p_lanes, p_owners, p_generations, p_from, p_to, p_leader_epochs, p_times)
      AS u (topic_id, partition, lane, owner, generation, from_offset, to_offset, leader_epoch, record_time)
    CROSS JOIN LATERAL (SELECT CASE WHEN u.record_time > 'epoch' AND u.record_time <= now() + interval '5 minutes'
        THEN u.record_time END AS counts) t
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

-- As before, but for the times of a segment. Its newest must not be earlier than the
-- time that any of its records was sent at, or it would die too soon:
--
--   a stamp behind its neighbours (a slow clock)      the newest record time of the scope, as of now: what
--                                                     stood before the record in its partition is older
--   a run of which no stamp counts                    the time of its commit: it was sent before that
--   a merge with a segment without times              null, and null never dies
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION @schema@.swap_segments(p_log bigint, p_manifest uuid, p_next uuid, p_segment uuid, p_keys bigint,
    p_blocks bigint, p_digest bytea, p_dead uuid[], p_sealed bigint, p_head uuid, p_learned bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    there_blocks bigint;
    there_keys   bigint;
    the_log      @schema@.logs;
    the_runs     record;
    the_oldest   timestamptz;
    the_newest   timestamptz;
    died         integer;
BEGIN
    IF p_segment IS NOT NULL THEN
        PERFORM 1 FROM @schema@.segments WHERE id = p_segment AND log = p_log AND state = 'building' FOR NO KEY UPDATE;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'segment % is not there or not building', p_segment USING ERRCODE = 'EO006';
        END IF;
        SELECT count(*), coalesce(sum(octet_length(fingerprints)), 0) / 16 INTO there_blocks, there_keys
        FROM @schema@.blocks WHERE segment = p_segment;
        IF there_blocks IS DISTINCT FROM p_blocks OR there_keys IS DISTINCT FROM p_keys THEN
            RAISE EXCEPTION 'segment % has % blocks and % keys, expected % and %', p_segment, there_blocks, there_keys,
                p_blocks, p_keys USING ERRCODE = 'EO006';
        END IF;
    END IF;

    SELECT * INTO the_log FROM @schema@.logs WHERE id = p_log FOR NO KEY UPDATE;
    IF NOT FOUND OR the_log.state <> 'open' THEN
        RAISE EXCEPTION 'log is closed' USING ERRCODE = 'EO004';
    END IF;
    IF the_log.manifest IS DISTINCT FROM p_manifest THEN
        RAISE EXCEPTION 'manifest moved: somebody else sealed or merged' USING ERRCODE = 'EO005';
    END IF;

    IF p_sealed IS NOT NULL THEN
        -- p_head names the last run, and a run names all before it. The counts say
        -- that none is missing or already without its fingerprints.
        SELECT count(*) AS rows, count(fingerprints) AS whole, coalesce(sum(octet_length(fingerprints)), 0) / 16 AS keys,
               min(coalesce(nullif(greatest(newest, 'epoch'), 'epoch'), committed_at)) AS oldest,
               max(coalesce(nullif(greatest(newest, 'epoch'), 'epoch'), committed_at)) AS newest,
               bool_or(seq = p_sealed AND run_id = p_head) AS named
        INTO the_runs FROM @schema@.runs WHERE log = p_log AND seq > the_log.sealed AND seq <= p_sealed;
        IF the_runs.named IS NOT TRUE OR the_runs.rows <> p_sealed - the_log.sealed OR the_runs.whole <> the_runs.rows
           OR the_runs.keys IS DISTINCT FROM p_learned THEN
            RAISE EXCEPTION 'runs up to % are not the view''s', p_sealed USING ERRCODE = 'EO002';
        END IF;
        the_oldest := the_runs.oldest;
        SELECT greatest(the_runs.newest, max(p.last_record_time)) INTO the_newest FROM @schema@.positions p
        WHERE p.pipeline = the_log.pipeline AND p.topic_id = the_log.topic_id AND p.lane = ''
          AND (the_log.partition IS NULL OR p.partition = the_log.partition);
    END IF;

    UPDATE @schema@.logs SET manifest = p_next, sealed = coalesce(p_sealed, sealed) WHERE id = p_log;

    IF p_dead IS NOT NULL THEN
        SELECT min(oldest), CASE WHEN bool_and(newest IS NOT NULL) THEN max(newest) END INTO the_oldest, the_newest
        FROM @schema@.segments WHERE id = ANY (p_dead);
        UPDATE @schema@.segments SET state = 'dead' WHERE log = p_log AND id = ANY (p_dead) AND state = 'live';
        GET DIAGNOSTICS died = ROW_COUNT;
        IF died IS DISTINCT FROM cardinality(p_dead) THEN
            RAISE EXCEPTION '% of % segments are live', died, cardinality(p_dead) USING ERRCODE = 'EO006';
        END IF;
    END IF;

    UPDATE @schema@.segments
    SET state = 'live', keys = p_keys, blocks = p_blocks, filter_digest = p_digest, oldest = the_oldest, newest = the_newest
    WHERE id = p_segment;
END $$;
-- +goose StatementEnd

-- How far a log has come: its partition's progress. A whole topic's is that of the
-- slowest partition, and while one of them has none, nothing is known (null). A
-- partition that has been read to its end (p_partitions and p_ends, the end offsets)
-- holds nobody back: it counts as the one that has come furthest. That is not the
-- clock: a clock that leaps ahead would let go of everything at once. Nor does
-- progress beyond the clock count, as after one that was ahead.
CREATE FUNCTION @schema@.log_progress(p_log bigint, p_partitions integer[], p_ends bigint[]) RETURNS timestamptz
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE WHEN x.progress > now() THEN now() ELSE x.progress END
    FROM (SELECT CASE WHEN bool_and(read) THEN max(progress)
            WHEN bool_and(read OR progress IS NOT NULL) THEN min(progress) FILTER (WHERE NOT read) END AS progress
        FROM (SELECT p.progress, l.partition IS NULL AND coalesce(p.next_offset >= e.end_offset, false) AS read
            FROM @schema@.logs l
            JOIN @schema@.positions p ON p.pipeline = l.pipeline AND p.topic_id = l.topic_id AND p.lane = ''
                AND (l.partition IS NULL OR p.partition = l.partition)
            LEFT JOIN unnest($2, $3) AS e (partition, end_offset) ON e.partition = p.partition
            WHERE l.id = $1) p) x
$$;

-- The segments of a log that may die now. A hold keeps what has its time or a later
-- one: a replay from there will meet these keys again.
CREATE FUNCTION @schema@.expired_segments(p_log bigint, p_retention interval, p_partitions integer[], p_ends bigint[])
RETURNS SETOF uuid
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT s.id FROM @schema@.segments s
    WHERE s.log = $1 AND s.state = 'live' AND s.newest < @schema@.log_progress($1, $3, $4) - $2
      AND NOT EXISTS (SELECT FROM @schema@.holds h WHERE h.log = $1 AND h.expires_at > now() AND h.oldest <= s.newest)
$$;

-- Lets segments die, by the protocol of swap_segments: what was read is compared,
-- nothing is believed.
--
-- The log is locked against the key share lock of a foreign key as well: whoever has
-- inserted a hold and not committed yet is waited for, and one who inserts it
-- afterwards waits, and then sees what is gone.
--
-- EO004: the log is closed. EO005: the manifest is not the one that was read. EO006:
-- one of the segments may not die, or not any more.
-- +goose StatementBegin
CREATE FUNCTION @schema@.expire_segments(p_log bigint, p_manifest uuid, p_next uuid, p_dead uuid[], p_retention interval,
    p_partitions integer[], p_ends bigint[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    the_log @schema@.logs;
    died    integer;
BEGIN
    SELECT * INTO the_log FROM @schema@.logs WHERE id = p_log FOR UPDATE;
    IF NOT FOUND OR the_log.state <> 'open' THEN
        RAISE EXCEPTION 'log is closed' USING ERRCODE = 'EO004';
    END IF;
    IF the_log.manifest IS DISTINCT FROM p_manifest THEN
        RAISE EXCEPTION 'manifest moved: somebody else sealed or merged' USING ERRCODE = 'EO005';
    END IF;

    UPDATE @schema@.segments SET state = 'dead'
    WHERE id = ANY (p_dead) AND id IN (SELECT @schema@.expired_segments(p_log, p_retention, p_partitions, p_ends));
    GET DIAGNOSTICS died = ROW_COUNT;
    IF died IS DISTINCT FROM cardinality(p_dead) THEN
        RAISE EXCEPTION '% of % segments may die', died, cardinality(p_dead) USING ERRCODE = 'EO006';
    END IF;
    UPDATE @schema@.logs SET manifest = p_next WHERE id = p_log;
END $$;
-- +goose StatementEnd

-- +goose Down

SET LOCAL search_path = pg_catalog, pg_temp;
SET LOCAL lock_timeout = '5s';
SET LOCAL statement_timeout = 0;

DROP FUNCTION @schema@.expire_segments(bigint, uuid, uuid, uuid[], interval, integer[], bigint[]);
DROP FUNCTION @schema@.expired_segments(bigint, interval, integer[], bigint[]);
DROP FUNCTION @schema@.log_progress(bigint, integer[], bigint[]);
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION @schema@.swap_segments(p_log bigint, p_manifest uuid, p_next uuid, p_segment uuid, p_keys bigint,
    p_blocks bigint, p_digest bytea, p_dead uuid[], p_sealed bigint, p_head uuid, p_learned bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    there_blocks bigint;
    there_keys   bigint;
    the_log      @schema@.logs;
    the_runs     record;
    the_oldest   timestamptz;
    the_newest   timestamptz;
    died         integer;
BEGIN
    IF p_segment IS NOT NULL THEN
        PERFORM 1 FROM @schema@.segments WHERE id = p_segment AND log = p_log AND state = 'building' FOR NO KEY UPDATE;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'segment % is not there or not building', p_segment USING ERRCODE = 'EO006';
        END IF;
        SELECT count(*), coalesce(sum(octet_length(fingerprints)), 0) / 16 INTO there_blocks, there_keys
        FROM @schema@.blocks WHERE segment = p_segment;
        IF there_blocks IS DISTINCT FROM p_blocks OR there_keys IS DISTINCT FROM p_keys THEN
            RAISE EXCEPTION 'segment % has % blocks and % keys, expected % and %', p_segment, there_blocks, there_keys,
                p_blocks, p_keys USING ERRCODE = 'EO006';
        END IF;
    END IF;

    SELECT * INTO the_log FROM @schema@.logs WHERE id = p_log FOR NO KEY UPDATE;
    IF NOT FOUND OR the_log.state <> 'open' THEN
        RAISE EXCEPTION 'log is closed' USING ERRCODE = 'EO004';
    END IF;
    IF the_log.manifest IS DISTINCT FROM p_manifest THEN
        RAISE EXCEPTION 'manifest moved: somebody else sealed or merged' USING ERRCODE = 'EO005';
    END IF;

    IF p_sealed IS NOT NULL THEN
        -- p_head names the last run, and a run names all before it. The counts say
        -- that none is missing or already without its fingerprints.
        SELECT count(*) AS rows, count(fingerprints) AS whole, coalesce(sum(octet_length(fingerprints)), 0) / 16 AS keys,
               min(newest) AS oldest, max(newest) AS newest, bool_or(seq = p_sealed AND run_id = p_head) AS named
        INTO the_runs FROM @schema@.runs WHERE log = p_log AND seq > the_log.sealed AND seq <= p_sealed;
        IF the_runs.named IS NOT TRUE OR the_runs.rows <> p_sealed - the_log.sealed OR the_runs.whole <> the_runs.rows
           OR the_runs.keys IS DISTINCT FROM p_learned THEN
            RAISE EXCEPTION 'runs up to % are not the view''s', p_sealed USING ERRCODE = 'EO002';
        END IF;
        the_oldest := the_runs.oldest;
        the_newest := the_runs.newest;
    END IF;

    UPDATE @schema@.logs SET manifest = p_next, sealed = coalesce(p_sealed, sealed) WHERE id = p_log;

    IF p_dead IS NOT NULL THEN
        SELECT min(oldest), max(newest) INTO the_oldest, the_newest FROM @schema@.segments WHERE id = ANY (p_dead);
        UPDATE @schema@.segments SET state = 'dead' WHERE log = p_log AND id = ANY (p_dead) AND state = 'live';
        GET DIAGNOSTICS died = ROW_COUNT;
        IF died IS DISTINCT FROM cardinality(p_dead) THEN
            RAISE EXCEPTION '% of % segments are live', died, cardinality(p_dead) USING ERRCODE = 'EO006';
        END IF;
    END IF;

    UPDATE @schema@.segments
    SET state = 'live', keys = p_keys, blocks = p_blocks, filter_digest = p_digest, oldest = the_oldest, newest = the_newest
    WHERE id = p_segment;
END $$;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE OR REPLACE FUNCTION @schema@.fence(p_pipeline bigint, p_topics uuid[], p_partitions integer[], p_lanes text[],
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

ALTER TABLE @schema@.positions DROP COLUMN progress;
