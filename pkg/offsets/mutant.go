package offsets

// unguarded is Fence without its conditions, for the mutant that shows what the
// fence is for: the position moves whoever owns it and wherever it stands.
const unguarded = `WITH moved AS (
	UPDATE @schema@.positions p SET next_offset = u.to_offset, leader_epoch = u.leader_epoch
	FROM unnest($2, $3, $4, $5, $6, $7, $8, $9, $10)
	  AS u (topic_id, partition, lane, owner, generation, from_offset, to_offset, leader_epoch, record_time)
	WHERE p.pipeline = $1 AND p.topic_id = u.topic_id AND p.partition = u.partition AND p.lane = u.lane
	RETURNING 1)
	SELECT pg_current_xact_id()::text FROM (SELECT count(*) FROM moved) m`
