from django.apps import AppConfig


class FailuresConfig(AppConfig):
    name = "flywheel.failures"

    def ready(self) -> None:
        from flywheel.failures.queues import bulk_intake  # noqa: F401  registers its bulk action
        from flywheel.failures.similar_failures import cluster_labels  # noqa: F401  registers its bulk action
