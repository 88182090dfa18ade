"""Operations of migrations that take less time than those which `makemigrations` writes."""

from collections.abc import Sequence

from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations import CreateModel
from django.db.migrations.operations.base import Operation
from django.db.migrations.state import ProjectState


class CreateModels(Operation):
    """Makes several tables, which may refer to each other in a circle. After each table Django would build every model
    anew that is related to it, which here is nearly every one. This builds them once.
    """

    def __init__(self, creations: Sequence[CreateModel]) -> None:
        self.creations = creations

    def state_forwards(self, app_label: str, state: ProjectState) -> None:
        state.__dict__.pop("apps", None)  # a cached property: built when somebody looks
        for creation in self.creations:
            creation.state_forwards(app_label, state)

    def database_forwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        for creation in self.creations:
            creation.database_forwards(app_label, schema_editor, from_state, to_state)

    def database_backwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        for creation in reversed(self.creations):
            creation.database_backwards(app_label, schema_editor, from_state, to_state)

    def describe(self) -> str:
        return "; ".join(creation.describe() for creation in self.creations)
