from django.urls import URLPattern, URLResolver, path

from flywheel.environments import views

app_name = "environments"
urlpatterns: list[URLPattern | URLResolver] = [
    path("", views.index, name="index"),
    path("new/", views.create, name="create"),
    path("sets/<slug:name>/<int:version>/", views.task_set, name="task_set"),
    # /of/<trace_id>/
    path("of/<str:trace_id>/", views.offer, name="make"),
    path("of/<str:trace_id>/make/", views.make_task, name="make_task"),
    # /e/<name>/
    path("e/<slug:name>/", views.environment, name="environment"),
    path("e/<slug:name>/versions/", views.make_version, name="make_version"),
    path("e/<slug:name>/make-all/", views.make_all, name="make_all"),
    path("e/<slug:name>/freeze/", views.freeze, name="freeze"),
    path("e/<slug:name>/tasks/<int:number>/", views.task, name="task"),
    path("e/<slug:name>/tasks/<int:number>/retire/", views.retire_task, name="retire"),
]
