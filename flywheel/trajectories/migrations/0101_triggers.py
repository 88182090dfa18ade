"""What Django does not write: what the database does by itself when trajectories change, and how it stores them."""

from django.db import migrations, models

TAKE_STEPS = """
CREATE FUNCTION trajectories_take_steps() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM trajectories_step WHERE trajectory_id IN (SELECT id FROM gone);
    RETURN NULL;
END $$;
CREATE TRIGGER trajectories_take_steps AFTER DELETE ON trajectories_trajectory
REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION trajectories_take_steps();
"""
"""In place of the foreign key. Who writes steps holds the trajectory's row, so a deletion waits, and then sees them."""

NOTE_DAYS = """
CREATE FUNCTION trajectories_note_days() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    today timestamptz := date_trunc('day', clock_timestamp() AT TIME ZONE 'UTC') AT TIME ZONE 'UTC';
BEGIN
    IF TG_OP = 'INSERT' THEN
        INSERT INTO trajectories_metricsstale (project_id, day)
        SELECT DISTINCT project_id, (started_at AT TIME ZONE 'UTC')::date FROM now_there
        WHERE started_at < today AND source <> 'rollout';
    ELSIF TG_OP = 'DELETE' THEN
        INSERT INTO trajectories_metricsstale (project_id, day)
        SELECT DISTINCT project_id, (started_at AT TIME ZONE 'UTC')::date FROM were_there
        WHERE started_at < today AND source <> 'rollout';
        DELETE FROM trajectories_metricsday AS kept USING (
            SELECT DISTINCT project_id, (started_at AT TIME ZONE 'UTC')::date AS day FROM were_there
        ) AS gone WHERE kept.project_id = gone.project_id AND kept.day = gone.day;
    ELSE
        INSERT INTO trajectories_metricsstale (project_id, day)
        SELECT DISTINCT project_id, (started_at AT TIME ZONE 'UTC')::date FROM (
            SELECT pair.* FROM now_there AS later JOIN were_there AS former USING (id)
            CROSS JOIN LATERAL (VALUES (later.project_id, later.started_at), (former.project_id, former.started_at))
                AS pair (project_id, started_at)
            WHERE (later.started_at < today OR former.started_at < today) AND (
                later.project_id, later.started_at, later.source, later.outcome, later.label, later.label_bucket,
                later.proposed_bucket, later.cost_usd, later.tokens_in, later.tokens_out, later.latency_ms,
                later.version_id, later.environment, later.tool_names, later.interventions = '[]'
            ) IS DISTINCT FROM (
                former.project_id, former.started_at, former.source, former.outcome, former.label, former.label_bucket,
                former.proposed_bucket, former.cost_usd, former.tokens_in, former.tokens_out,
                former.latency_ms, former.version_id, former.environment, former.tool_names, former.interventions = '[]'
            )
        ) AS changed WHERE started_at < today;
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER trajectories_note_days_new AFTER INSERT ON trajectories_trajectory
REFERENCING NEW TABLE AS now_there FOR EACH STATEMENT EXECUTE FUNCTION trajectories_note_days();
CREATE TRIGGER trajectories_note_days_changed AFTER UPDATE ON trajectories_trajectory
REFERENCING OLD TABLE AS were_there NEW TABLE AS now_there FOR EACH STATEMENT EXECUTE FUNCTION trajectories_note_days();
CREATE TRIGGER trajectories_note_days_gone AFTER DELETE ON trajectories_trajectory
REFERENCING OLD TABLE AS were_there FOR EACH STATEMENT EXECUTE FUNCTION trajectories_note_days();
"""
"""What is deleted takes the sums of its day along: a tool's name may be known from nowhere else."""

NOTE_ITEMS = """
CREATE FUNCTION trajectories_note_items() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' THEN
        INSERT INTO trajectories_item (project_id, field, name, is_doubted)
        SELECT DISTINCT project_id, field, name, true FROM (
            SELECT project_id, 'tool_names' AS field, unnest(tool_names) AS name FROM were_there
            UNION ALL SELECT project_id, 'tags', unnest(tags) FROM were_there
        ) AS gone;
    ELSE
        INSERT INTO trajectories_item (project_id, field, name, is_doubted)
        SELECT project_id, field, name, false FROM (
            SELECT DISTINCT * FROM (
                SELECT project_id, 'tool_names' AS field, unnest(tool_names) AS name FROM now_there
                UNION ALL SELECT project_id, 'tags', unnest(tags) FROM now_there
            ) AS each
        ) AS came
        WHERE NOT EXISTS (
            SELECT FROM trajectories_item AS known WHERE known.project_id = came.project_id
            AND known.field = came.field AND known.name = came.name AND NOT known.is_doubted
        );
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER trajectories_note_items_new AFTER INSERT ON trajectories_trajectory
REFERENCING NEW TABLE AS now_there FOR EACH STATEMENT EXECUTE FUNCTION trajectories_note_items();
CREATE TRIGGER trajectories_note_items_changed AFTER UPDATE ON trajectories_trajectory
REFERENCING NEW TABLE AS now_there FOR EACH STATEMENT EXECUTE FUNCTION trajectories_note_items();
CREATE TRIGGER trajectories_note_items_gone AFTER DELETE ON trajectories_trajectory
REFERENCING OLD TABLE AS were_there FOR EACH STATEMENT EXECUTE FUNCTION trajectories_note_items();
"""

STORE = """
ALTER TABLE trajectories_step SET (toast_tuple_target = 4080);
ALTER TABLE trajectories_body ALTER COLUMN content SET STORAGE EXTERNAL;
"""
"""Two steps to a page at the least before bodies are compressed and moved out; a raw request is compressed already."""

SWEEP = """
ALTER TABLE trajectories_trajectory
SET (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_insert_scale_factor = 0.05);
"""
"""An index answers alone only for pages of the table that were swept since they changed."""


class Migration(migrations.Migration):
    dependencies = [("trajectories", "0100_tables")]

    operations = [
        migrations.RunSQL(TAKE_STEPS, "DROP FUNCTION trajectories_take_steps CASCADE"),
        migrations.RunSQL(NOTE_DAYS, "DROP FUNCTION trajectories_note_days CASCADE"),
        migrations.RunSQL(NOTE_ITEMS, "DROP FUNCTION trajectories_note_items CASCADE"),
        migrations.RunSQL([STORE, SWEEP], migrations.RunSQL.noop),
        # Of indexes that cost the same, as all do while the table is empty, PostgreSQL takes the newest; and ingest keeps
        # the plan that it made then. So this one has to be newer than those that only begin with the project.
        migrations.AddConstraint(
            model_name="trajectory",
            constraint=models.UniqueConstraint(fields=("project", "trace_id"), name="trajectory_once"),
        ),
    ]
