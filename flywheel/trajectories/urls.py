from django.urls import URLPattern, URLResolver, path

from flywheel.trajectories.pages import (
    connect_views,
    cost_views,
    quarantine_views,
    redaction_views,
    traffic_version_views,
)
from flywheel.trajectories.pages.detail import comment_views, deletion_views, detail_views
from flywheel.trajectories.pages.imports import import_job_views, import_views
from flywheel.trajectories.pages.metrics import metrics_views
from flywheel.trajectories.pages.trajectory_list import bulk_views, list_views, preference_views

app_name = "trajectories"
urlpatterns: list[URLPattern | URLResolver] = [
    path("", list_views.index, name="index"),
    path("facets/", list_views.facets, name="facets"),
    path("export/", list_views.export, name="export"),
    path("columns/", preference_views.choose_columns, name="choose_columns"),
    path("views/", preference_views.save_view, name="save_view"),
    path("views/first/", preference_views.open_with, name="open_with"),
    path("views/<int:view>/delete/", preference_views.delete_view, name="delete_view"),
    # /bulk/
    path("bulk/", bulk_views.index, name="bulk_actions"),
    path("bulk/start/", bulk_views.start, name="start_bulk"),
    path("bulk/<int:number>/", bulk_views.page, name="bulk"),
    path("bulk/<int:number>/live/", bulk_views.live, name="bulk_live"),
    path("bulk/<int:number>/cancel/", bulk_views.cancel, name="cancel_bulk"),
    path("bulk/<int:number>/resume/", bulk_views.resume, name="resume_bulk"),
    path("bulk/<int:number>/file/", bulk_views.file, name="bulk_file"),
    # /metrics/
    path("metrics/", metrics_views.index, name="metrics"),
    path("metrics/figures/", metrics_views.figures, name="metrics_figures"),
    # /connect/
    path("connect/", connect_views.page, name="connect"),
    path("connect/live/", connect_views.live, name="connect_live"),
    path("connect/key/", connect_views.make_key, name="connect_key"),
    # /new-version/<agent>/
    path("new-version/<slug:name>/", traffic_version_views.new_version, name="version_from_traffic"),
    # /import/
    path("import/", import_views.import_page, name="import"),
    path("import/runs/<int:job>/", import_job_views.page, name="import_job"),
    path("import/runs/<int:job>/live/", import_job_views.live, name="import_live"),
    path("import/runs/<int:job>/cancel/", import_job_views.cancel, name="cancel_import"),
    path("import/runs/<int:job>/resume/", import_job_views.resume, name="resume_import"),
    path("import/<str:token>/", import_views.map_page, name="map"),
    path("import/<str:token>/preview/", import_views.map_preview, name="map_preview"),
    path("import/<str:token>/discard/", import_views.discard, name="discard"),
    path("people/", comment_views.people, name="people"),
    # /quarantine/
    path("quarantine/", quarantine_views.index, name="quarantine"),
    path("quarantine/replay/", quarantine_views.replay_group, name="replay_group"),
    path("quarantine/dismiss/", quarantine_views.dismiss_group, name="dismiss_group"),
    path("quarantine/reread/", quarantine_views.reread, name="reread"),
    path("quarantine/reread/start/", quarantine_views.start_reread, name="start_reread"),
    path("quarantine/<int:pk>/", quarantine_views.item, name="quarantined"),
    path("quarantine/<int:pk>/raw/", quarantine_views.raw, name="quarantined_raw"),
    path("quarantine/<int:pk>/replay/", quarantine_views.replay, name="replay"),
    path("quarantine/<int:pk>/dismiss/", quarantine_views.dismiss, name="dismiss"),
    # /costs/
    path("costs/", cost_views.costs, name="costs"),
    path("costs/start/", cost_views.start_costs, name="start_costs"),
    path("costs/<int:job>/cancel/", cost_views.cancel, name="cancel_costs"),
    # /redaction/
    path("redaction/dry-run/", redaction_views.dry_run, name="redaction_dry_run"),
    # /<trace_id>/
    path("<str:trace_id>/", detail_views.detail, name="detail"),
    path("<str:trace_id>/preview/", preference_views.preview, name="preview"),
    path("<str:trace_id>/conversation/", detail_views.conversation, name="conversation"),
    path("<str:trace_id>/steps/", detail_views.steps, name="steps"),
    path("<str:trace_id>/step/", detail_views.step, name="step"),
    path("<str:trace_id>/turn/", detail_views.turn, name="turn"),
    path("<str:trace_id>/search/", detail_views.search, name="search"),
    path("<str:trace_id>/totals/", detail_views.totals, name="totals"),
    path("<str:trace_id>/comments/", comment_views.comments, name="comments"),
    path("<str:trace_id>/comments/say/", comment_views.say, name="say"),
    path("<str:trace_id>/comments/read/", comment_views.read_comments, name="read_comments"),
    path("<str:trace_id>/comments/<int:comment>/edit/", comment_views.edit_comment, name="edit_comment"),
    path("<str:trace_id>/comments/<int:comment>/delete/", comment_views.delete_comment, name="delete_comment"),
    path("<str:trace_id>/download/", detail_views.download, name="download"),
    path("<str:trace_id>/delete/", deletion_views.delete_page, name="delete"),
]
