"""What Django does not write: what the database keeps in step by itself."""

from django.db import migrations

FORGET = """
CREATE FUNCTION failures_forget_member() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE failures_cluster AS cluster
    SET size = greatest(cluster.size - lost.count, 0), words = '{}', calls = '{}', is_stale = true
    FROM (SELECT cluster_id, count(*) AS count FROM gone GROUP BY cluster_id) AS lost
    WHERE cluster.id = lost.cluster_id;
    RETURN NULL;
END $$;
CREATE TRIGGER failures_forget_member AFTER DELETE ON failures_member
REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION failures_forget_member();
"""
"""A trajectory that is deleted is told of nowhere any more: the words of its clusters may be its own."""

TALLY = """
CREATE FUNCTION failures_tally() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        INSERT INTO failures_queuetally (queue_id, state, n)
        SELECT queue_id, state, count(*) FROM now_there GROUP BY queue_id, state;
    ELSIF TG_OP = 'DELETE' THEN
        INSERT INTO failures_queuetally (queue_id, state, n)
        SELECT queue_id, state, -count(*) FROM were_there GROUP BY queue_id, state;
    ELSE
        INSERT INTO failures_queuetally (queue_id, state, n)
        SELECT queue_id, state, sum(n) FROM (
            SELECT queue_id, state, 1 AS n FROM now_there UNION ALL SELECT queue_id, state, -1 FROM were_there
        ) AS moved GROUP BY queue_id, state HAVING sum(n) <> 0;
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER failures_tally_new AFTER INSERT ON failures_queueitem
REFERENCING NEW TABLE AS now_there FOR EACH STATEMENT EXECUTE FUNCTION failures_tally();
CREATE TRIGGER failures_tally_moved AFTER UPDATE ON failures_queueitem
REFERENCING OLD TABLE AS were_there NEW TABLE AS now_there FOR EACH STATEMENT EXECUTE FUNCTION failures_tally();
CREATE TRIGGER failures_tally_gone AFTER DELETE ON failures_queueitem
REFERENCING OLD TABLE AS were_there FOR EACH STATEMENT EXECUTE FUNCTION failures_tally();
"""

SAID = """
ALTER TABLE failures_queueitem ALTER COLUMN said_by SET DEFAULT '{}';
CREATE FUNCTION failures_said_by() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE failures_queueitem AS item SET said_by = ARRAY(
        SELECT reviewer_id FROM failures_review WHERE item_id = item.id AND current ORDER BY reviewer_id
    ) WHERE item.id IN (SELECT item_id FROM touched);
    RETURN NULL;
END $$;
CREATE TRIGGER failures_said_by_new AFTER INSERT ON failures_review
REFERENCING NEW TABLE AS touched FOR EACH STATEMENT EXECUTE FUNCTION failures_said_by();
CREATE TRIGGER failures_said_by_moved AFTER UPDATE ON failures_review
REFERENCING NEW TABLE AS touched FOR EACH STATEMENT EXECUTE FUNCTION failures_said_by();
CREATE TRIGGER failures_said_by_gone AFTER DELETE ON failures_review
REFERENCING OLD TABLE AS touched FOR EACH STATEMENT EXECUTE FUNCTION failures_said_by();
"""


class Migration(migrations.Migration):
    dependencies = [("failures", "0100_tables")]

    operations = [
        migrations.RunSQL(FORGET, "DROP FUNCTION failures_forget_member CASCADE"),
        migrations.RunSQL(TALLY, "DROP FUNCTION failures_tally CASCADE"),
        migrations.RunSQL(SAID, "DROP FUNCTION failures_said_by CASCADE"),
    ]
