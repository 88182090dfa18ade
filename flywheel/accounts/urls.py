from django.contrib.auth.views import LogoutView
from django.urls import URLPattern, URLResolver, path

from flywheel.accounts.access import public
from flywheel.accounts.pages import demo, profile
from flywheel.accounts.pages.login import SignInPage

app_name = "accounts"
# /account/
urlpatterns: list[URLPattern | URLResolver] = [
    path("", profile.profile, name="profile"),
    path("notices/", profile.mailed_notices, name="mailed_notices"),
    path("login/", public(SignInPage.as_view()), name="login"),
    path("demo/", demo.switch, name="demo_switch"),
    path("demo/<str:token>/", demo.enter, name="demo"),
    path("logout/", public(LogoutView.as_view()), name="logout"),
]
