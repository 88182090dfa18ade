"""What may never change, held by the database itself: immutable rows and append-only logs, of all rooms."""

from django.db import migrations

FUNCTION = """
CREATE FUNCTION flywheel_refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% refuses %: its rows never change', TG_TABLE_NAME, TG_OP USING ERRCODE = 'restrict_violation';
END $$;
"""
IMMUTABLE = [
    "agents_artifact",
    "agents_version",
    "environments_environmentversion",
    "environments_rewardrecipe",
    "environments_taskset",
    "environments_tasksetmember",
    "evals_auditoverride",
    "promotions_policy",
    "training_contaminationcheck",
    "training_dataset",
]
APPEND_ONLY = ["accounts_auditentry", "promotions_latereason", "promotions_promotion", "promotions_rampchange"]
SUITE_CHANGES = (
    "OLD.retired_at IS NOT NULL OR "
    "(OLD.agent_id, OLD.name, OLD.version, OLD.kind, OLD.task_set_id, OLD.samples, OLD.rule, OLD.measure, "
    "OLD.margin, OLD.created_by_id, OLD.created_at) IS DISTINCT FROM "
    "(NEW.agent_id, NEW.name, NEW.version, NEW.kind, NEW.task_set_id, NEW.samples, NEW.rule, NEW.measure, "
    "NEW.margin, NEW.created_by_id, NEW.created_at)"
)
TRIGGERS = [
    *[f"{table}_never_changes BEFORE UPDATE ON {table} FOR EACH ROW" for table in IMMUTABLE],
    *[f"{table}_never_changes BEFORE UPDATE OR DELETE ON {table} FOR EACH ROW" for table in APPEND_ONLY],
    "evals_rewardaudit_never_changes BEFORE UPDATE ON evals_rewardaudit "
    "FOR EACH ROW WHEN (OLD.finished_at IS NOT NULL)",
    f"environments_suite_never_changes BEFORE UPDATE ON environments_suite FOR EACH ROW WHEN ({SUITE_CHANGES})",
    "environments_task_stays_synthetic BEFORE UPDATE OF generation_id ON environments_task "
    "FOR EACH ROW WHEN (OLD.generation_id IS DISTINCT FROM NEW.generation_id)",
    "environments_task_keeps_synthetic BEFORE UPDATE OF is_synthetic ON environments_task "
    "FOR EACH ROW WHEN (OLD.is_synthetic IS DISTINCT FROM NEW.is_synthetic)",
    "environments_generation_keeps_origin BEFORE UPDATE OF origin_id ON environments_generation "
    "FOR EACH ROW WHEN (OLD.origin_id IS DISTINCT FROM NEW.origin_id)",
]


class Migration(migrations.Migration):
    dependencies = [
        (room, "0100_tables")
        for room in ("accounts", "agents", "environments", "evals", "promotions", "training")
    ]

    operations = [
        migrations.RunSQL(
            [FUNCTION, *[f"CREATE TRIGGER {trigger} EXECUTE FUNCTION flywheel_refuse_change()" for trigger in TRIGGERS]],
            "DROP FUNCTION flywheel_refuse_change CASCADE",
        )
    ]
