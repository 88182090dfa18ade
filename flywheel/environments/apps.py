from django.apps import AppConfig


class EnvironmentsConfig(AppConfig):
    name = "flywheel.environments"

    def ready(self) -> None:
        from flywheel.environments.tasks import bulk_tasks  # noqa: F401  registers its bulk action
