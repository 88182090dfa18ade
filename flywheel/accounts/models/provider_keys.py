"""Keys for the servers of models, entered in a browser: sealed at rest, and never shown again."""

from django.db import models
from django.utils import timezone

from flywheel.accounts.models.people import Project, User
from flywheel.accounts.models.seals import CannotUnseal, seal, unseal

PURPOSE = "provider keys"


class ProviderKey(models.Model):
    """A key for one server of models, which is sent there and nowhere else."""

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="provider_keys")
    name = models.CharField(max_length=100)
    """As a variable of the environment would be called, such as `OPENAI_API_KEY`; endpoints name it so."""
    base_url = models.CharField(max_length=500)
    """The one server that it is sent to, up to where `/chat/completions` begins."""
    sealed = models.TextField()
    created_by = models.ForeignKey(User, on_delete=models.PROTECT, related_name="+")
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["project", "name"]
        constraints = [models.UniqueConstraint(fields=["project", "name"], name="provider_key_once")]

    def __str__(self) -> str:
        return self.name

    def seal(self, secret: str) -> None:
        self.sealed = seal(secret, PURPOSE)

    def unseal(self) -> str:
        """The key itself. Raises CannotUnseal."""
        try:
            return unseal(self.sealed, PURPOSE)
        except CannotUnseal as error:
            raise CannotUnseal(f"{self.name}: {error}; an admin must enter it again under Settings › Models") from None
