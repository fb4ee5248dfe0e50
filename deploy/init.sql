-- Run once by the postgres container of docker-compose.yml, before it accepts connections.

-- Owner of its own database, so that `run --migrate` can make the program's schema. Where the tables belong to
-- somebody else, migrate with that role and let the program log in with one that only has the rights it needs.
CREATE ROLE processor LOGIN;
CREATE DATABASE orders OWNER processor;

\connect orders

-- No unique constraint on purpose: that an order stands here once is the processor's doing, not the table's.
CREATE TABLE public.orders (
    order_id   text           NOT NULL,
    customer   text           NOT NULL,
    amount     numeric(12, 2) NOT NULL,
    currency   text           NOT NULL,
    status     text           NOT NULL,
    ordered_at timestamptz    NOT NULL
);

GRANT SELECT, INSERT, UPDATE ON public.orders TO processor;
