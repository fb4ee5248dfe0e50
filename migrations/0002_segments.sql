-- +goose Up

-- Sealing: runs become segments of sorted blocks, segments are merged, dead ones
-- are cleaned up. What every such change makes of a log is decided in one place,
-- swap_segments.

SET LOCAL search_path = pg_catalog, pg_temp;
SET LOCAL lock_timeout = '5s';
SET LOCAL statement_timeout = 0;

-- Clean-up finds what it has to do without walking the audit rows of a week.
CREATE INDEX runs_fingerprints ON @schema@.runs (log, seq) WHERE fingerprints IS NOT NULL;
CREATE INDEX segments_dead ON @schema@.segments (log) WHERE state <> 'live';

-- Thresholds are rows, not shares: a seal frees the fingerprints of some hundred
-- runs (about 80 pieces of TOAST each) and a compaction tens of thousands of
-- blocks, however large the tables are. Vacuum must give the space back before the
-- next one, and without pauses: it is what keeps the tables at 17 bytes a key.
ALTER TABLE @schema@.runs SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500,
    autovacuum_vacuum_cost_delay = 0, toast.autovacuum_vacuum_scale_factor = 0, toast.autovacuum_vacuum_threshold = 10000,
    toast.autovacuum_vacuum_cost_delay = 0);
ALTER TABLE @schema@.blocks SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 4000,
    autovacuum_vacuum_cost_delay = 0, autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 100000);
ALTER TABLE @schema@.segments SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 100);

-- The one transaction that makes a segment live (p_segment), moves sealed up to a
-- run (p_sealed with p_head, its run_id, and p_learned, the keys of the runs in
-- between) and makes its inputs dead (p_dead). Each part may be null. Everything
-- else about a segment happens before, in transactions of their own, and may have
-- been lost by a database that went back: so everything is compared here.
--
-- EO005: the manifest is not the one that was read at the start. EO006: the segment
-- is not there, not building, or without all of its blocks and keys; or an input
-- is not live. EO002: the runs are not those of the view. EO004: the log is closed.
--
-- The segment is locked and counted before the log is locked: that takes a while,
-- and commits wait for the log. Nobody locks a log and then a building segment.
-- +goose StatementBegin
CREATE FUNCTION @schema@.swap_segments(p_log bigint, p_manifest uuid, p_next uuid, p_segment uuid, p_keys bigint,
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

-- +goose Down

SET LOCAL search_path = pg_catalog, pg_temp;
SET LOCAL lock_timeout = '5s';
SET LOCAL statement_timeout = 0;

DROP FUNCTION @schema@.swap_segments(bigint, uuid, uuid, uuid, bigint, bigint, bytea, uuid[], bigint, uuid, bigint);
ALTER TABLE @schema@.segments RESET (autovacuum_vacuum_scale_factor, autovacuum_vacuum_threshold);
ALTER TABLE @schema@.blocks RESET (autovacuum_vacuum_scale_factor, autovacuum_vacuum_threshold,
    autovacuum_vacuum_cost_delay, autovacuum_vacuum_insert_scale_factor, autovacuum_vacuum_insert_threshold);
ALTER TABLE @schema@.runs RESET (autovacuum_vacuum_scale_factor, autovacuum_vacuum_threshold,
    autovacuum_vacuum_cost_delay, toast.autovacuum_vacuum_scale_factor, toast.autovacuum_vacuum_threshold,
    toast.autovacuum_vacuum_cost_delay);
DROP INDEX @schema@.segments_dead, @schema@.runs_fingerprints;
