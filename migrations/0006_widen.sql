-- +goose Up

-- What a commit means can change: the scope, the key rule, the partition count that
-- keys are hashed over. Both functions belong into one transaction, in this order,
-- for all topics that change: change_generation for each by topic id, lock_logs for
-- all, then change_logs for each. Either alone leaves nothing that can commit.

SET LOCAL search_path = pg_catalog, pg_temp;
SET LOCAL lock_timeout = '5s';
SET LOCAL statement_timeout = 0;

-- Gives a topic and all of its positions, those of lanes too, another generation,
-- and takes them from their owners: a claim in flight is fenced. Waits for every
-- transaction that has one of them locked. p_starts are the first offsets of the
-- partition numbers never seen.
--
-- EO007: the topic's generation is not p_from: somebody else has changed it.
-- +goose StatementBegin
CREATE FUNCTION @schema@.change_generation(p_pipeline bigint, p_topic uuid, p_from bytea, p_to bytea, p_scope text,
    p_partitions integer, p_starts bigint[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    the_topic @schema@.topics;
BEGIN
    SELECT * INTO the_topic FROM @schema@.topics WHERE pipeline = p_pipeline AND topic_id = p_topic FOR NO KEY UPDATE;
    IF NOT FOUND OR the_topic.generation IS DISTINCT FROM p_from THEN
        RAISE EXCEPTION 'the topic''s generation is another than expected' USING ERRCODE = 'EO007';
    END IF;
    IF coalesce(p_to = p_from, true) OR coalesce(cardinality(p_starts), -1) <> p_partitions - the_topic.partitions THEN
        RAISE EXCEPTION 'no new generation, or not one start for each partition beyond %', the_topic.partitions
            USING ERRCODE = '22023';
    END IF;

    PERFORM 1 FROM @schema@.positions WHERE pipeline = p_pipeline AND topic_id = p_topic
    ORDER BY topic_id, partition, lane FOR NO KEY UPDATE;

    UPDATE @schema@.positions SET owner = NULL, holder = '', generation = p_to
    WHERE pipeline = p_pipeline AND topic_id = p_topic;

    INSERT INTO @schema@.positions (pipeline, topic_id, partition, next_offset, generation)
    SELECT p_pipeline, p_topic, the_topic.partitions + u.n - 1, u.next_offset, p_to
    FROM unnest(p_starts) WITH ORDINALITY AS u (next_offset, n);

    UPDATE @schema@.topics
    SET generation = p_to, generation_count = generation_count + 1, scope = p_scope, partitions = p_partitions
    WHERE pipeline = p_pipeline AND topic_id = p_topic;
END $$;
-- +goose StatementEnd

-- Locks all logs of these topics, in the order of every commit.
CREATE FUNCTION @schema@.lock_logs(p_pipeline bigint, p_topics uuid[]) RETURNS bigint
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
    SELECT count(*) FROM (SELECT FROM @schema@.logs WHERE pipeline = $1 AND topic_id = ANY ($2)
        ORDER BY id FOR NO KEY UPDATE) l
$$;

-- Closes the logs of a topic and opens those of its new scope: one, or one a
-- partition. With p_keep the keys are moved, to the log of the same partition or to
-- the one for all; without it they are forgotten. Returns how many keys that were.
--
-- Nothing that knew an old log is right about a new one, also where the database
-- goes back and ids are given out twice: every log and every run gets a random name.
-- A run keeps its fingerprints and gets a new number; one that is sealed stays, as an
-- audit row, with the closed log. A segment keeps its id, which is random; of the
-- runs it covers none is of the new log, so it says 0. One that is being built stays
-- too: it cannot be made live in a log that is closed, and waiting for it with the
-- log locked would be a deadlock with the swap that waits for the log.
--
-- EO008: the runs of an old log are not those its row names. Numbered anew, a gap
-- among them would be gone, and with it the only sign that keys are missing.
-- +goose StatementBegin
CREATE FUNCTION @schema@.change_logs(p_pipeline bigint, p_topic uuid, p_generation bytea, p_scope text,
    p_partitions integer, p_keep boolean) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    the_logs bigint[];
    the_keys bigint;
    damaged  bigint;
BEGIN
    PERFORM @schema@.lock_logs(p_pipeline, ARRAY[p_topic]);
    SELECT array_agg(id) INTO the_logs FROM @schema@.logs
    WHERE pipeline = p_pipeline AND topic_id = p_topic AND state = 'open';

    IF p_keep AND p_scope = 'partition' AND p_partitions IS DISTINCT FROM (
        SELECT count(partition) FROM @schema@.logs WHERE id = ANY (the_logs)) THEN
        RAISE EXCEPTION 'keys of other partitions than 0 to % cannot be kept', p_partitions - 1 USING ERRCODE = '22023';
    END IF;
    SELECT l.id INTO damaged FROM @schema@.logs l
    CROSS JOIN LATERAL (SELECT count(*) AS rows, count(r.fingerprints) AS whole, max(r.seq) AS last
        FROM @schema@.runs r WHERE r.log = l.id AND r.seq > l.sealed) r
    WHERE l.id = ANY (the_logs) AND NOT (
        r.rows = l.head - l.sealed AND r.whole = r.rows AND coalesce(r.last, l.sealed) = l.head
        AND (l.head = 0 OR EXISTS (SELECT FROM @schema@.runs WHERE log = l.id AND seq = l.head AND run_id = l.head_id)));
    IF p_keep AND damaged IS NOT NULL THEN
        RAISE EXCEPTION 'the runs of log % are not those its row names', damaged USING ERRCODE = 'EO008';
    END IF;
    SELECT coalesce(sum(octet_length(r.fingerprints)) / 16, 0) + coalesce((
        SELECT sum(keys) FROM @schema@.segments WHERE log = ANY (the_logs) AND state = 'live'), 0)
    INTO the_keys FROM @schema@.logs l JOIN @schema@.runs r ON r.log = l.id AND r.seq > l.sealed
    WHERE l.id = ANY (the_logs);

    UPDATE @schema@.logs SET state = 'closed', head_id = gen_random_uuid(), manifest = gen_random_uuid()
    WHERE id = ANY (the_logs);
    INSERT INTO @schema@.logs (pipeline, topic_id, partition, generation)
    SELECT p_pipeline, p_topic, CASE p_scope WHEN 'partition' THEN n END, p_generation
    FROM generate_series(0, CASE p_scope WHEN 'partition' THEN p_partitions ELSE 1 END - 1) AS n;

    IF NOT p_keep THEN
        UPDATE @schema@.segments SET state = 'dead' WHERE log = ANY (the_logs) AND state = 'live';
        UPDATE @schema@.logs SET sealed = head WHERE id = ANY (the_logs);
        RETURN the_keys;
    END IF;

    WITH moving AS (
        SELECT r.log, r.seq, n.id, row_number() OVER (PARTITION BY n.id ORDER BY r.log, r.seq) AS number
        FROM @schema@.logs o
        JOIN @schema@.logs n ON n.pipeline = p_pipeline AND n.topic_id = p_topic AND n.state = 'open'
         AND (n.partition IS NULL OR n.partition = o.partition)
        JOIN @schema@.runs r ON r.log = o.id AND r.seq > o.sealed
        WHERE o.id = ANY (the_logs)),
    moved AS (
        UPDATE @schema@.runs r SET log = m.id, seq = m.number, run_id = gen_random_uuid()
        FROM moving m WHERE r.log = m.log AND r.seq = m.seq RETURNING r.log, r.seq, r.run_id)
    UPDATE @schema@.logs l SET head = m.seq, head_id = m.run_id
    FROM (SELECT DISTINCT ON (log) * FROM moved ORDER BY log, seq DESC) m WHERE l.id = m.log;

    UPDATE @schema@.segments s SET log = n.id, first_run = 0, last_run = 0
    FROM @schema@.logs o
    JOIN @schema@.logs n ON n.pipeline = p_pipeline AND n.topic_id = p_topic AND n.state = 'open'
     AND (n.partition IS NULL OR n.partition = o.partition)
    WHERE o.id = ANY (the_logs) AND s.log = o.id AND s.state = 'live';

    WITH held AS (DELETE FROM @schema@.holds WHERE log = ANY (the_logs) RETURNING *)
    INSERT INTO @schema@.holds (id, log, oldest, reason, expires_at)
    SELECT h.id, n.id, h.oldest, h.reason, h.expires_at
    FROM held h
    JOIN @schema@.logs o ON o.id = h.log
    JOIN @schema@.logs n ON n.pipeline = p_pipeline AND n.topic_id = p_topic AND n.state = 'open'
     AND (n.partition IS NULL OR n.partition = o.partition);

    UPDATE @schema@.logs SET head = sealed WHERE id = ANY (the_logs);
    RETURN the_keys;
END $$;
-- +goose StatementEnd

-- +goose Down

SET LOCAL search_path = pg_catalog, pg_temp;
SET LOCAL lock_timeout = '5s';
SET LOCAL statement_timeout = 0;

DROP FUNCTION @schema@.change_logs(bigint, uuid, bytea, text, integer, boolean);
DROP FUNCTION @schema@.lock_logs(bigint, uuid[]);
DROP FUNCTION @schema@.change_generation(bigint, uuid, bytea, bytea, text, integer, bigint[]);
