from django.contrib.auth import views as auth
from django.urls import URLPattern, URLResolver, path

from flywheel.accounts.access import public

app_name = "accounts"
urlpatterns: list[URLPattern | URLResolver] = [
    path("login/", public(auth.LoginView.as_view(template_name="accounts/login.html")), name="login"),
    path("logout/", public(auth.LogoutView.as_view()), name="logout"),
]
