from typing import Any

import pytest
from django.db import connection, models
from django.db.migrations import AddField, CreateModel, Migration
from django.db.migrations.state import ProjectState

from flywheel.system.migration_operations import CreateModels, in_groups


def table(name: str, *, of: str = "") -> CreateModel:
    fields: list[tuple[str, models.Field[Any, Any]]] = [("id", models.BigAutoField(primary_key=True))]
    if of:
        fields.append(("owner", models.ForeignKey(f"shop.{of}", models.CASCADE)))
    return CreateModel(name, fields)


def test_neighbouring_tables_are_one_operation_and_the_order_stays() -> None:
    first, second, third = table("Lamp"), table("Shade", of="Lamp"), table("Bulb")
    field = AddField("lamp", "watts", models.IntegerField(null=True))
    grouped = in_groups([first, second, field, third])
    assert [type(each) for each in grouped] == [CreateModels, AddField, CreateModels]
    assert [each.creations for each in grouped if isinstance(each, CreateModels)] == [[first, second], [third]]
    assert grouped[0].describe() == "Create model Lamp; Create model Shade"


@pytest.mark.django_db(transaction=True)
def test_tables_that_refer_to_each_other_are_made_together_and_taken_back_again() -> None:
    migration = Migration("0001", "shop")
    migration.operations = in_groups([table("Lamp"), table("Shade", of="Lamp")])  # type: ignore[misc]
    before = connection.introspection.table_names()
    with connection.schema_editor(atomic=True) as editor:
        after = migration.apply(ProjectState(), editor)
    assert {"shop_lamp", "shop_shade"} == set(connection.introspection.table_names()) - set(before)
    with connection.cursor() as cursor:
        relations = connection.introspection.get_relations(cursor, "shop_shade")
    assert relations == {"owner_id": ("id", "shop_lamp")}
    assert after.apps.get_model("shop.Shade")._meta.get_field("owner").related_model is after.apps.get_model(
        "shop.Lamp"
    )
    with connection.schema_editor(atomic=True) as editor:
        migration.unapply(ProjectState(), editor)
    assert connection.introspection.table_names() == before
