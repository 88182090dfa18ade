from django.apps import AppConfig


class FailuresConfig(AppConfig):
    name = "flywheel.failures"

    def ready(self) -> None:
        # These register their bulk actions.
        from flywheel.failures.queues import bulk_intake  # noqa: F401
        from flywheel.failures.similar_failures import cluster_labels  # noqa: F401
