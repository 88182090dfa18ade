from django.urls import URLPattern, URLResolver, path

from flywheel.failures import views

app_name = "failures"
urlpatterns: list[URLPattern | URLResolver] = [
    path("", views.index, name="index"),
]
