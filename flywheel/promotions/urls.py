from django.urls import URLPattern, URLResolver, path

from flywheel.promotions import views

app_name = "promotions"
urlpatterns: list[URLPattern | URLResolver] = [
    path("", views.index, name="index"),
    path("propose/", views.propose, name="propose"),
    path("policy/", views.policy, name="policy"),
    path("candidates/<int:pk>/", views.candidate, name="candidate"),
    path("candidates/<int:pk>/approve/", views.approve, name="approve"),
    path("candidates/<int:pk>/reject/", views.decline, name="reject"),
    path("agents/<slug:agent>/roll-back/", views.roll_back, name="roll_back"),
    path("agents/<slug:agent>/first/<int:number>/", views.first, name="first"),
]
