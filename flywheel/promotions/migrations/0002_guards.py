"""What may never change, held by the database itself: immutable rows and append-only logs."""

from django.db import migrations

IMMUTABLE = [
    "agents_artifact",
    "agents_version",
    "environments_environmentversion",
    "environments_taskset",
    "environments_tasksetmember",
    "training_dataset",
    "promotions_policy",
]
APPEND_ONLY = ["accounts_auditentry", "promotions_promotion"]

FUNCTION = """
CREATE FUNCTION flywheel_refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% refuses %: its rows never change', TG_TABLE_NAME, TG_OP USING ERRCODE = 'restrict_violation';
END $$;
"""


def _trigger(table: str, events: str) -> str:
    return (
        f"CREATE TRIGGER {table}_never_changes BEFORE {events} ON {table} "
        "FOR EACH ROW EXECUTE FUNCTION flywheel_refuse_change();"
    )


def _drop(table: str) -> str:
    return f"DROP TRIGGER {table}_never_changes ON {table};"


class Migration(migrations.Migration):
    dependencies = [("promotions", "0001_initial"), ("training", "0001_initial"), ("accounts", "0001_initial")]
    operations = [
        migrations.RunSQL(FUNCTION, "DROP FUNCTION flywheel_refuse_change();"),
        *[migrations.RunSQL(_trigger(table, "UPDATE"), _drop(table)) for table in IMMUTABLE],
        *[migrations.RunSQL(_trigger(table, "UPDATE OR DELETE"), _drop(table)) for table in APPEND_ONLY],
    ]
