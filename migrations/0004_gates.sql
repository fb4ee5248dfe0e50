-- +goose Up

-- Where a gate's image lies in the filter cache, and what it may be believed for.
-- A row says: the image stored under id has this digest, and holds every key of
-- these segments. Segments are immutable and their ids random, so a row stays true
-- whatever becomes of the log, and whichever member wrote it. Without a row, or
-- without its image, a gate is made from the blocks.

SET LOCAL search_path = pg_catalog, pg_temp;
SET LOCAL lock_timeout = '5s';
SET LOCAL statement_timeout = 0;

CREATE TABLE @schema@.gates (
    log        bigint PRIMARY KEY REFERENCES @schema@.logs (id),
    id         uuid NOT NULL,
    segments   uuid[] NOT NULL,
    keys       bigint NOT NULL,    -- in the gate, others than the segments' among them
    capacity   bigint NOT NULL,    -- it was made for so many
    digest     bytea NOT NULL CHECK (octet_length(digest) = 32), -- SHA-256 of the image
    created_at timestamptz NOT NULL DEFAULT now()
);

-- +goose Down

SET LOCAL search_path = pg_catalog, pg_temp;
SET LOCAL lock_timeout = '5s';
SET LOCAL statement_timeout = 0;

DROP TABLE @schema@.gates;
