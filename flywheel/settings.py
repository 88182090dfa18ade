"""Django's settings. What a deployment may choose is read in `flywheel.system.env`; the rest is decided here."""

import logging
import secrets
from pathlib import Path

from flywheel.system import env

BASE_DIR = Path(__file__).resolve().parent.parent
HOME = env.home()
DEBUG = env.debug()


def _secret_key() -> str:
    """Made at first start and kept in a file that only its owner reads. There is no default key."""
    path = HOME / "secret_key"
    if not path.exists():
        HOME.mkdir(parents=True, exist_ok=True, mode=0o711)
        aside = HOME / f".secret_key.{secrets.token_hex(4)}"
        aside.touch(mode=0o600)
        aside.write_text(secrets.token_urlsafe(64))
        try:
            path.hardlink_to(aside)
        except FileExistsError:
            pass  # another process was first; its key is the key
        finally:
            aside.unlink()
    return path.read_text()


SECRET_KEY = _secret_key()
ALLOWED_HOSTS = env.hosts()
ROOT_URLCONF = "flywheel.urls"
WSGI_APPLICATION = "flywheel.wsgi.application"

ROOMS = ["accounts", "agents", "trajectories", "failures", "environments", "evals", "training", "promotions"]
INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "whitenoise.runserver_nostatic",
    "django.contrib.staticfiles",
    "django_htmx",
    *[f"flywheel.{room}" for room in ROOMS],
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "flywheel.server.static_files.StaticFiles",
    "flywheel.server.middleware.security_headers",
    "flywheel.trajectories.ingest.misdirected_requests.misdirected",
    "flywheel.server.middleware.programs",
    "flywheel.server.compression.Compression",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
    "flywheel.edge.refusals.Refusals",
]

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": False,
        "OPTIONS": {
            "builtins": ["flywheel.templatetags.flywheel", "django.templatetags.static"],
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "flywheel.server.shell.context",
            ],
        },
    },
    {
        "BACKEND": "django.template.backends.jinja2.Jinja2",
        "DIRS": [BASE_DIR / "templates/jinja"],
        "APP_DIRS": False,
        "OPTIONS": {"environment": "flywheel.templatetags.jinja.environment"},
    },
]

# With no DATABASE_URL the embedded server is used; `manage.py` and the supervisor start it and set the variable.
# Commands
# that need no database (check, makemigrations) run without one.
DATABASE_URL = env.database_url() or "postgresql:///flywheel"
_database = env.parse_database(DATABASE_URL)
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": _database.name,
        "USER": _database.user,
        "PASSWORD": _database.password,
        "HOST": _database.host,
        "PORT": _database.port,
        "CONN_MAX_AGE": 60,
        "CONN_HEALTH_CHECKS": True,
        "OPTIONS": _database.options,
    }
}

AUTH_USER_MODEL = "accounts.User"
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 10}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]
AUTHENTICATION_BACKENDS = ["flywheel.accounts.sessions.Accounts"]
LOGIN_URL = "accounts:login"
LOGIN_REDIRECT_URL = "home"
LOGOUT_REDIRECT_URL = "accounts:login"

USE_TZ = True
TIME_ZONE = "UTC"
LANGUAGE_CODE = "en-gb"
USE_I18N = False
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DEFAULT_CHARSET = "utf-8"

STATIC_URL = "/static/"
STATICFILES_DIRS = [BASE_DIR / "static"]
# Static files are served from where they lie, so that there is no collect step to forget.
WHITENOISE_USE_FINDERS = True
WHITENOISE_AUTOREFRESH = DEBUG
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage", "OPTIONS": {"location": HOME / "artifacts"}},
    "staticfiles": {"BACKEND": "flywheel.server.static_files.NamedByContent"},
}
RUNS_DIR = HOME / "runs"
GATEWAY_DIR = HOME / "gateway"
REFERENCE_POLICY = BASE_DIR / "workers" / "reference" / "policy"

# Ingest reads its own stream with its own limits; this one is for forms.
DATA_UPLOAD_MAX_MEMORY_SIZE = 64 * 1024 * 1024
# The largest form tries 8 drafts, each with a name, a prompt and the descriptions of up to 256 tools.
DATA_UPLOAD_MAX_NUMBER_FIELDS = 2_200
INGEST_MAX_BYTES = 20 * 1024 * 1024

_https = env.https()
SESSION_ENGINE = "flywheel.accounts.sessions"
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
SESSION_COOKIE_SECURE = _https
CSRF_COOKIE_SECURE = _https
CSRF_COOKIE_SAMESITE = "Lax"
CSRF_FAILURE_VIEW = "flywheel.accounts.pages.refusals.csrf_failure"
SECURE_SSL_REDIRECT = _https
SECURE_REDIRECT_EXEMPT = [r"^healthz$", r"^readyz$"]
SECURE_HSTS_SECONDS = 31_536_000 if _https else 0
SECURE_HSTS_INCLUDE_SUBDOMAINS = _https
SECURE_HSTS_PRELOAD = _https
SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_REFERRER_POLICY = "same-origin"
SECURE_CROSS_ORIGIN_OPENER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"
if _https:
    SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
    CSRF_TRUSTED_ORIGINS = [f"https://{host}" for host in ALLOWED_HOSTS if host != "*"]

_mail = env.mail_server()
EMAIL_HOST = _mail.host if _mail else ""  # where it is empty, nothing is sent
if _mail:
    EMAIL_PORT, EMAIL_HOST_USER, EMAIL_HOST_PASSWORD = _mail.port, _mail.user, _mail.password
    EMAIL_USE_SSL, EMAIL_USE_TLS = _mail.is_tls, _mail.is_starttls
    DEFAULT_FROM_EMAIL = _mail.sender
EMAIL_TIMEOUT = 10
PUBLIC_URL = env.public_url()
NOTICE_NETWORKS = env.notice_networks()

BROKER_URL = env.broker_url()
JOB_LEASE_SECONDS = env.lease_seconds()


def _is_no_poll(record: logging.LogRecord) -> bool:
    return getattr(getattr(record, "request", None), "path", "") != "/readyz"


LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "%(asctime)s %(levelname)s %(name)s: %(message)s"}},
    # `/readyz` says in its answer what is missing; each poll of a starting installation would log it as an error.
    "filters": {"polls": {"()": "django.utils.log.CallbackFilter", "callback": _is_no_poll}},
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "line", "filters": ["polls"]}},
    "root": {"handlers": ["console"], "level": "WARNING"},
    "loggers": {"flywheel": {"level": "INFO"}, "workers": {"level": "INFO"}},
}
