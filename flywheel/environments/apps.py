from django.apps import AppConfig


class EnvironmentsConfig(AppConfig):
    name = "flywheel.environments"

    def ready(self) -> None:
        from flywheel.environments import bulk  # noqa: F401  registers its bulk action
