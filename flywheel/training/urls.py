from django.urls import URLPattern, URLResolver, path

from flywheel.training import mix_views, rollout_views, views

app_name = "training"
# /p/<project>/training/
urlpatterns: list[URLPattern | URLResolver] = [
    path("", views.index, name="index"),
    path("launch/", views.launch_page, name="launch"),
    path("recommendations/", views.recommendations, name="recommendations"),
    path("datasets/", views.datasets, name="datasets"),
    path("datasets/mix/", mix_views.mix_page, name="mix"),
    path("datasets/<slug:name>/<int:version>/", views.dataset_page, name="dataset"),
    path("datasets/<slug:name>/<int:version>/rows.jsonl", views.download, name="dataset_rows"),
    # /rollouts/<eval's number>/
    path("rollouts/", rollout_views.collect_page, name="collect"),
    path("rollouts/<int:run>/", rollout_views.rollouts, name="rollouts"),
    path("rollouts/<int:run>/write/", rollout_views.write_dataset, name="write_dataset"),
    path("rollouts/<int:run>/<int:number>/<int:sample>/drop/", rollout_views.drop_rollout, name="drop_rollout"),
    path(
        "rollouts/<int:run>/<int:number>/<int:sample>/take-back/",
        rollout_views.take_rollout_back,
        name="take_rollout_back",
    ),
    # /runs/<pk>/
    path("runs/<int:pk>/", views.run, name="run"),
    path("runs/<int:pk>/live/", views.live, name="live"),
    path("runs/<int:pk>/cancel/", views.cancel, name="cancel"),
    path("runs/<int:pk>/resume/", views.resume, name="resume"),
]
