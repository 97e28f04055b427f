"""Everything that predicts, opened and closed together."""

from pathlib import Path

from starlette.routing import BaseRoute

from runtimes.artifact import Artifact
from runtimes.manifest import Task
from service.api import models as catalog
from service.api.pages import prediction_routes
from service.api.v2.routes import V2
from service.http.bodies import Bodies
from service.metrics import SILENT, Observer
from service.predictions.images import Predictions
from service.predictions.registry import Registry
from service.predictions.reload import Reloader
from service.predictions.selection import Settler
from service.predictions.texts import TextPredictions
from service.settings import Settings


class Serving:
    """The served models and the routes that answer with them; belongs to one event loop.

    Args:
        settings: models, runtime and limits.
        observer: is told of every model's batches.
        unloaded: see `Reloader`.

    Attributes:
        predictions: answers ``/classify``.
        texts: answers ``/classify_text``.

    Raises:
        ValueError: a model cannot be opened.
    """

    def __init__(self, settings: Settings, observer: Observer = SILENT, *, unloaded: Path) -> None:
        bodies = Bodies(settings)
        self._settings = settings
        self._registry = Registry.open(settings, observer)
        self._reloader = Reloader(self._registry, settings, unloaded=unloaded)
        self._settler = Settler(self._registry, settings)
        self.predictions = Predictions(settings, self._registry, bodies)
        self.texts = TextPredictions(settings, self._registry, bodies)
        self._v2 = V2(settings, self._registry, self._reloader, texts=self.texts, bodies=bodies)

    async def start(self) -> None:
        """Run every model once; then find faster runtimes, and follow the folders of models."""
        await self._registry.warm_up()
        self._settler.start()
        self._reloader.start()

    def routes(self) -> list[BaseRoute]:
        """Predictions, the protocol V2, the catalogue of models, and the samples."""
        return [
            *prediction_routes(self.predictions, self.texts),
            *self._v2.routes(),
            *catalog.routes(self._settings, self._registry),
        ]

    def artifact(self, reference: str | None, task: Task) -> Artifact:
        """The artifact of a served model; see `Registry.get`."""
        return self._registry.get(reference, task).artifact

    async def ready(self) -> bool:
        """Whether every model answers: a runtime may lose its device at any time."""
        return await self._registry.ready()

    def close(self) -> None:
        """Let the running batch end and start no other."""
        self._settler.close()
        self._reloader.close()
        self.predictions.close()
        self.texts.close()
        self._registry.close()
