"""The WSGI application, as gunicorn serves it."""

import os

from django.core.wsgi import get_wsgi_application

from flywheel.system import env

env.prepare_home()
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "flywheel.settings")
application = get_wsgi_application()
