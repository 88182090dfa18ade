from django.urls import URLPattern, URLResolver, path

from flywheel.trajectories import views

app_name = "trajectories"
urlpatterns: list[URLPattern | URLResolver] = [
    path("", views.index, name="index"),
]
