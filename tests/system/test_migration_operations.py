from typing import Any

import pytest
from django.db import connection, models
from django.db.migrations import CreateModel, Migration
from django.db.migrations.state import ProjectState

from flywheel.system.migration_operations import CreateModels


def table(name: str, **to: str) -> CreateModel:
    fields: list[tuple[str, models.Field[Any, Any]]] = [("id", models.BigAutoField(primary_key=True))]
    fields += [(field, models.ForeignKey(f"shop.{other}", models.CASCADE)) for field, other in to.items()]
    return CreateModel(name, fields)


def test_several_tables_are_told_as_one_operation() -> None:
    assert CreateModels([table("Lamp"), table("Shade")]).describe() == "Create model Lamp; Create model Shade"


@pytest.mark.django_db(transaction=True)
def test_tables_that_refer_to_each_other_in_a_circle_are_made_together_and_taken_back_again() -> None:
    migration = Migration("0001", "shop")
    migration.operations = [CreateModels([table("Lamp", newest="Shade"), table("Shade", owner="Lamp")])]  # type: ignore[misc]
    before = connection.introspection.table_names()
    with connection.schema_editor(atomic=True) as editor:
        after = migration.apply(ProjectState(), editor)
    assert {"shop_lamp", "shop_shade"} == set(connection.introspection.table_names()) - set(before)
    with connection.cursor() as cursor:
        assert connection.introspection.get_relations(cursor, "shop_shade") == {"owner_id": ("id", "shop_lamp")}
        assert connection.introspection.get_relations(cursor, "shop_lamp") == {"newest_id": ("id", "shop_shade")}
    assert after.apps.get_model("shop.Shade")._meta.get_field("owner").related_model is after.apps.get_model(
        "shop.Lamp"
    )
    with connection.schema_editor(atomic=True) as editor:
        migration.unapply(ProjectState(), editor)
    assert connection.introspection.table_names() == before
