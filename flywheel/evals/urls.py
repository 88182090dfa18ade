from django.urls import URLPattern, URLResolver, path

from flywheel.evals import views

app_name = "evals"
urlpatterns: list[URLPattern | URLResolver] = [
    path("", views.index, name="index"),
]
