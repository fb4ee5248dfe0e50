-- +goose Up

-- What stands still, and what was decided about it.

SET LOCAL search_path = pg_catalog, pg_temp;
SET LOCAL lock_timeout = '5s';
SET LOCAL statement_timeout = 0;

-- One row a partition that a member has stopped, until it runs again or somebody
-- decides about it. A table of its own: the position row may be missing, or locked by
-- the very transaction that the partition waits for. It says what a member last saw;
-- while owner is not the position's, it is about a claim that is over.
CREATE TABLE @schema@.stops (
    pipeline    bigint NOT NULL,
    topic_id    uuid NOT NULL,
    partition   integer NOT NULL,
    owner       uuid NOT NULL, -- of the claim that stopped
    code        text NOT NULL,
    what        text NOT NULL,
    fix         text NOT NULL,
    next_offset bigint, -- null: it has no position
    holder      text NOT NULL,
    since       timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (pipeline, topic_id, partition)
);

-- The furthest that a decision took the position back from. Up to there the group's
-- own commit may be ahead of the position, and does not mean that the database went
-- back.
ALTER TABLE @schema@.positions ADD COLUMN rewound_from bigint;

-- +goose Down

SET LOCAL search_path = pg_catalog, pg_temp;
SET LOCAL lock_timeout = '5s';
SET LOCAL statement_timeout = 0;

ALTER TABLE @schema@.positions DROP COLUMN rewound_from;
DROP TABLE @schema@.stops;
