from django.urls import URLPattern, URLResolver, path

from flywheel.promotions import views

app_name = "promotions"
urlpatterns: list[URLPattern | URLResolver] = [
    path("", views.index, name="index"),
]
