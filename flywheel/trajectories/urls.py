from django.urls import URLPattern, URLResolver, path

from flywheel.trajectories import views

app_name = "trajectories"
urlpatterns: list[URLPattern | URLResolver] = [
    path("", views.index, name="index"),
    path("facets/", views.facets, name="facets"),
    path("import/", views.import_page, name="import"),
    # /<trace_id>/
    path("<str:trace_id>/", views.detail, name="detail"),
    path("<str:trace_id>/conversation/", views.conversation, name="conversation"),
    path("<str:trace_id>/steps/", views.steps, name="steps"),
    path("<str:trace_id>/step/", views.step, name="step"),
]
