"""Every URL. A room's pages lie under `/p/<project>/<room>/`; each view declares its permission."""

from django.urls import URLPattern, URLResolver, include, path

from flywheel.accounts.pages import profile, settings_urls
from flywheel.evals.api import attempt_server
from flywheel.promotions.pages.wheel import overview
from flywheel.server import health
from flywheel.server.api import api
from flywheel.server.pages import demo_harm, demo_scenes, finder, guides
from flywheel.trajectories.ingest import otlp_http
from flywheel.trajectories.ingest.gateway import openai_endpoints
from flywheel.trajectories.pages import retention_views

# /p/<project>/settings/: what rooms add to it
retention_urls: list[URLPattern | URLResolver] = [
    path("retention/", retention_views.retention_page, name="retention"),
    path("retention/preview/", retention_views.retention_preview, name="retention_preview"),
]

# /p/<project>/: the overview, the demo's guided tour and its switch, and what the palette finds
overview_urls: list[URLPattern | URLResolver] = [
    path("", overview.index, name="index"),
    path("scene/", demo_scenes.scene, name="scene"),
    path("harm/", demo_harm.switch, name="harm"),
    path("find/", finder.find, name="find"),
]

# /p/<project>/
project_urls: list[URLPattern | URLResolver] = [
    path("", include((overview_urls, "overview"))),
    path("agents/", include("flywheel.agents.urls")),
    path("trajectories/", include("flywheel.trajectories.urls")),
    path("failures/", include("flywheel.failures.urls")),
    path("environments/", include("flywheel.environments.urls")),
    path("evals/", include("flywheel.evals.urls")),
    path("training/", include("flywheel.training.urls")),
    path("promotions/", include("flywheel.promotions.urls")),
    path("notices/", include("flywheel.accounts.pages.inbox")),
    path("settings/", include(([*settings_urls.urlpatterns, *retention_urls], settings_urls.app_name))),
]

# /help/
help_urls: list[URLPattern | URLResolver] = [
    path("", guides.guide, name="index"),
    path("glossary/", guides.glossary, name="glossary"),
    path("images/<slug:name>.png", guides.image, name="image"),
    path("design/<slug:name>/", guides.guide, {"folder": "design"}, name="design"),
    path("<slug:name>/", guides.guide, name="guide"),
]

# /v1/: OpenTelemetry's own paths
ingest_urls: list[URLPattern | URLResolver] = [
    path("traces", otlp_http.traces, name="traces"),
    path("logs", otlp_http.logs, name="logs"),
    path("metrics", otlp_http.metrics, name="metrics"),
]

# /gateway/v1/: OpenAI's own paths
gateway_urls: list[URLPattern | URLResolver] = [
    path("chat/completions", openai_endpoints.chat_completions, name="chat_completions"),
    path("responses", openai_endpoints.responses, name="responses"),
    path("models", openai_endpoints.models, name="models"),
]

# /attempts/<id>/: for the program that makes the attempt
attempt_urls: list[URLPattern | URLResolver] = [
    path("<slug:attempt>/tools", attempt_server.tools, name="tools"),
    path("<slug:attempt>/tools/<str:name>", attempt_server.tool, name="tool"),
    path("<slug:attempt>/mcp", attempt_server.mcp, name="mcp"),
    path("<slug:attempt>/lease", attempt_server.lease, name="lease"),
    path("<slug:attempt>/result", attempt_server.result, name="result"),
]

urlpatterns: list[URLPattern | URLResolver] = [
    path("", profile.home, name="home"),
    path("account/", include("flywheel.accounts.urls")),
    path("help/", include((help_urls, "help"))),
    path("p/<slug:project>/", include(project_urls)),
    path("v1/", include((ingest_urls, "ingest"))),
    path("gateway/v1/", include((gateway_urls, "gateway"))),
    path("attempts/", include((attempt_urls, "attempts"))),
    path("api/v1/", api.urls),
    path("healthz", health.healthz, name="healthz"),
    path("readyz", health.readyz, name="readyz"),
]
handler403 = "flywheel.accounts.pages.refusals.forbidden"
handler404 = "flywheel.accounts.pages.refusals.not_found"
handler500 = "flywheel.accounts.pages.refusals.failed"
