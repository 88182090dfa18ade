from django.urls import URLPattern, URLResolver, path

from flywheel.training import views

app_name = "training"
urlpatterns: list[URLPattern | URLResolver] = [
    path("", views.index, name="index"),
]
