-- +goose Up

-- Blocks by how long they live. A merge leaves the blocks of its inputs behind, as
-- many bytes as it wrote. In one table they are holes that only later blocks can
-- fill; in a table where nothing else lives, vacuum gives them back to the disk.
--
-- So the segments that are going to be merged with each other share a shelf, one of
-- eight small tables, until all of them are dead. A segment's id says where its
-- blocks lie: ids that begin with 'blo' and the shelf's number lie there, all
-- others, as they were so far, in blocks_kept. No row moves here.

SET LOCAL search_path = pg_catalog, pg_temp;
SET LOCAL lock_timeout = '5s';
SET LOCAL statement_timeout = 0;

ALTER TABLE @schema@.blocks RENAME TO blocks_kept;
ALTER INDEX @schema@.blocks_pkey RENAME TO blocks_kept_pkey;

CREATE TABLE @schema@.blocks (
    segment      uuid NOT NULL,
    first        bytea NOT NULL CONSTRAINT blocks_first_check CHECK (octet_length(first) = 16),
    fingerprints bytea NOT NULL CONSTRAINT blocks_fingerprints_check CHECK (octet_length(fingerprints) % 16 = 0),
    PRIMARY KEY (segment, first)
) PARTITION BY RANGE (segment);
ALTER TABLE @schema@.blocks ALTER COLUMN fingerprints SET STORAGE PLAIN;
ALTER TABLE @schema@.blocks ALTER COLUMN first SET STORAGE PLAIN;

CREATE TABLE @schema@.blocks_shelf_0 PARTITION OF @schema@.blocks
    FOR VALUES FROM ('626c6f00-0000-0000-0000-000000000000') TO ('626c6f01-0000-0000-0000-000000000000');
CREATE TABLE @schema@.blocks_shelf_1 PARTITION OF @schema@.blocks
    FOR VALUES FROM ('626c6f01-0000-0000-0000-000000000000') TO ('626c6f02-0000-0000-0000-000000000000');
CREATE TABLE @schema@.blocks_shelf_2 PARTITION OF @schema@.blocks
    FOR VALUES FROM ('626c6f02-0000-0000-0000-000000000000') TO ('626c6f03-0000-0000-0000-000000000000');
CREATE TABLE @schema@.blocks_shelf_3 PARTITION OF @schema@.blocks
    FOR VALUES FROM ('626c6f03-0000-0000-0000-000000000000') TO ('626c6f04-0000-0000-0000-000000000000');
CREATE TABLE @schema@.blocks_shelf_4 PARTITION OF @schema@.blocks
    FOR VALUES FROM ('626c6f04-0000-0000-0000-000000000000') TO ('626c6f05-0000-0000-0000-000000000000');
CREATE TABLE @schema@.blocks_shelf_5 PARTITION OF @schema@.blocks
    FOR VALUES FROM ('626c6f05-0000-0000-0000-000000000000') TO ('626c6f06-0000-0000-0000-000000000000');
CREATE TABLE @schema@.blocks_shelf_6 PARTITION OF @schema@.blocks
    FOR VALUES FROM ('626c6f06-0000-0000-0000-000000000000') TO ('626c6f07-0000-0000-0000-000000000000');
CREATE TABLE @schema@.blocks_shelf_7 PARTITION OF @schema@.blocks
    FOR VALUES FROM ('626c6f07-0000-0000-0000-000000000000') TO ('626c6f08-0000-0000-0000-000000000000');

-- Reads the table once, to see that no id of the past begins like a shelf's.
ALTER TABLE @schema@.blocks ATTACH PARTITION @schema@.blocks_kept DEFAULT;

-- The settings of 0002, and who has which right on the blocks: a table of this name
-- is a new one to the server.
-- +goose StatementBegin
DO $$
DECLARE
    the_blocks oid := (SELECT oid FROM pg_class WHERE reltype = pg_typeof(NULL::@schema@.blocks)::oid);
    the_kept   oid := (SELECT oid FROM pg_class WHERE reltype = pg_typeof(NULL::@schema@.blocks_kept)::oid);
    sentence   text;
BEGIN
    FOR sentence IN
        SELECT format('ALTER TABLE %s SET (%s)', i.inhrelid::regclass, array_to_string(k.reloptions, ', '))
        FROM pg_inherits i JOIN pg_class k ON k.oid = the_kept
        WHERE i.inhparent = the_blocks AND i.inhrelid <> the_kept AND k.reloptions IS NOT NULL
        UNION ALL
        SELECT format('GRANT %s ON %s TO %s', a.privilege_type, the_blocks::regclass,
            CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END)
        FROM pg_class k CROSS JOIN aclexplode(k.relacl) a WHERE k.oid = the_kept AND a.grantee <> k.relowner
    LOOP
        EXECUTE sentence;
    END LOOP;
END $$;
-- +goose StatementEnd

-- +goose Down

SET LOCAL search_path = pg_catalog, pg_temp;
SET LOCAL lock_timeout = '5s';
SET LOCAL statement_timeout = 0;

ALTER TABLE @schema@.blocks DETACH PARTITION @schema@.blocks_kept;
INSERT INTO @schema@.blocks_kept (segment, first, fingerprints) SELECT segment, first, fingerprints FROM @schema@.blocks;
DROP TABLE @schema@.blocks;
ALTER TABLE @schema@.blocks_kept RENAME TO blocks;
ALTER INDEX @schema@.blocks_kept_pkey RENAME TO blocks_pkey;
