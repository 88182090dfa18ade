from django.urls import URLPattern, URLResolver, path

from flywheel.training import views

app_name = "training"
# /p/<project>/training/
urlpatterns: list[URLPattern | URLResolver] = [
    path("", views.index, name="index"),
    path("launch/", views.launch_page, name="launch"),
    path("recommendations/", views.recommendations, name="recommendations"),
    path("datasets/", views.datasets, name="datasets"),
    path("datasets/<slug:name>/<int:version>/", views.dataset_page, name="dataset"),
    path("datasets/<slug:name>/<int:version>/rows.jsonl", views.download, name="dataset_rows"),
    # /runs/<pk>/
    path("runs/<int:pk>/", views.run, name="run"),
    path("runs/<int:pk>/live/", views.live, name="live"),
    path("runs/<int:pk>/cancel/", views.cancel, name="cancel"),
    path("runs/<int:pk>/resume/", views.resume, name="resume"),
]
