"""The Celery application. By default its broker is the database itself (pgmq); any other by CELERY_BROKER_URL.

Wake-ups are acknowledged early: a lost one is re-sent by the sweeper, so no broker's redelivery rules matter.
"""

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "flywheel.settings")

app = Celery("flywheel")
app.config_from_object("flywheel.broker:celery_settings")
app.autodiscover_tasks(["workers"])
