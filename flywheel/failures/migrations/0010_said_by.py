from django.contrib.postgres.fields import ArrayField
from django.db import migrations, models

SAID = """
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
UPDATE failures_queueitem AS item SET said_by = said.keys
FROM (
    SELECT item_id, array_agg(reviewer_id ORDER BY reviewer_id) AS keys
    FROM failures_review WHERE current GROUP BY item_id
) AS said
WHERE item.id = said.item_id;
"""
UNSAID = """
DROP TRIGGER failures_said_by_new ON failures_review;
DROP TRIGGER failures_said_by_moved ON failures_review;
DROP TRIGGER failures_said_by_gone ON failures_review;
DROP FUNCTION failures_said_by();
"""


class Migration(migrations.Migration):
    dependencies = [("failures", "0009_detector_setting")]

    operations = [
        migrations.AddField(
            model_name="queueitem",
            name="said_by",
            field=ArrayField(base_field=models.BigIntegerField(), default=list, editable=False, size=None),
        ),
        migrations.RunSQL(
            "ALTER TABLE failures_queueitem ALTER COLUMN said_by SET DEFAULT '{}'", migrations.RunSQL.noop
        ),
        migrations.RunSQL(SAID, UNSAID),
        migrations.RemoveIndex(model_name="queueitem", name="queue_item_open"),
        migrations.AddIndex(
            model_name="queueitem",
            index=models.Index(
                condition=models.Q(("state__in", ["to_review", "needs_another"])),
                fields=["queue", "said_by", "queued_at", "id"],
                name="queue_item_free",
            ),
        ),
    ]
