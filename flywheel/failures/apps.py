from django.apps import AppConfig


class FailuresConfig(AppConfig):
    name = "flywheel.failures"

    def ready(self) -> None:
        from flywheel.failures import send, similar_label  # noqa: F401  register their bulk actions
